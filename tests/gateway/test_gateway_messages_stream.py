"""Streams of the Messages dialect: the order of events, and that put together they are the whole reply."""

import json

import anthropic
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official import put_together
from readers import events, read_stream, read_whole
from turns import CALL, written

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, signatures
from whippletree.gateway.dialects.messages import MessagesDialect
from whippletree.protocols import StreamDelta
from whippletree.types import ParsedMessage, ToolCall

DIALECT = MessagesDialect()
HEAD = ReplyHead(call_id="c-12", model="policy", created=1700000000, prompt_tokens=7)


def stream(deltas, message, head=HEAD):
    return written(DIALECT, head, deltas, message)


def names(data):
    return [(name, json.loads(text).get("index")) for name, text in events(data)]


def tool(index, **piece):
    return StreamDelta(tool_index=index, **piece)


# A reply's texts cut anywhere: pieces of thinking, then of text, then of calls, two kinds in one delta too.
TURNS = st.tuples(
    st.lists(st.text(max_size=5), max_size=3),
    st.lists(st.text(max_size=5), max_size=3),
    st.lists(st.lists(st.sampled_from(["{", "}", '{"a": 1}', " ", "", '"\\u00e9', "é\u2028\x85"]), max_size=3), max_size=3),
    st.sampled_from(["stop", "length"]),
    st.booleans(),
)


def cut(thoughts, texts, calls, finish, merged):
    deltas = [StreamDelta(reasoning=text) for text in thoughts]
    if merged and deltas and texts:
        deltas[-1] = msgspec.structs.replace(deltas[-1], content=texts[0])
    else:
        merged = False
    deltas += [StreamDelta(content=text) for text in texts[1 if merged else 0 :]]
    for index, pieces in enumerate(calls):
        deltas.append(tool(index, tool_id=f"call_{index}", tool_name="ls"))
        deltas += [tool(index, arguments=piece) for piece in pieces]
    tool_calls = tuple(ToolCall(id=f"call_{n}", name="ls", arguments="".join(pieces)) for n, pieces in enumerate(calls))
    reason = "tool_calls" if calls and finish == "stop" else finish
    message = ParsedMessage(reasoning="".join(thoughts), content="".join(texts), tool_calls=tool_calls, finish_reason=reason)
    return deltas, message


@settings(max_examples=200)
@given(TURNS)
def test_a_streamed_reply_put_together_is_the_whole_reply(turn):
    deltas, message = cut(*turn)
    streamed, whole = (
        read_stream("messages", stream(deltas, message)),
        read_whole("messages", DIALECT.reply(HEAD, CALL, message)),
    )
    assert (streamed.counts, streamed.stop) == (whole.counts, whole.stop)
    assert arguments_filled(streamed.message) == arguments_filled(whole.message)
    assert (streamed.message.content, streamed.message.reasoning) == (message.content, message.reasoning)
    told = [call.arguments for call in streamed.message.tool_calls]
    assert told == [call.arguments if call.arguments.strip() else call.arguments + "{}" for call in message.tool_calls]


def arguments_filled(message):
    calls = tuple(msgspec.structs.replace(call, arguments=call.arguments.strip()) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls)


@settings(max_examples=60, deadline=None)
@given(TURNS, st.integers(1, 7))
def test_the_official_client_reads_the_same_from_stream_and_whole_reply(turn, size):
    deltas, message = cut(*turn)
    if any("INVALID_JSON" in json.loads(DIALECT.reply(HEAD, CALL, message)).__repr__() for _ in message.tool_calls):
        message = msgspec.structs.replace(message, tool_calls=())  # the client raises ValueError on such a stream, by design
        deltas = [delta for delta in deltas if delta.tool_index < 0]
    whole = anthropic.types.Message.model_validate_json(DIALECT.reply(HEAD, CALL, message))
    assert put_together(stream(deltas, message), size) == whole


def test_blocks_open_and_close_one_after_the_other():
    deltas = [StreamDelta(reasoning="hm"), StreamDelta(content="look"), tool(0, tool_id="c1", tool_name="ls", arguments="{}"),
              tool(1, tool_id="c2", tool_name="ls"), StreamDelta(content="after")]  # fmt: skip
    data = stream(deltas, ParsedMessage(finish_reason="tool_calls"))
    assert names(data) == [
        ("message_start", None),
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0), ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_stop", 1),
        ("content_block_start", 2), ("content_block_delta", 2), ("content_block_stop", 2),
        ("content_block_start", 3), ("content_block_delta", 3), ("content_block_stop", 3),
        ("content_block_start", 4), ("content_block_delta", 4), ("content_block_stop", 4),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    told = [json.loads(text) for name, text in events(data)]
    assert told[3]["delta"] == {"type": "signature_delta", "signature": signatures.sign("c-12")}
    assert told[12]["delta"] == {"type": "input_json_delta", "partial_json": "{}"}


def test_what_opens_a_stream_comes_with_its_first_delta():
    writer = DIALECT.stream(HEAD)
    first = writer.delta(StreamDelta(content="a"))
    assert [name for name, _ in events(first)] == ["message_start", "content_block_start", "content_block_delta"]
    start = json.loads(events(first)[0][1])["message"]
    assert start == {
        "type": "message", "id": "msg_12", "role": "assistant", "model": "policy", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 0, "cache_read_input_tokens": 0,
                                         "cache_creation_input_tokens": 0, "service_tier": "standard"}}  # fmt: skip
    assert [name for name, _ in events(writer.delta(StreamDelta(content="b")))] == ["content_block_delta"]


def test_a_stream_without_deltas_is_opened_and_ended():
    data = stream([], ParsedMessage())
    assert [name for name, _ in names(data)] == ["message_start", "message_delta", "message_stop"]
    assert read_stream("messages", data).message == ParsedMessage()


def test_the_end_has_the_final_counts_and_the_reason():
    data = stream([StreamDelta(content="x")], ParsedMessage(content="x", stop_sequence="END"))
    (ending,) = [json.loads(text) for name, text in events(data) if name == "message_delta"]
    assert ending["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert ending["usage"] == {
        "input_tokens": 4, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0}  # fmt: skip


def test_a_ping_may_stand_anywhere():
    writer = DIALECT.stream(HEAD)
    message = ParsedMessage(content="ab")
    pieces = [writer.delta(StreamDelta(content="a")), writer.delta(StreamDelta(content="b")), writer.end(CALL, message)]
    data = DIALECT.keepalive + DIALECT.keepalive.join(pieces)
    assert read_stream("messages", data).message == message
    assert put_together(data, 3).content[0].text == "ab"


def test_an_error_ends_a_stream_without_an_end_mark():
    writer = DIALECT.stream(HEAD)
    data = writer.delta(StreamDelta(content="a")) + writer.error(RequestError("the engine died", status=503))
    assert names(data)[-1] == ("error", None)
    with pytest.raises(anthropic.APIStatusError, match="the engine died"):
        put_together(data, 5)
