"""The spelling of arguments that come as values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.dialects.arguments import respelled, spelled

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_the_value_stays_and_the_spelling_is_pythons(value):
    text = json.dumps(value, ensure_ascii=False)
    assert respelled(text.encode()) == spelled(value) == text
    assert json.loads(respelled(json.dumps(value, separators=(",", ":")).encode())) == value


@pytest.mark.parametrize("text", ['{"a": 1e999}', '{"a": [1, -1e999]}'])
def test_numbers_out_of_range_stay_as_they_were_written(text):
    assert respelled(text.encode()) == text
