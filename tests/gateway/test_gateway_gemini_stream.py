"""Gemini's replies, whole and streamed, as the official client's own types read them."""

import json

import msgspec
import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import read_stream, read_whole
from turns import CALL, OBJECTS, by_character, cut, head, turns, written

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target, TokenText, signatures
from whippletree.gateway.dialects.gemini import GeminiDialect
from whippletree.protocols import StreamDelta
from whippletree.types import ParsedMessage, ToolCall

DIALECT = GeminiDialect()
MARK = signatures.sign("c-12")


def parts_of(data):
    """Every part of a stream of events, in order."""
    events = [json.loads(event[6:]) for event in data.decode().split("\r\n\r\n")[:-1]]
    return [part for event in events for part in event["candidates"][0]["content"]["parts"]]


def compact(message):
    """Arguments on one line, as they are written."""
    calls = [
        msgspec.structs.replace(call, arguments=msgspec.json.format(call.arguments, indent=-1)) for call in message.tool_calls
    ]
    return msgspec.structs.replace(message, tool_calls=tuple(calls))


def values(message):
    """The calls with their arguments as values."""
    return [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls]


@settings(max_examples=150)
@given(turns(), st.booleans(), st.data())
def test_a_streamed_reply_put_together_is_the_whole_reply(message, sse, data):
    whole = DIALECT.reply(head(sse=sse), CALL, message)
    writer = DIALECT.stream(head(sse=sse))
    assert writer.content_type == ("text/event-stream" if sse else "application/json")
    stream = written(DIALECT, head(sse=sse), cut(message, data), message)
    streamed, read = read_stream("gemini", stream), read_whole("gemini", whole)
    assert (streamed.counts, streamed.stop, values(streamed.message)) == (read.counts, read.stop, values(read.message))
    assert (streamed.message.content, streamed.message.reasoning) == (message.content, message.reasoning)
    assert read.message == compact(message)
    reply = types.GenerateContentResponse.model_validate_json(whole)
    assert reply.usage_metadata.candidates_token_count == CALL.sampled_tokens
    assert (reply.response_id, reply.model_version) == ("12", "policy")
    assert (reply.text or "") == message.content


@given(turns(), st.booleans())
def test_a_reply_that_is_sent_back_parses_to_what_was_sampled(message, thoughts_are_dropped):
    content = json.loads(DIALECT.reply(head(), CALL, message))["candidates"][0]["content"]
    if thoughts_are_dropped:
        content["parts"] = [part for part in content["parts"] if not part.get("thought")]
    body = {"contents": [{"parts": [{"text": "go"}]}, content]}
    _, echoed = DIALECT.parse(json.dumps(body).encode(), Target()).messages
    assert (echoed.content, values(echoed)) == (message.content, values(message))
    if not thoughts_are_dropped:
        assert echoed.reasoning == message.reasoning
    elif message.tool_calls or (message.reasoning and message.content):
        assert echoed.signature == "c-12"


@given(turns(), st.data())
def test_the_chunks_of_a_stream_sent_back_one_by_one_are_the_same_turn(message, data):
    """Google's clients keep every chunk as a content of its own."""
    parts = parts_of(written(DIALECT, head(), cut(message, data), message))
    contents = [{"parts": [{"text": "go"}]}, *({"role": "model", "parts": [part]} for part in parts)]
    _, echoed = DIALECT.parse(json.dumps({"contents": contents}).encode(), Target()).messages
    assert (echoed.content, echoed.reasoning) == (message.content, message.reasoning)
    assert values(echoed) == values(message)
    assert echoed.signature == ("c-12" if message.reasoning or message.tool_calls else "")


def test_text_is_written_as_it_comes_and_a_call_when_the_next_part_begins():
    message = ParsedMessage(
        content="ab",
        tool_calls=(ToolCall(id="c0", name="x", arguments='{"n":1}'), ToolCall(id="c1", name="y", arguments="{}")),
        finish_reason="tool_calls",
    )
    writer = DIALECT.stream(head())
    events = [writer.delta(delta) for delta in by_character(message)]
    assert [bool(event) for event in events] == [True, True, *[False] * 8, True, *[False] * 2]
    first = parts_of(events[10])
    assert first == [{"functionCall": {"id": "c0", "name": "x", "args": {"n": 1}}, "thoughtSignature": MARK}]
    assert parts_of(writer.end(CALL, message)) == [{"functionCall": {"id": "c1", "name": "y", "args": {}}}]


@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_the_mark_is_on_the_first_call_else_on_the_last_part_of_a_reply_with_thoughts(reasoning):
    text = ParsedMessage(content="ab", reasoning=reasoning)
    whole = json.loads(DIALECT.reply(head(), CALL, text))["candidates"][0]["content"]["parts"]
    streamed = parts_of(written(DIALECT, head(), by_character(text), text))
    assert [part.get("thoughtSignature") for part in whole] == ([None, MARK] if reasoning else [None])
    assert [part.get("thoughtSignature") for part in streamed][-1] == (MARK if reasoning else None)
    calls = msgspec.structs.replace(text, tool_calls=(ToolCall(id="c", name="x", arguments=""),) * 2)
    whole = json.loads(DIALECT.reply(head(), CALL, calls))["candidates"][0]["content"]["parts"]
    streamed = parts_of(written(DIALECT, head(), by_character(calls), calls))
    for parts in (whole, streamed):
        assert [part.get("thoughtSignature") for part in parts if "functionCall" in part] == [MARK, None]
        assert not any(part.get("thoughtSignature") for part in parts if "functionCall" not in part)


