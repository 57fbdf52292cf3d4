"""Where a JSON object ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.rendering.scanning import ObjectScanner, Verdict

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=3)


def scan(text: str, pieces: int = 0) -> tuple[Verdict, int]:
    """Read the text in pieces of that many characters; 0 reads it at once."""
    scanner, place = ObjectScanner(), 0
    for end in range(pieces or len(text), len(text) + (pieces or 1), pieces or len(text)):
        verdict, place = scanner.scan(text[:end], place)
        if verdict is not Verdict.MORE:
            return verdict, place
    return Verdict.MORE, place


@given(value=objects, indent=st.sampled_from([None, 1]), after=st.text(max_size=6), pieces=st.integers(1, 5))
def test_the_end_is_the_last_brace(value: object, indent: int | None, after: str, pieces: int) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=pieces % 2 == 0)
    assert scan(text + after) == scan(text + after, pieces) == (Verdict.DONE, len(text))
    for cut in range(1, len(text)):
        assert scan(text[:cut]) == (Verdict.MORE, cut)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "line\nbreak"}',
        '{"a": "\\x"}',
        '{"a": None}',
        '{"a": 1,}',
        '{"a": [1, ],}',
        '{"a": 01.}',
        "{ }",
        '{"\\"": {"b": []}}',
    ],
)
def test_it_is_lenient_with_strings_words_and_commas(text: str) -> None:
    assert scan(text + "</x>") == (Verdict.DONE, len(text))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": "ls"</tool_call>', 10),
        ('{"a": ls</tool_call>', 8),
        ("{'a': 1}", 1),
        ('{"a" 1}', 5),
        ('{"a": 1]', 7),
        ('{"a": [1}', 8),
        ('{"a": "b" "c"}', 10),
        ("{,}", 1),
        ('{"a": 1 2}', 8),
        ('{"a":: 1}', 5),
        ("</tool_call>", 0),
    ],
)
def test_a_character_without_a_place_stops_it(text: str, place: int) -> None:
    for pieces in (0, 1, 2, 3):
        assert scan(text, pieces) == (Verdict.BROKEN, place)


def test_deep_nesting_is_no_problem() -> None:
    text = '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"
    assert scan(text) == (Verdict.DONE, len(text))
