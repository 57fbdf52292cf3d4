"""whippletree/ui/harness_table.py"""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.harnesses import NAMES, load_harness
from whippletree.ui.harness_table import BEGIN, END, renewed, table

PAGE = Path(__file__).parents[2] / "docs" / "harnesses.md"


def test_the_page_has_the_table_of_the_adapters() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run `make docs`"


def test_every_harness_has_a_row_and_its_notes() -> None:
    text = table()
    for name in NAMES:
        harness = load_harness(name)
        assert f"| `{name}` | {harness.version} |" in text
        assert all(note.rstrip(".").replace("<", "&lt;") in text for note in harness.facts.notes)


def test_what_is_around_the_table_stays() -> None:
    assert renewed(f"a\n{BEGIN}\nold\n{END}\nb {END}\n") == f"a\n{BEGIN}\n{table()}\n{END}\nb {END}\n"
    with pytest.raises(ValueError, match="no place for the table"):
        renewed(f"a {END} {BEGIN}")