@pytest.mark.parametrize("arguments", ['{"command": "l', "[1]", "3", '{"a": 1} x'])
@pytest.mark.parametrize(("finish", "told"), [("tool_calls", "MALFORMED_FUNCTION_CALL"), ("length", "MAX_TOKENS")])
def test_arguments_that_are_no_object_are_told_and_not_written(arguments, finish, told):
    message = ParsedMessage(
        content="so",
        tool_calls=(ToolCall(id="c0", name="ls", arguments="{}"), ToolCall(id="c1", name="bash", arguments=arguments)),
        finish_reason=finish,
        malformed="the call is not readable",
    )
    whole = DIALECT.reply(head(), CALL, message)
    candidate = json.loads(whole)["candidates"][0]
    assert candidate["finishReason"] == told
    assert candidate["finishMessage"] == f"Malformed function call: bash({arguments})"
    assert [part["functionCall"]["name"] for part in candidate["content"]["parts"] if "functionCall" in part] == ["ls"]
    assert read_stream("gemini", written(DIALECT, head(), by_character(message), message)) == read_whole("gemini", whole)
    assert types.GenerateContentResponse.model_validate_json(whole).candidates[0].finish_reason == told


def test_arguments_keep_their_numbers_and_escapes_and_fit_on_a_line():
    message = ParsedMessage(
        tool_calls=(ToolCall(id="c", name="x", arguments='{\n "a": 1.50,\n "b": "\\u00e9\\n"}'),), finish_reason="tool_calls"
    )
    assert b'{"a":1.50,"b":"\\u00e9\\n"}' in DIALECT.reply(head(), CALL, message)
    stream = written(DIALECT, head(), by_character(message), message)
    assert stream.count(b"\n") == 2
    assert read_stream("gemini", stream).message.tool_calls[0].arguments == '{"a":1.50,"b":"\\u00e9\\n"}'


def test_a_turn_that_says_nothing_is_an_empty_text():
    candidate = json.loads(DIALECT.reply(head(), CALL, ParsedMessage()))["candidates"][0]
    assert (candidate["content"], candidate["finishReason"]) == ({"parts": [{"text": ""}], "role": "model"}, "STOP")
    assert parts_of(written(DIALECT, head(), [], ParsedMessage())) == [{"text": ""}]


def test_logprobs_come_only_where_they_were_asked_for():
    message, tokens = ParsedMessage(content="hé"), (TokenText(text="h", logprob=-0.5), TokenText(text="é", logprob=-0.25))
    assert b"ogprobs" not in DIALECT.reply(head(), CALL, message, tokens)
    assert b"ogprobs" not in written(DIALECT, head(), [], message, tokens)
    asking = head(wants_logprobs=True)
    candidate = types.GenerateContentResponse.model_validate_json(DIALECT.reply(asking, CALL, message, tokens)).candidates[0]
    assert [(token.token, token.log_probability) for token in candidate.logprobs_result.chosen_candidates] == [
        ("h", -0.5),
        ("é", -0.25),
    ]
    assert candidate.avg_logprobs == -0.375
    assert b'"logprobsResult"' in written(DIALECT, asking, [], message, tokens)


@given(turns(texts=st.text(alphabet="a\u0085\u2028\u2029\n\r\x0b\x0c\x1c", max_size=9), arguments=OBJECTS), st.data())
def test_every_event_is_one_line_for_every_reader_of_lines(message, data):
    stream = written(DIALECT, head(), cut(message, data), message)
    lines = stream.decode().splitlines()
    assert all(line.startswith("data: ") for line in lines[::2])
    assert not any(lines[1::2])


def test_an_error_breaks_a_stream_for_every_kind_of_client():
    error = RequestError("gone", status=502, code="engine_error")
    body = DIALECT.error(error)
    writer = DIALECT.stream(head())
    events = writer.delta(StreamDelta(content="a")) + writer.error(error)
    assert events.endswith(b"\r\n\r\ndata: " + body + b"\r\n\r\n" + body)
    growing = DIALECT.stream(head(sse=False))
    listed = growing.delta(StreamDelta(content="a")) + growing.error(error)
    assert json.loads(listed)[1] == json.loads(body)
    assert json.loads(DIALECT.stream(head(sse=False)).error(error)) == [json.loads(body)]


def test_blank_lines_may_come_anywhere_in_a_list():
    message = ParsedMessage(content="ab")
    writer = DIALECT.stream(head(sse=False))
    pieces = [*(writer.delta(delta) for delta in by_character(message)), writer.end(CALL, message)]
    listed = DIALECT.keepalive + b"".join(piece + DIALECT.keepalive for piece in pieces)
    assert read_stream("gemini", listed.strip()).message == message
