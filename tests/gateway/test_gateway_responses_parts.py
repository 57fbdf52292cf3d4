"""The small pure parts of the Responses dialect: custom inputs, ids, compaction items."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whippletree.errors import RequestError
from whippletree.gateway.dialects.responses_compaction import seal, unseal
from whippletree.gateway.dialects.responses_custom import CustomInput, wrap
from whippletree.gateway.dialects.responses_ids import call_of_item, call_of_response, is_raw, item_id, response_id

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
HEX = st.text("0123456789abcdef", min_size=1, max_size=24)


def read(arguments, sizes=()):
    """Input text and whether it is raw, of arguments fed in pieces of these sizes, then one character at a time."""
    reader, place, out = CustomInput(), 0, []
    for size in [*sizes, *[1] * len(arguments)]:
        out.append(reader.feed(arguments[place : place + size]))
        place += size
    out.append(reader.finish())
    return "".join(out), reader.raw


@settings(deadline=None)
@given(TEXT, st.booleans(), st.sampled_from(["{}", '{{ "input" :{} }}', '\n{{"input":\t{}}}\r\n']), st.lists(st.integers(1, 9)))
@example("*** Begin Patch\n*** End Patch\n", True, '{{"input": {}}}', [])
@example('a \U0001f40e \\ " / \x00', True, '{{"input":{}}}', [13, 1, 2])
def test_the_input_is_the_text_whatever_the_encoder_and_the_cuts(text, ascii_only, form, sizes):
    encoded = json.dumps(text, ensure_ascii=ascii_only)
    arguments = wrap(text) if form == "{}" else form.format(encoded)
    assert read(arguments, sizes) == (text, False)


@settings(deadline=None)
@given(st.text('{}"input: \\u12aD8dcn', max_size=24), st.lists(st.integers(1, 9)))
@example('{"input": "a\\ud800b"}', [])
@example('{"input":"a","more":1}', [])
def test_the_input_of_any_text_does_not_depend_on_the_cuts_and_is_unicode(arguments, sizes):
    assert read(arguments, sizes) == read(arguments)
    read(arguments)[0].encode()


@pytest.mark.parametrize(
    ("arguments", "text", "raw"),
    [
        ('{"command": "ls"}', '{"command": "ls"}', True),  # of another form from the start
        ("*** Begin Patch", "*** Begin Patch", True),
        ('{"inp', '{"inp', True),  # cut before it is clear
        ("", "", True),
        ('{"input": "hel', "hel", False),  # cut in the text
        ('{"input": "hel\\', "hel\\", False),  # cut in an escape, which stays as it is
        ('{"input": "\\ud83d', "\\ud83d", False),
        ('{"input": "a\\qb"}', 'a\\qb"}', False),  # not JSON from the escape on
        ('{"input": "a\\udc0eb"}', 'a\\udc0eb"}', False),  # half a character
        ('{"input": "a\\ud83d\\u0041"}', 'a\\ud83d\\u0041"}', False),
        ('{"input": "a", "more": 1}', 'a", "more": 1}', False),
        ('{"input": "a"', "a", False),
        ('{"input": "two\nlines"}', "two\nlines", False),  # not JSON, and clear all the same
        (" " * 300 + '{"input": "a"}', " " * 300 + '{"input": "a"}', True),
    ],
)
def test_arguments_of_another_form_are_passed_on_from_there(arguments, text, raw):
    assert read(arguments) == (text, raw)
    assert read(arguments, [len(arguments)]) == (text, raw)


def test_a_large_input_is_read_once_not_over_and_over():
    text = 'x"\\\né' * 40_000
    assert read(wrap(text), [7] * 1000 + [1_000_000]) == (text, False)


@settings(deadline=None)
@given(HEX)
def test_response_ids_are_those_of_calls(name):
    assert call_of_response(response_id(f"c-{name}")) == f"c-{name}"


@pytest.mark.parametrize("name", ["resp_nope", "resp_", "c-5d1f", "resp_5d1f\n", "resp_" + "g" * 24, "../../etc"])
def test_a_foreign_response_id_is_not_found(name):
    with pytest.raises(RequestError) as error:
        call_of_response(name)
    assert error.value.status == 404
    assert repr(name) in str(error.value)


@settings(deadline=None)
@given(HEX, st.integers(0, 999), st.booleans())
def test_item_ids_name_their_call(name, place, raw):
    made = item_id("ctc", f"c-{name}", place, raw=raw)
    assert (call_of_item(made), is_raw(made)) == (f"c-{name}", raw)


@pytest.mark.parametrize("name", [None, "", "msg_0340", "fc_8356d9403ece423781f1068e", "msg_01a2-33_4", "rs_unknown"])
def test_foreign_item_ids_name_no_call(name):
    assert call_of_item(name) == ""
    assert not is_raw(name)


@settings(deadline=None)
@given(TEXT)
def test_a_compaction_item_holds_its_summary(text):
    assert unseal(seal(text)) == text


@pytest.mark.parametrize("content", ["", "opaque==", "gAAAAABo", "d2hpcHBsZXRyZWU6Yy0x", "ü"])
def test_a_foreign_compaction_item_holds_none(content):
    assert unseal(content) is None
