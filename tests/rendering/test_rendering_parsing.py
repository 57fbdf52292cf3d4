"""Parsing of sampled turns."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendering_models import assert_joined, read_turn

from whippletree.protocols import StreamDelta
from whippletree.rendering import ChatRenderer
from whippletree.rendering.layout import Layout
from whippletree.rendering.parsing import TextParser
from whippletree.types import ParsedMessage, ToolSpec

BASH = ToolSpec(name="bash")
CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
PARTS = st.sampled_from(
    [
        CALL,
        '<tool_call>\n{"name": "bash", "arguments": {"command":  "é🙂"}}\n</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "echo \\"</tool_call>\\""}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "oops</tool_call>',
        "<tool_call>",
        "</tool_call>",
        "<tool_",
        "<think>",
        "</think>",
        "\n",
        "\n\n",
        " ",
        '"',
        "text",
        "é",
    ]
)
LAYOUTS = [
    Layout(),
    Layout(after_think_open="\n", before_think_close="\n", after_think_close="\n\n", before_call="\n"),
    Layout(opens_thinking=True, before_think_close="\n", after_think_close="\n\n", before_call="\n\n"),
]


def parse(text: str, pieces: list[str] | None = None, layout: Layout | None = None, reason: str = "stop") -> ParsedMessage:
    """Parse and check on the way that the deltas, joined, are the message."""
    numbers = iter(range(1000))
    parser = TextParser(layout or Layout(), thinking=True, calls=True, new_id=lambda: f"call_{next(numbers)}")
    deltas = [delta for piece in pieces or [text] for delta in parser.feed(piece)]
    rest, message = parser.finish(reason)
    assert_joined(deltas + rest, message)
    return message


@given(parts=st.lists(PARTS, max_size=8), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_any_split_gives_the_same_deltas_and_message(parts: list[str], layout: Layout, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(text, pieces, layout) == parse(text, list(text), layout) == parse(text, layout=layout)


@given(parts=st.lists(PARTS, max_size=8))
def test_nothing_sampled_is_lost(parts: list[str]) -> None:
    """Every visible character is in the thinking, the content or a call."""
    text = "".join(parts)
    message = parse(text)
    shown = message.content + message.reasoning + "".join(call.name + call.arguments for call in message.tool_calls)
    for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "', '", "arguments": ', "}", '"'):
        text, shown = text.replace(mark, ""), shown.replace(mark, "")
    assert sorted("".join(shown.split())) == sorted("".join(text.split()))


@given(data=st.data(), sampled=st.lists(st.integers(0, 426), max_size=30))
def test_ids_split_anywhere_give_the_same_message(
    renderer: Callable[..., ChatRenderer], data: st.DataObject, sampled: list[int]
) -> None:
    loaded = renderer("tiny")
    cut = data.draw(st.integers(0, len(sampled)))
    one, other = loaded.parser([BASH]), loaded.parser([BASH])
    first = one.feed(sampled[:cut]) + one.feed(sampled[cut:])
    second = [delta for index in sampled for delta in other.feed([index])]
    rest_one, message = one.finish("length")
    rest_other, same = other.finish("length")
    assert_joined(first + rest_one, message)
    assert_joined(second + rest_other, same)
    assert (message.content, message.malformed) == (same.content, same.malformed)


def test_thinking_content_and_call_are_told_apart() -> None:
    layout = LAYOUTS[1]
    message = parse(f"<think>\nlook first\n</think>\n\nI look.\n{CALL}", layout=layout)
    assert (message.reasoning, message.content) == ("look first", "I look.")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("bash", '{"command": "ls"}')]
    assert (message.finish_reason, message.malformed) == ("tool_calls", "")


def test_a_turn_whose_prompt_opened_the_thinking_starts_inside_it() -> None:
    message = parse("hm\n</think>\n\nyes", layout=LAYOUTS[2])
    assert (message.reasoning, message.content) == ("hm", "yes")


def test_thinking_that_never_ends_is_thinking() -> None:
    assert parse("<think>on and on", reason="length").reasoning == "on and on"


def test_a_thinking_mark_later_in_the_text_is_text() -> None:
    assert parse("I say <think>no</think>").content == "I say <think>no</think>"


def test_arguments_are_the_sampled_text() -> None:
    odd = '{ "command":"echo \\u00e9  🙂" ,"n": 1.0}'
    message = parse(f'<tool_call>\n {{"name":"bash","arguments":{odd}}} \n</tool_call>')
    assert message.tool_calls[0].arguments == odd


def test_a_closing_mark_inside_a_string_does_not_end_the_call() -> None:
    command = "echo '</tool_call>'"
    message = parse(f'<tool_call>{{"name": "bash", "arguments": {json.dumps({"command": command})}}}</tool_call>')
    assert json.loads(message.tool_calls[0].arguments) == {"command": command}
    assert message.malformed == ""


def test_several_calls_in_one_turn_have_their_own_ids() -> None:
    parser = TextParser(Layout(), thinking=False, calls=True)
    parser.feed(f"{CALL}\n{CALL}")
    message = parser.finish("stop")[1]
    assert message.content == ""
    assert len({call.id for call in message.tool_calls}) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', "not a JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "`name`"),
        ('<tool_call>{"name": "bash"}</tool_call>', "`arguments`"),
        ("<tool_call>ls</tool_call>", "malformed"),
        ('<tool_call>{"name": "bash", "argum', "no </tool_call>"),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "no name"),
        ('<tool_call>{"arguments": {"command": "echo oops</tool_call>', "truncated"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not readable"),
    ],
)
def test_a_call_without_a_readable_name_stays_in_the_content_with_a_reason(text: str, why: str) -> None:
    message = parse(f"so: {text}")
    assert message.content == f"so: {text}"
    assert why in message.malformed
    assert (message.tool_calls, message.finish_reason) == ((), "stop")


def test_a_good_call_after_a_malformed_one_counts() -> None:
    message = parse(f"<tool_call>ls</tool_call>{CALL}")
    assert message.content == "<tool_call>ls</tool_call>"
    assert len(message.tool_calls) == 1
    assert (message.finish_reason, bool(message.malformed)) == ("tool_calls", True)


@pytest.mark.parametrize("reason", ["length", "abort"])
def test_a_cut_turn_keeps_the_engines_reason(reason: str) -> None:
    assert parse(CALL, reason=reason).finish_reason == reason


def test_text_that_may_become_a_mark_is_held_back_and_the_rest_is_not() -> None:
    parser = TextParser(LAYOUTS[1], thinking=True, calls=True)
    assert parser.feed("done <tool") == [StreamDelta(content="done ")]
    assert parser.feed("box") == [StreamDelta(content="<toolbox")]
    assert parser.feed(" a\n") == [StreamDelta(content=" a")]
    assert parser.feed("b") == [StreamDelta(content="\nb")]


def test_without_offered_tools_marks_are_content(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("tiny")
    parser = loaded.parser([])
    parser.feed(loaded.codec.encode(CALL + "<|im_end|>"))
    assert parser.finish("stop")[1] == ParsedMessage(content=CALL)


def test_only_the_token_that_ends_the_turn_is_left_out(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("tiny")
    parser = loaded.parser([BASH])
    deltas = parser.feed(loaded.codec.encode("a<|im_end|>"))
    assert [delta.content for delta in deltas] == ["a"]
    parser.feed(loaded.codec.encode("b<|im_end|>"))
    assert parser.finish("stop")[1].content == "a<|im_end|>b"


@given(parts=st.lists(st.sampled_from(["a", "STOP", "ST", "OP", "<think>", "</think>", CALL, "<tool_call>", "\n"]), max_size=8))
def test_nothing_after_a_stop_string_is_in_the_message_for_any_split(parts: list[str]) -> None:
    text = "".join(parts)
    whole = stopped(text, [text])
    assert whole == stopped(text, list(text)) == stopped(text, [text[place : place + 3] for place in range(0, len(text), 3)])
    if whole.stop_sequence:
        assert whole.finish_reason in ("stop", "tool_calls")
    elif not whole.tool_calls:
        assert "STOP" not in whole.content


def stopped(text: str, pieces: list[str]) -> ParsedMessage:
    numbers = iter(range(1000))
    parser = TextParser(Layout(), thinking=True, calls=True, stops=["STOP"], new_id=lambda: f"call_{next(numbers)}")
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    rest, message = parser.finish("abort")
    assert_joined(deltas + rest, message)
    assert parser.stopped == message.stop_sequence
    return message


def test_a_stop_string_over_several_tokens_ends_the_turn(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("tiny")
    parser = loaded.parser([BASH], ["Observation:", "\n\n\n"])
    deltas = []
    for index in loaded.codec.encode("I look. Observation: 17<|im_end|>"):
        deltas += parser.feed([index])
        if parser.stopped:
            break
    assert parser.stopped == "Observation:"
    assert parser.feed(loaded.codec.encode(" more")) == []
    rest, message = parser.finish("abort")
    assert_joined(deltas + rest, message)
    assert message == ParsedMessage(content="I look. ", finish_reason="stop", stop_sequence="Observation:")


def test_stop_strings_inside_thinking_and_calls_are_no_stops(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("thinking")
    text = '<think>STOP</think>ok\n<tool_call>\n{"name": "bash", "arguments": {"command": "STOP"}}\n</tool_call><|im_end|>'
    message = read_turn(loaded, loaded.codec.encode(text), [BASH], stops=["STOP"])
    assert (message.reasoning, message.content, message.stop_sequence) == ("STOP", "ok", "")
    assert message.tool_calls[0].arguments == '{"command": "STOP"}'


def test_a_call_before_a_stop_string_is_still_to_be_answered() -> None:
    message = stopped(CALL + "so STOP", [CALL + "so STOP"])
    assert (message.finish_reason, message.stop_sequence, message.content) == ("tool_calls", "STOP", "so ")


@pytest.mark.parametrize("cut", [False, True])
def test_the_tokens_of_thinking_are_counted_with_their_marks(renderer: Callable[..., ChatRenderer], cut: bool) -> None:
    loaded = renderer("thinking")
    thought = loaded.codec.encode("<think>\nI look at é🙂 first" + ("" if cut else "\n</think>"))
    rest = [] if cut else loaded.codec.encode("\n\nthe answer")
    parser = loaded.parser([])
    for index in [*thought, *rest]:
        parser.feed([index])
    _, message = parser.finish("length" if cut else "stop")
    assert message.reasoning and message.reasoning_tokens == len(thought)


def test_a_turn_without_thinking_counts_none(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("thinking")
    parser = loaded.parser([])
    parser.feed(loaded.codec.encode("the answer"))
    assert parser.finish("stop")[1].reasoning_tokens == 0
