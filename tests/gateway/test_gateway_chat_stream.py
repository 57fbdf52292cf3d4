"""Chat-completions replies, whole and streamed, as the official client's own types read them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from readers import read_stream, read_whole
from turns import CALL, by_character, cut, head, turns, written

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, TokenText
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.dialects.events import one_line
from whippletree.protocols import StreamDelta
from whippletree.types import ParsedMessage, ToolCall, ToolSpec

DIALECT = ChatDialect()
PATCH = ParsedMessage(
    tool_calls=(ToolCall(id="call_1", name="apply_patch", arguments='{"input": "say \\"\\u00e9\\"\\n"}'),),
    finish_reason="tool_calls",
)


def chunks_of(data):
    return [ChatCompletionChunk.model_validate_json(event[6:]) for event in data.split(b"\n\n")[:-2]]


@settings(max_examples=150)
@given(turns(arguments=st.text(max_size=12)), st.data())
def test_a_streamed_reply_put_together_is_the_whole_reply(message, data):
    whole = DIALECT.reply(head(), CALL, message)
    stream = written(DIALECT, head(), cut(message, data), message)
    assert stream.endswith(b"data: [DONE]\n\n")
    assert read_stream("chat", stream) == read_whole("chat", whole)
    chunks, reply = chunks_of(stream), ChatCompletion.model_validate_json(whole)
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {(reply.id, reply.created, reply.model)}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]].count(None) == len(chunks) - 2
    assert chunks[-1].usage == reply.usage
    assert reply.usage.completion_tokens == CALL.sampled_tokens


@given(turns(arguments=st.text(min_size=1, max_size=12)))
def test_a_reply_that_is_sent_back_parses_to_what_was_sampled(message):
    reply = json.loads(DIALECT.reply(head(), CALL, message))
    body = {"messages": [reply["choices"][0]["message"]]}
    (echoed,) = DIALECT.parse(json.dumps(body).encode(), Target()).messages
    assert (echoed.content, echoed.reasoning, echoed.tool_calls) == (message.content, message.reasoning, message.tool_calls)


@given(turns(texts=st.text(alphabet="a\u0085\u2028\u2029\n\r\x0b\x0c\x1c\x1e", max_size=9)), st.data())
def test_every_event_is_one_line_for_every_reader_of_lines(message, data):
    stream = written(DIALECT, head(), cut(message, data), message)
    lines = stream.decode().splitlines()
    assert all(line.startswith("data: ") for line in lines[::2])
    assert not any(lines[1::2])
    assert read_stream("chat", stream).message.content == message.content


def test_one_line_escapes_only_what_breaks_lines():
    text = json.dumps({"é\u2028": "\u0085\u2029 🙂"}, ensure_ascii=False).encode()
    assert one_line(text) == '{"é\\u2028": "\\u0085\\u2029 🙂"}'.encode()
    assert one_line(b"{}") == b"{}"


def test_usage_and_logprobs_come_only_where_they_were_asked_for():
    message, tokens = ParsedMessage(content="hé"), (TokenText(text="h", logprob=-0.5), TokenText(text="é", logprob=-0.25))
    plain = ReplyHead(call_id="c-12", model="policy", created=1)
    stream = written(DIALECT, plain, by_character(message), message, tokens)
    assert b"usage" not in stream
    assert b"logprobs" not in stream
    assert json.loads(DIALECT.reply(plain, CALL, message, tokens))["choices"][0]["logprobs"] is None
    asking = head(wants_logprobs=True)
    whole = ChatCompletion.model_validate_json(DIALECT.reply(asking, CALL, message, tokens)).choices[0].logprobs
    chunks = chunks_of(written(DIALECT, asking, by_character(message), message, tokens))
    assert [(item.token, item.logprob, item.bytes) for item in whole.content] == [
        ("h", -0.5, [104]),
        ("é", -0.25, [0xC3, 0xA9]),
    ]
    assert chunks[-3].choices[0].logprobs.content == whole.content
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_free_text_call_is_written_as_free_text():
    offered = head(tools=(ToolSpec(name="apply_patch", kind="custom"),))
    call = ChatCompletion.model_validate_json(DIALECT.reply(offered, CALL, PATCH)).choices[0].message.tool_calls[0]
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "apply_patch", 'say "é"\n')
    events = written(DIALECT, offered, by_character(PATCH), PATCH).split(b"\n\n")
    pieces = [json.loads(event[6:])["choices"][0]["delta"].get("tool_calls") for event in events[:-3]]
    assert [piece for piece in pieces if piece] == [
        [{"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "apply_patch", "input": 'say "é"\n'}}]
    ]


def test_free_text_that_is_no_object_stays_as_it_was_sampled():
    offered = head(tools=(ToolSpec(name="apply_patch", kind="custom"),))
    cut_off = ParsedMessage(
        tool_calls=(ToolCall(id="c", name="apply_patch", arguments='{"input": "sa'),), finish_reason="length"
    )
    choice = json.loads(DIALECT.reply(offered, CALL, cut_off))["choices"][0]
    assert choice["message"]["tool_calls"][0]["custom"]["input"] == '{"input": "sa'
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("arguments", ["", '{"a": 1}'])
def test_old_functions_get_the_old_reply(arguments):
    offered = head(tools=(ToolSpec(name="bash", kind="legacy"),))
    message = ParsedMessage(tool_calls=(ToolCall(id="c", name="bash", arguments=arguments),), finish_reason="tool_calls")
    choice = ChatCompletion.model_validate_json(DIALECT.reply(offered, CALL, message)).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
    chunks = chunks_of(written(DIALECT, offered, by_character(message), message))
    told = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices and chunk.choices[0].delta.function_call]
    assert "".join(piece.name or "" for piece in told) == choice.message.function_call.name == "bash"
    assert "".join(piece.arguments or "" for piece in told) == choice.message.function_call.arguments == (arguments or "{}")


def test_a_delta_that_says_nothing_is_no_event():
    writer = DIALECT.stream(head())
    assert b'"role":"assistant"' in writer.delta(StreamDelta())
    assert writer.delta(StreamDelta()) == b""


def test_an_error_in_a_stream_has_no_end_mark():
    writer = DIALECT.stream(head())
    events = writer.delta(StreamDelta(content="a")) + writer.error(RequestError("gone", status=502, code="engine_error"))
    assert json.loads(events.split(b"\n\n")[1][6:])["error"]["code"] == "engine_error"
    assert b"[DONE]" not in events
