"""Tool calls while they are sampled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendering_models import assert_joined

from whippletree.protocols import StreamDelta
from whippletree.rendering.layout import Layout
from whippletree.rendering.parsing import TextParser
from whippletree.types import ParsedMessage

OPEN = '<tool_call>{"name": "bash", "arguments": '
INSIDE = '{"command": "echo \'</tool_call>\'"}'


def parser() -> TextParser:
    numbers = iter(range(1000))
    return TextParser(Layout(), thinking=False, calls=True, new_id=lambda: f"call_{next(numbers)}")


def parse(text: str, reason: str = "stop", size: int = 0) -> ParsedMessage:
    """Read the text in pieces of that many characters; 0 reads it at once."""
    reading = parser()
    pieces = [text[place : place + size] for place in range(0, len(text), size)] if size else [text]
    deltas = [delta for piece in pieces for delta in reading.feed(piece)]
    rest, message = reading.finish(reason)
    assert_joined(deltas + rest, message)
    return message


def test_the_name_and_the_arguments_are_told_as_they_come() -> None:
    reading = parser()
    assert reading.feed('I look.<tool_call>\n{"name": "ba') == [StreamDelta(content="I look.")]
    assert reading.feed('sh", "arguments": ') == []
    assert reading.feed("{") == [StreamDelta(tool_index=0, tool_id="call_0", tool_name="bash", arguments="{")]
    assert reading.feed('"command": "l') == [StreamDelta(tool_index=0, arguments='"command": "l')]
    assert reading.feed('s"}') == [StreamDelta(tool_index=0, arguments='s"}')]
    assert reading.feed("}\n</tool_call>") == []
    rest, message = reading.finish("stop")
    assert rest == []
    assert message.tool_calls[0].arguments == '{"command": "ls"}'
    assert (message.content, message.finish_reason, message.malformed) == ("I look.", "tool_calls", "")


def test_arguments_are_held_back_only_from_a_closing_mark_inside_a_string_on() -> None:
    reading = parser()
    reading.feed(OPEN)
    assert reading.feed('{"command": "a </tool') == [
        StreamDelta(tool_index=0, tool_id="call_0", tool_name="bash", arguments='{"command": "a ')
    ]
    assert reading.feed("box> b </tool_call> c") == [StreamDelta(tool_index=0, arguments="</toolbox> b ")]
    assert reading.feed('"') == []
    assert reading.feed("}") == [StreamDelta(tool_index=0, arguments='</tool_call> c"}')]


WELL_FORMED = {
    "plain": (OPEN + '{"command": "ls"}}</tool_call>', '{"command": "ls"}'),
    "white space": ('<tool_call>\n\t { "name" :"bash" , "arguments"\n: {"a":  "ls" } }\n </tool_call>', '{"a":  "ls" }'),
    "arguments first": ('<tool_call>{"arguments": {"command": "ls"}, "name": "bash"}</tool_call>', '{"command": "ls"}'),
    "a key more": ('<tool_call>{"id": 1, "name": "bash", "arguments": {"command": "ls"}}</tool_call>', '{"command": "ls"}'),
    "a key after": (OPEN + '{"command": "ls"}, "note": "</tool_call>"}</tool_call>', '{"command": "ls"}'),
    "as a string": ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>', '{"command": "ls"}'),
    "mark in a string": (OPEN + INSIDE + "}</tool_call>", INSIDE),
    "mark in an early string": (f'<tool_call>{{"arguments": {INSIDE}, "name": "bash"}}</tool_call>', INSIDE),
    "escaped quote": (OPEN + '{"command": "a \\" </tool_call> {"}}</tool_call>', '{"command": "a \\" </tool_call> {"}'),
    "nothing": (OPEN + "{}}</tool_call>", "{}"),
    "name with escapes": ('<tool_call>{"name": "b\\u0061sh", "arguments": {"a": [{"b": 1}]}}</tool_call>', '{"a": [{"b": 1}]}'),
}


@pytest.mark.parametrize("kind", WELL_FORMED)
@pytest.mark.parametrize("size", [0, 1, 3, 7])
def test_every_way_to_write_a_call_is_read(kind: str, size: int) -> None:
    text, arguments = WELL_FORMED[kind]
    message = parse(text + "\n" + text, size=size)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("bash", arguments)] * 2
    assert (message.content, message.malformed, message.finish_reason) == ("", "", "tool_calls")


DEEP = '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"  # deeper than any supported Python lets its readers go
BROKEN = {
    # text after the arguments' beginning: the raw arguments, the content, a word of the reason
    "no quote": ('{"command": "echo oops</tool_call> so', '{"command": "echo oops', " so", "do not end"),
    "no brace": ('{"command": "ls"</tool_call> so', '{"command": "ls"', " so", "not a JSON object"),
    "no last brace": ('{"command": "ls"}\n</tool_call> so', '{"command": "ls"}', " so", "last brace"),
    "a brace more": ('{"command": "ls"}}}</tool_call> so', '{"command": "ls"}}}', " so", "goes on"),
    "junk": ('{"command": "ls"}} ls</tool_call> so', '{"command": "ls"}} ls', " so", "goes on"),
    "two names": ('{}, "name": "x"}</tool_call> so', '{}, "name": "x"}', " so", "two names"),
    "single quotes": ("{'command': 'ls'}}</tool_call> so", "{'command': 'ls'}}", " so", "not a JSON object"),
    "line break in a string": ('{"command": "a\nb"}}</tool_call>', '{"command": "a\nb"}', "", "not a JSON object"),
    "no JSON word": ('{"command": None}}</tool_call>', '{"command": None}', "", "not a JSON object"),
    "no mark": ('{"command": "ls"}}', '{"command": "ls"}', "", "no </tool_call>"),
    "no mark, no brace": ('{"command": "ls"}', '{"command": "ls"}', "", "no </tool_call>"),
    "no end": ('{"command": "l', '{"command": "l', "", "no </tool_call>"),
    "too deep": (DEEP + "}</tool_call>", DEEP, "", "not a JSON object"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("size", [0, 1, 4])
def test_after_the_name_a_malformed_rest_stays_the_calls_arguments(kind: str, size: int) -> None:
    text, arguments, content, why = BROKEN[kind]
    message = parse(OPEN + text, size=size)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("bash", arguments)]
    assert message.content == content
    assert why in message.malformed
    assert message.finish_reason == "tool_calls"


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize(
    ("first", "arguments"),
    [
        ('{"command": "echo oops</tool_call>', '{"command": "echo oops'),
        ('{"command": ls</tool_call>', '{"command": ls'),
        ('{"command": "ls"}}', '{"command": "ls"}'),
        ('{"command": "ls"}\n', '{"command": "ls"}'),
    ],
)
def test_a_good_call_after_a_broken_one_is_read(first: str, arguments: str, size: int) -> None:
    message = parse(OPEN + first + "\n" + OPEN + '{"command": "pwd"}}</tool_call>', size=size)
    assert [call.arguments for call in message.tool_calls] == [arguments, '{"command": "pwd"}']
    assert message.malformed
    assert message.content == ""


@given(value=st.dictionaries(st.text(max_size=5), st.text(max_size=12) | st.integers(), max_size=3), data=st.data())
def test_a_call_that_is_cut_anywhere_keeps_its_arguments_byte_for_byte(value: dict[str, object], data: st.DataObject) -> None:
    arguments = json.dumps(value, ensure_ascii=False)
    cut = data.draw(st.integers(1, len(arguments)))
    for size in (0, 1, 3):
        message = parse(OPEN + arguments[:cut], "length", size)
        assert [(call.name, call.arguments) for call in message.tool_calls] == [("bash", arguments[:cut])]
        assert (message.finish_reason, bool(message.malformed)) == ("length", True)


def test_a_very_long_name_is_read_when_the_call_is_complete() -> None:
    text = f'<tool_call>{{"name": "{"n" * 300}", "arguments": {{}}}}</tool_call>'
    assert parse(text) == parse(text, size=1)
    assert parse(text).tool_calls[0].name == "n" * 300


def test_a_call_that_is_cut_after_a_mark_in_a_string_keeps_all_of_it() -> None:
    text = '{"command": "echo </tool_call> and'
    assert parse(OPEN + text, "length").tool_calls[0].arguments == text
    assert parse(OPEN + text, "abort", 1).tool_calls[0].arguments == text


PIECES = [
    *(OPEN, '<tool_call>{"arguments": ', '{"command": "', "ls", '"}', '", "x": ', "</tool_call>", "<tool_call>", "{", "}", "["),
    *("]", '"', "\\", "\n", " ", ",", ":", "1", "true", '"name": "b"', '"arguments"', "</tool", "é"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=16)


@given(pieces=texts, size=st.integers(1, 6), reason=st.sampled_from(["stop", "length"]))
def test_any_text_in_any_pieces_gives_one_message(pieces: list[str], size: int, reason: str) -> None:
    text = "".join(pieces)
    assert parse(text, reason) == parse(text, reason, size) == parse(text, reason, 1)


@given(pieces=texts)
def test_what_is_in_no_call_is_content(pieces: list[str]) -> None:
    text = "".join(pieces)
    message = parse(text)
    if not message.tool_calls:
        assert message.content == text
    else:
        assert message.content.startswith(text[: text.find("<tool_call>")])
        assert all(call.arguments in text for call in message.tool_calls)
