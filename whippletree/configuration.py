"""Typed TOML configuration: load, override, check, explain.

Configuration structs live beside their owners, derive from `Config`, and document each field with a string under it.
Invariants (tests/test_configuration.py):
- an unknown key is an error that names file, key and the nearest known key;
- a wrong type or choice is an error that names file and key;
- every field of every shipped configuration struct has documentation;
- `dump` of a loaded configuration loads to an equal one.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import textwrap
import tomllib
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec

from whippletree.errors import ConfigurationError

T = TypeVar("T", bound="Config")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of configuration structs: immutable, keyword-only, unknown keys refused."""


def load(kind: type[T], path: Path, overrides: tuple[str, ...] = ()) -> T:
    """Read a TOML file into `kind`, with `a.b=c` overrides applied. Raises ConfigurationError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", "give the path of a run file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}", "mend the line it names") from error
    for item in overrides:
        apply_override(data, item)
    return convert(kind, data, str(path))


def convert(kind: type[T], data: dict[str, Any], origin: str) -> T:
    """Check plain data against `kind`. Raises ConfigurationError that names origin and key."""
    check_keys(kind, data, origin, "")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{origin}: {error}", "see `whippletree config show` for every key and its type") from error


def apply_override(data: dict[str, Any], item: str) -> None:
    """Apply one `a.b=c` override in place; the value is TOML, or a bare string where it is not. Numeric parts index lists."""
    key, separator, text = item.partition("=")
    if not separator or not key.strip():
        raise ConfigurationError(f"--set {item}: not of the form a.b=c", "write for example --set loop.steps=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    parts = key.strip().split(".")
    node: Any = data
    for part in parts[:-1]:
        node = _child(node, part, item)
    if isinstance(node, list):
        node[_index(node, parts[-1], item)] = value
    else:
        node[parts[-1]] = value


def _child(node: Any, part: str, item: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, item)]
    child = node.setdefault(part, {})
    if not isinstance(child, dict | list):
        raise ConfigurationError(f"--set {item}: {part} is a value, not a table", "shorten the key")
    return child


def _index(node: list[Any], part: str, item: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigurationError(f"--set {item}: no entry {part} in a list of {len(node)}", "count entries from 0")
    return int(part)


def check_keys(kind: Any, data: Any, origin: str, prefix: str) -> None:
    """Raise ConfigurationError at the first unknown key, with the nearest known one."""
    for item in get_args(kind) if get_origin(kind) is not None and not _is_struct(kind) else ():
        if isinstance(data, list | tuple) and _is_struct(item):
            for number, entry in enumerate(data):
                check_keys(item, entry, origin, f"{prefix}{number}.")
    if not isinstance(data, dict):
        return
    chosen = _chosen(kind, data)
    if chosen is None:
        return
    hints = get_type_hints(chosen)
    tag = chosen.__struct_config__.tag_field
    known = [*chosen.__struct_fields__, *([tag] if tag else [])]
    for key, value in data.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known keys here: {', '.join(sorted(known))}"
            raise ConfigurationError(f"{origin}: unknown key {prefix}{key}", hint)
        if key in hints:
            check_keys(hints[key], value, origin, f"{prefix}{key}.")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _chosen(kind: Any, data: dict[str, Any]) -> Any:
    """The struct that `data` is meant to be: `kind` itself, or the member of a tagged union that its tag names."""
    if _is_struct(kind):
        return kind
    members = [member for member in get_args(kind) if _is_struct(member)]
    for member in members:
        config = member.__struct_config__
        if config.tag_field and data.get(config.tag_field) == config.tag:
            return member
    return members[0] if len(members) == 1 else None


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Field name → the string written under it in the class body."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[statement.target.id] = " ".join(following.value.value.split())
    return docs


def dump(config: Config) -> str:
    """The whole resolved configuration as TOML, each key with its documentation as a comment."""
    lines: list[str] = []
    _dump_table(config, "", lines)
    return "\n".join(lines).strip() + "\n"


def _dump_table(node: msgspec.Struct, prefix: str, lines: list[str]) -> None:
    docs = field_docs(type(node))
    tables: list[tuple[str, Any]] = []
    tag = node.__struct_config__
    if tag.tag_field:
        lines.append(f"{tag.tag_field} = {_toml(tag.tag)}")
    for name in node.__struct_fields__:
        value = getattr(node, name)
        many = isinstance(value, list | tuple) and bool(value) and isinstance(value[0], msgspec.Struct)
        if isinstance(value, msgspec.Struct) or many:
            tables.append((name, value))
        elif value is not None:
            if name in docs:
                lines.append(f"# {docs[name]}")
            lines.append(f"{name} = {_toml(value)}")
    for name, value in tables:
        if isinstance(value, msgspec.Struct):
            lines.extend(["", f"[{prefix}{name}]"])
            _dump_table(value, f"{prefix}{name}.", lines)
        else:
            for entry in value:
                lines.extend(["", f"[[{prefix}{name}]]"])
                _dump_table(entry, f"{prefix}{name}.", lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return repr(value)
