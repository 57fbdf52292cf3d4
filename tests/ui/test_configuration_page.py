"""whippletree/ui/configuration_page.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from whippletree.configuration import field_docs
from whippletree.harnesses import shipped_settings
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.config import GridConfig
from whippletree.loop.sft.config import SftConfig
from whippletree.ui.configuration_page import page

DOCS = Path(__file__).parents[2] / "docs"


def keys_below(kind: Any, path: str) -> set[tuple[str, str, str]]:
    """(table, key, documentation) of every key that holds a value."""
    found: set[tuple[str, str, str]] = set()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            below = keys_below(field.type, f"{path}.{field.name}".strip("."))
            found |= below or {(path, field.name, field_docs(kind)[field.name])}
    for part in get_args(kind):
        found |= keys_below(part, path)
    return found


def rows_of(text: str) -> set[tuple[str, str]]:
    found, table = set(), ""
    for line in text.splitlines():
        if head := re.match(r"#+ \[+([\w.]+)\]+", line):
            table = head[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.add((table, row[1]))
    return found


def test_every_key_is_on_the_page_under_its_table_with_its_documentation():
    text = page()
    expected = keys_below(RunConfig, "")
    assert len(expected) > 100
    for kind in shipped_settings().values():
        expected |= {("sources.harness.settings", name, doc) for name, doc in field_docs(kind).items()}
    rows = rows_of(text)
    assert {(table, key) for table, key, _ in expected} - rows == set()
    for _, _, documentation in expected:
        assert documentation.replace("|", "\\|").replace("<", "&lt;") in text


def test_types_and_defaults_are_told():
    text = page()
    assert '| `kind` | `"asynchronous"`, `"collocated"`, `"synchronous"` | `"collocated"` |' in text
    assert "| `concurrency` | integer ≥ 1 | `16` |" in text
    assert "| `path` | string | required |" in text
    assert "| `depths` | list of integer |" in text
    assert "`kind` is one of `embedded`, `vllm`, `sglang`, `hosted`, `scripted`. Default: `embedded`." in text


def test_the_page_in_docs_is_current():
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == page(), (
        "run `python -m whippletree.ui.configuration_page > docs/configuration.md`"
    )


def test_grid_and_sft_files_have_every_key_of_their_own_tables():
    text = page()
    for root, names, what in (
        (GridConfig, ("grid", "models", "harnesses", "sources"), "a grid file"),
        (SftConfig, ("sft", "export"), "an SFT file"),
    ):
        for name in names:
            kind = get_type_hints(root)[name]
            kind = next(iter(get_args(kind)), kind)
            (section,) = re.findall(rf"^## \[+{name}\]+ of {what}$(.*?)(?=^#|\Z)", text, flags=re.MULTILINE | re.DOTALL)
            for key, documentation in field_docs(kind).items():
                assert f"`{key}`" in section
                assert documentation.replace("|", "\\|").replace("<", "&lt;") in section
    assert f"| `data` | list of string | required | {field_docs(SftConfig)['data']} |" in text
