"""The chat-completions dialect: pure functions, against recordings and the official client's own types."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Trim
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, Message, ParsedMessage, Sampling, ToolCall

DIALECT = ChatDialect()
HEAD = ReplyHead(call_id="c-12", model="policy", created=1700000000)
CALL = Call(
    call_id="c-12", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=7, sampled_tokens=5, finish_reason="stop",
    times=CallTimes(received=0.0), sampling=Sampling(), cached_tokens=3,
)  # fmt: skip


def parse(**body):
    return DIALECT.parse(json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode())


def refusal(**body):
    with pytest.raises(RequestError) as error:
        parse(**body)
    assert error.value.status == 400
    return str(error.value)


@pytest.mark.parametrize("name", ["base", "par", "textmode", "badargs"])
def test_recorded_requests_parse_one_message_to_one(recording, name):
    for exchange in recording(name):
        request = DIALECT.parse(json.dumps(exchange["body"]).encode())
        roles = [message["role"] for message in exchange["body"]["messages"]]
        assert [message.role for message in request.messages] == roles
        assert [tool.name for tool in request.tools] == [tool["function"]["name"] for tool in exchange["body"].get("tools", [])]


def test_the_second_recorded_request_extends_the_first(recording):
    one, two = (DIALECT.parse(json.dumps(exchange["body"]).encode()) for exchange in recording("base")[:2])
    assert two.messages[: len(one.messages)] == one.messages
    reply = DIALECT.read_reply(json.dumps(recording("base")[0]["response"]).encode())
    echoed = two.messages[len(one.messages)]
    assert (echoed.content, echoed.tool_calls) == (reply.content, reply.tool_calls)


def test_forms_that_clients_use():
    request = parse(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}]},
            {"role": "tool", "tool_call_id": "c", "content": "out"},
        ],
        tools=None, stream=None, temperature=None, stop="END", max_completion_tokens=9, tool_choice={"type": "function"},
        response_format={"type": "text"}, parallel_tool_calls=True, metadata={"a": "b"}, logprobs=True, user="me",
    )  # fmt: skip
    assert request.messages == (
        Message(role="system", content="ab"),
        Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c", name="bash", arguments='{"command":"ls"}'),)),
        Message(role="tool", content="out", tool_call_id="c"),
    )
    assert (request.requested.stop, request.requested.max_tokens, request.tool_choice) == (("END",), 9, "required")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"n": 2}, "n is 2"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages[0].role is 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "part of type 'image_url'"),
        ({"messages": [{"role": "user", "content": 3}]}, "$.messages[0].content"),
        ({"response_format": {"type": "json_object"}}, "'json_object' is not supported"),
        ({"tool_choice": "sometimes"}, "tool_choice is 'sometimes'"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] has type 'web_search'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_what_cannot_be_served_is_named(body, says):
    assert says in refusal(**body)


def test_bodies_that_are_no_json_are_refused():
    for body in (b"", b"{", b"[]", b'{"messages": "x"}', b'\xff{"messages": []}'):
        with pytest.raises(RequestError, match="cannot be read"):
            DIALECT.parse(body)


def test_a_retry_has_the_same_digest_and_another_request_has_not():
    body = {"messages": [{"role": "user", "content": "hi"}], "model": "m", "stream": True, "stream_options": {}}
    digest = DIALECT.digest(json.dumps(body).encode())
    whole = {"model": "m", "messages": body["messages"]}
    assert DIALECT.digest(json.dumps(whole).encode()) == digest
    assert DIALECT.digest(json.dumps({**whole, "max_tokens": 3}).encode()) != digest
    assert DIALECT.digest(json.dumps({**whole, "messages": [{"role": "user", "content": "ho"}]}).encode()) != digest


def test_a_trimmed_request_lacks_what_its_base_has_and_still_parses():
    body = json.dumps({"model": "m", "tools": [], "x": 1, "messages": [{"role": "user", "content": str(n)} for n in range(5)]})
    trim = Trim(base="c-1", messages=3, tools=True)
    stored = DIALECT.trim(body.encode(), trim)
    assert [message.content for message in DIALECT.parse(stored).messages] == ["3", "4"]
    assert DIALECT.trimmed(stored) == trim
    assert msgspec.json.decode(stored)["x"] == 1
    assert "tools" not in msgspec.json.decode(stored)
    assert DIALECT.trim(body.encode(), Trim()) == body.encode()
    assert DIALECT.trimmed(body.encode()) == Trim()


CALLS = st.lists(st.tuples(st.text(max_size=6), st.text(max_size=12)), max_size=3)


@settings(max_examples=150)
@given(st.text(max_size=30), st.text(max_size=30), CALLS, st.sampled_from(["stop", "length"]), st.data())
def test_a_streamed_reply_put_together_is_the_whole_reply(content, reasoning, calls, finish, data):
    tool_calls = tuple(ToolCall(id=f"call_{n}", name=name, arguments=text) for n, (name, text) in enumerate(calls))
    message = ParsedMessage(
        content=content, reasoning=reasoning, tool_calls=tool_calls, finish_reason="tool_calls" if calls else finish
    )
    whole = ChatCompletion.model_validate_json(DIALECT.reply(HEAD, CALL, message))
    stream = DIALECT.stream(HEAD, include_usage=True)
    events = b"".join([*(stream.delta(delta) for delta in cut(message, data)), stream.end(CALL, message)])
    assert events.endswith(b"data: [DONE]\n\n")
    chunks = [ChatCompletionChunk.model_validate_json(event[6:]) for event in events.split(b"\n\n")[:-2]]
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {(whole.id, whole.created, whole.model)}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]].count(None) == len(chunks) - 2
    assert put_together(chunks[:-1]) == (
        content,
        reasoning,
        [(call.id, call.function.name, call.function.arguments) for call in whole.choices[0].message.tool_calls or []],
        whole.choices[0].finish_reason,
    )
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == CALL.sampled_tokens


def cut(message, data):
    """Deltas of a turn, its texts cut anywhere."""

    def pieces(text):
        places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True) if text[a:b]]

    deltas = [StreamDelta(reasoning=piece) for piece in pieces(message.reasoning)]
    deltas += [StreamDelta(content=piece) for piece in pieces(message.content)]
    for index, call in enumerate(message.tool_calls):
        deltas.append(StreamDelta(tool_index=index, tool_id=call.id, tool_name=call.name))
        deltas += [StreamDelta(tool_index=index, arguments=piece) for piece in pieces(call.arguments)]
    return deltas


def put_together(chunks):
    """What a client makes of the chunks: content, reasoning, tool calls, finish reason."""
    content, reasoning, calls, finish = "", "", {}, None
    for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
        for piece in delta.tool_calls or []:
            call = calls.setdefault(piece.index, ["", "", ""])
            call[0] += piece.id or ""
            call[1] += piece.function.name or ""
            call[2] += piece.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    return content, reasoning, [tuple(call) for call in calls.values()], finish


@given(st.text(max_size=20), st.text(max_size=20), CALLS)
def test_a_reply_reads_back(content, reasoning, calls):
    tool_calls = tuple(ToolCall(id=f"call_{n}", name=name, arguments=text or "{}") for n, (name, text) in enumerate(calls))
    message = ParsedMessage(
        content=content, reasoning=reasoning, tool_calls=tool_calls, finish_reason="tool_calls" if calls else "stop"
    )
    assert DIALECT.read_reply(DIALECT.reply(HEAD, CALL, message)) == message


def test_an_error_has_openais_form():
    error = msgspec.json.decode(DIALECT.error(RequestError("no", "do so", status=503, code="engine_unavailable")))
    assert error == {"error": {"message": "no (do so)", "type": "server_error", "code": "engine_unavailable", "param": None}}
