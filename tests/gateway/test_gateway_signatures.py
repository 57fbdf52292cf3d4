"""The mark on reasoning."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.dialects.signatures import read, sign


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_what_was_signed_is_read_back(call_id):
    assert read(sign(call_id)) == call_id


@given(st.from_regex(r"\Ac-[0-9a-f]{24}\Z"))
def test_the_mark_of_a_call_survives_clients_that_use_the_other_alphabet(call_id):
    """Google's Python client decodes the mark and encodes it for addresses."""
    assert read(base64.urlsafe_b64encode(base64.b64decode(sign(call_id))).decode()) == call_id


@pytest.mark.parametrize("mark", ["", "skip_thought_signature_validator", "c2ln", "EqQBCgIYAhIM", "?", "é", "d2hpcHBsZXRyZWU="])
def test_a_foreign_mark_reads_as_nothing(mark):
    assert read(mark) == ""


@given(st.text(max_size=30) | st.binary(max_size=30).map(lambda data: base64.b64encode(data).decode()))
def test_any_mark_is_read_without_failing(mark):
    assert isinstance(read(mark), str)
