"""Typed TOML configuration: load, override, check, explain.

Configuration structs live beside their owners, derive from `Config`, and document each field with a string under it.
Invariants (tests/test_configuration.py):
- an unknown key or kind is an error that names file, key and the nearest known one, in nested tables and lists of tables too;
- a wrong type or choice is an error that names file and key, the key as `--set` takes it;
- a number below 0 is refused where it makes no sense, and the name of a run cannot leave its directory or be it;
- every field of every shipped configuration struct has documentation;
- `dump` of a loaded configuration loads to an equal one.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import itertools
import re
import textwrap
import tomllib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec

from whippletree.errors import ConfigurationError, did_you_mean

T = TypeVar("T", bound="Config")
Natural = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
_DIRECTORY, _PLAIN = r"^(?!\.+$)[^/\x00]+$", r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
DirectoryName = Annotated[str, msgspec.Meta(pattern=_DIRECTORY)]  # of a directory
PlainName = Annotated[str, msgspec.Meta(pattern=_PLAIN)]  # stands in ids, file names and tables
_FORMS = {_DIRECTORY: "a name without `/` that is not empty or only dots", _PLAIN: "a name of letters, digits, `-` and `_`"}
COMMENT_WIDTH = 118  # columns of a comment in `dump`


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of configuration structs: immutable, keyword-only, unknown keys refused."""


def load(kind: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """Read a TOML file into `kind`, with `a.b=c` overrides applied. Raises ConfigurationError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", "give the path of a run file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}", "mend the place it names") from error
    for item in overrides:
        apply_override(data, item)
    return convert(kind, data, str(path))


def convert(kind: type[T], data: dict[str, Any], origin: str) -> T:
    """Check plain data against `kind`. Raises ConfigurationError that names origin and key."""
    check_keys(kind, data, origin, "")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{origin}: {_readable(error)}", "docs/configuration.md has every key and its type") from error


def _readable(error: msgspec.ValidationError) -> str:
    """msgspec's message with the key first, written as `--set` takes it: "loop.steps: Expected `int`, got `str`"."""
    text = str(error)
    for pattern, form in _FORMS.items():
        text = text.replace(f"`str` matching regex {pattern!r}", form)
    what, separator, where = text.rpartition(" - at `$")
    if not separator:
        return text
    key = re.sub(r"\[(\d+)\]", r".\1", where.rstrip("`")).strip(".")
    return f"{key}: {what}"


def apply_override(data: dict[str, Any], item: str) -> None:
    """Apply one `a.b=c` override in place; the value is TOML, or a bare string where it is not. Numeric parts index lists."""
    key, separator, text = item.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigurationError(f"--set {item}: not of the form a.b=c", "write for example --set loop.steps=10")
    try:
        parsed = tomllib.loads(f"value = {text}")
        value = parsed["value"] if len(parsed) == 1 else text
    except tomllib.TOMLDecodeError:
        value = text
    node: Any = data
    for part in parts[:-1]:
        node = _child(node, part, item)
    if isinstance(node, list):
        node[_index(node, parts[-1], item)] = value
    else:
        node[parts[-1]] = value


def _child(node: Any, part: str, item: str) -> Any:
    child = node[_index(node, part, item)] if isinstance(node, list) else node.setdefault(part, {})
    if not isinstance(child, dict | list):
        raise ConfigurationError(f"--set {item}: {part} is a value, not a table", "shorten the key")
    return child


def _index(node: list[Any], part: str, item: str) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise ConfigurationError(f"--set {item}: no entry {part} in a list of {len(node)}", "count entries from 0")
    return int(part)


def check_keys(kind: Any, data: Any, origin: str, prefix: str) -> None:
    """Raise ConfigurationError at the first unknown key, kind or choice, with the nearest known one."""
    choices = _alternatives(kind)
    words = [word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)]
    if words and isinstance(data, str) and data not in words and str not in choices:
        raise ConfigurationError(f"{origin}: {prefix.rstrip('.')} is {data!r}", did_you_mean(data, words))
    if isinstance(data, list):
        for item in (get_args(choice)[0] for choice in choices if get_origin(choice) in (list, tuple)):
            for number, entry in enumerate(data):
                check_keys(item, entry, origin, f"{prefix}{number}.")
    if not isinstance(data, dict):
        return
    for values in (get_args(choice)[1] for choice in choices if get_origin(choice) is dict):
        for key, value in data.items():
            check_keys(values, value, origin, f"{prefix}{key}.")
    structs = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, msgspec.Struct)]
    if not structs:
        return
    chosen = _chosen(structs, data, origin, prefix)
    hints = get_type_hints(chosen)
    tag = chosen.__struct_config__.tag_field
    known = [*chosen.__struct_fields__, *([tag] if tag else [])]
    for key, value in data.items():
        if key not in known:
            raise ConfigurationError(f"{origin}: unknown key {prefix}{key}", did_you_mean(key, known, prefix=prefix))
        if key in hints:
            check_keys(hints[key], value, origin, f"{prefix}{key}.")


def _alternatives(kind: Any) -> list[Any]:
    """The types that a value of `kind` may have: the members of a union, or `kind` itself."""
    return list(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else [kind]


def _chosen(structs: Sequence[Any], data: dict[str, Any], origin: str, prefix: str) -> Any:
    """The struct that `data` is meant to be: the only one, or the one that its tag names."""
    tags = {struct.__struct_config__.tag: struct for struct in structs}
    field = structs[0].__struct_config__.tag_field
    given = data.get(field) if field else None
    if given in tags:
        return tags[given]
    if given is None and len(structs) == 1:
        return structs[0]
    if given is None:
        raise ConfigurationError(f"{origin}: {prefix}{field} is missing", f"one of {', '.join(sorted(tags))}")
    raise ConfigurationError(f"{origin}: {prefix}{field} is {given!r}", did_you_mean(str(given), [str(tag) for tag in tags]))


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
    """The whole resolved configuration as TOML, each key and table with its documentation as a comment.

    Raises ConfigurationError for a value that TOML cannot hold.
    """
    lines: list[str] = []
    _dump_table(config, "", lines)
    return "\n".join(lines).strip() + "\n"


def _dump_table(node: msgspec.Struct, prefix: str, lines: list[str]) -> None:
    docs = {name: _comment(text) for name, text in field_docs(type(node)).items()}
    tables: list[tuple[str, str, msgspec.Struct]] = []
    tag = node.__struct_config__
    if tag.tag_field:
        lines.append(f"{tag.tag_field} = {toml_value(tag.tag)}")
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if isinstance(value, msgspec.Struct):
            tables.append((name, f"[{prefix}{name}]", value))
        elif isinstance(value, list | tuple) and value and isinstance(value[0], msgspec.Struct):
            tables += [(name, f"[[{prefix}{name}]]", entry) for entry in value]
        elif value is not None:
            lines += [*docs.get(name, ()), f"{name} = {toml_value(value)}"]
    for name, head, value in tables:
        lines += ["", *docs.get(name, ()), head]
        _dump_table(value, f"{prefix}{name}.", lines)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT_WIDTH, break_long_words=False, break_on_hyphens=False)]


def toml_value(value: Any) -> str:
    """A value as TOML. Raises ConfigurationError for one that TOML cannot hold."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case list() | tuple():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
    raise ConfigurationError(f"{value!r} cannot be written as TOML", "use text, numbers, true and false, lists and tables")
