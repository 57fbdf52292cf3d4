"""docs/configuration.md, written from the configuration structs: `python -m whippletree.ui.configuration_page > FILE`.

Invariants (tests/ui/test_configuration_page.py):
- every key of a run file, a grid file, an SFT file and of a shipped harness's settings is on the page, with its type, default
  and documentation;
- the page in docs/ is what this module writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect as shape

from whippletree.configuration import Config, field_docs
from whippletree.harnesses import shipped_settings
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.config import GridConfig
from whippletree.loop.sft.config import SftConfig

INTRODUCTION = """# Configuration

<!-- Written by `python -m whippletree.ui.configuration_page > docs/configuration.md`; change the structs, not this page. -->

A run file is TOML. Only `[[sources]]` is required; every other table and key has a default. Where a table comes in several
kinds, its `kind` (or `name`) says which. An unknown key is an error that names the nearest known one.

```sh
whippletree config check run.toml              # is it right?
whippletree config show run.toml               # every key, resolved, with its documentation
whippletree train run.toml --set loop.steps=10 --set sources.0.share=2
```

`--set a.b=c` overrides one key and may be repeated; numbers index lists from 0. The value is TOML, or a bare string where it is
not. The resolved configuration of a run is `config.toml` in its directory.
"""

GRID = """# A grid file

For `whippletree eval GRID.toml` ([evaluation.md](evaluation.md)). `[[models]]`, `[[harnesses]]` and `[[sources]]` are required.
`[sampling]`, `[gateway]`, `[control]`, `[sandbox]` and `[store]` are as above.
"""
SFT = """# An SFT file

For `whippletree sft SFT.toml` ([sft.md](sft.md)). Only `data` is required. `[model]`, `[rendering]` and `[learner]` are as
above.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *_tables(RunConfig)]
    for name, kind in shipped_settings().items():
        parts.append(f"## [sources.harness.settings] of {name}\n\n{_docstring(kind)}\n\n{_rows(kind)}")
    parts.append(GRID)
    parts += _own_tables(GridConfig, ("grid", "models", "harnesses", "sources"), "a grid file")
    parts.append(f"{SFT}\n{_rows(SftConfig)}")
    parts += _own_tables(SftConfig, ("sft", "export"), "an SFT file")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _own_tables(root: type[Config], names: Sequence[str], what: str) -> Iterator[str]:
    """The tables that only this kind of file has. Tables in them that are those of a run file are named, not repeated."""
    docs = field_docs(root)
    for field in msgspec.structs.fields(root):
        if field.name not in names:
            continue
        many = isinstance(shape.type_info(field.type), shape.ListType)
        kind = field.type.__args__[0] if many else field.type
        below = [f"- `{name}`: {text}" for name, text in field_docs(kind).items() if _is_table(get_type_hints(kind)[name])]
        head = f"[[{field.name}]]" if many else f"[{field.name}]"
        yield "\n".join([f"## {head} of {what}", "", docs[field.name], "", _rows(kind), "", *below])


def _tables(root: type[Config]) -> Iterator[str]:
    """The sections of a run file, in the struct's order."""
    docs = field_docs(root)
    for field in msgspec.structs.fields(root):
        yield from _section(field.name, field.type, _default(field), docs[field.name], level=2)


def _section(path: str, kind: Any, default: Any, text: str, *, level: int, many: bool = False) -> Iterator[str]:
    """One table with those below it; one section per kind where it comes in several."""
    info = shape.type_info(kind)
    if isinstance(info, shape.ListType | shape.VarTupleType):
        yield from _section(path, kind.__args__[0], None, text, level=level, many=True)
        return
    members = info.types if isinstance(info, shape.UnionType) else (info,)
    structs = [item.cls for item in members if isinstance(item, shape.StructType)]
    head = f"{'#' * level} [[{path}]]" if many else f"{'#' * level} [{path}]"
    if len(structs) == 1:
        yield f"{head}\n\n{text}\n\n{_rows(structs[0])}"
        yield from _below(path, structs[0], level + 1)
        return
    kinds = ", ".join(f"`{item.__struct_config__.tag}`" for item in structs)
    chosen = f" Default: `{default.__struct_config__.tag}`." if default is not None else ""
    tag = structs[0].__struct_config__.tag_field
    yield f"{head}\n\n{text} `{tag}` is one of {kinds}.{chosen}"
    for item in structs:
        yield f'#{head} {tag} = "{item.__struct_config__.tag}"\n\n{_docstring(item)}\n\n{_rows(item)}'
        yield from _below(path, item, level + 2)


def _below(path: str, kind: type[msgspec.Struct], level: int) -> Iterator[str]:
    docs = field_docs(kind)
    for field in msgspec.structs.fields(kind):
        if _is_table(field.type):
            yield from _section(f"{path}.{field.name}", field.type, _default(field), docs[field.name], level=level)


def _rows(kind: type[msgspec.Struct]) -> str:
    """A table of the keys that hold values; "" for a struct without any."""
    docs = field_docs(kind)
    lines = [
        f"| `{field.name}` | {_type(shape.type_info(field.type))} | {_shown(field)} | {_cell(docs[field.name])} |"
        for field in msgspec.structs.fields(kind)
        if not _is_table(field.type)
    ]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *lines]) if lines else ""


def _is_table(kind: Any) -> bool:
    info = shape.type_info(kind)
    found = info.item_type if isinstance(info, shape.ListType | shape.VarTupleType) else info
    members = found.types if isinstance(found, shape.UnionType) else (found,)
    return any(isinstance(member, shape.StructType) for member in members)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _shown(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = _default(field)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    encoded = msgspec.json.encode(value).decode() if not isinstance(value, int | float) else repr(value)
    return f"`{encoded}`".replace("|", "\\|")


def _type(info: shape.Type) -> str:
    """A type in words."""
    match info:
        case shape.LiteralType(values=values):
            return ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in sorted(values, key=str))
        case shape.ListType(item_type=item) | shape.VarTupleType(item_type=item):
            return f"list of {_type(item)}"
        case shape.DictType(value_type=item):
            return f"table of {_type(item)}"
        case shape.UnionType(types=members):
            return " or ".join(_type(member) for member in members)
        case shape.IntType() | shape.FloatType():
            return ("integer" if isinstance(info, shape.IntType) else "number") + _bounds(info)
        case shape.StrType():
            return "string"
        case shape.BoolType():
            return "true or false"
    return "anything"


def _bounds(info: shape.IntType | shape.FloatType) -> str:
    found = [(word, getattr(info, name)) for name, word in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))]
    text = ", ".join(f"{word} {value:g}" for word, value in found if value is not None)
    return f" {text}" if text else ""


def _docstring(kind: type[msgspec.Struct]) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(page())
