"""What every dialect that is served keeps: streams equal whole replies, and bytes may come in any pieces."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import read_stream, read_whole
from recorded import FOLDERS, exchanges
from turns import CALL, OBJECTS, cut, head, turns, written

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import mint
from whippletree.protocols import StreamDelta

ANSWER = '<think>hm</think>Grüße 🙂\u2028 I look.<tool_call>{"name": "%s", "arguments": {"command": "é"}}</tool_call>'
NAMES = sorted(DIALECTS)
SMALL = {
    "chat": ("openai-agents.chat", "/chat/completions"),
    "gemini": ("pi.gemini", "GenerateContent"),
    "messages": ("pi.echomsg", "/v1/messages"),
    "responses": ("openai-agents.stream", "/v1/responses"),
}


def values(reading):
    """A reading with the arguments of its calls as values: some dialects send objects, not their text."""
    calls = [(call.name, json.loads(call.arguments)) for call in reading.message.tool_calls]
    message = reading.message
    return message.content, message.reasoning, calls, message.finish_reason, reading.counts, reading.stop


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100)
@given(message=turns(), data=st.data())
def test_a_streamed_reply_put_together_is_the_whole_reply(name, message, data):
    dialect = DIALECTS[name]
    whole = read_whole(name, dialect.reply(head(), CALL, message))
    streamed = read_stream(name, written(dialect, head(), cut(message, data), message))
    assert values(streamed) == values(whole)
    assert (whole.message.content, whole.message.reasoning) == (message.content, message.reasoning)
    assert [(call.id, call.name) for call in streamed.message.tool_calls] == [(c.id, c.name) for c in message.tool_calls]
    assert whole.counts == (CALL.prompt_tokens, CALL.cached_tokens, CALL.sampled_tokens)


@pytest.mark.parametrize("name", NAMES)
@given(message=turns(arguments=OBJECTS))
def test_the_same_turn_makes_the_same_bytes(name, message):
    """So a reply can be made again from the record."""
    dialect = DIALECTS[name]
    assert dialect.reply(head(), CALL, message) == dialect.reply(head(), CALL, message)


@pytest.mark.parametrize("name", NAMES)
def test_an_error_in_a_stream_says_why_and_is_no_end(name):
    writer = DIALECTS[name].stream(head())
    data = writer.delta(StreamDelta(content="a")) + writer.error(RequestError("gone for good", status=502, code="engine_error"))
    assert b"gone for good" in data
    with pytest.raises((AssertionError, KeyError, ValueError)):
        read_stream(name, data)


@pytest.mark.parametrize("name", NAMES)
@given(body=st.binary(max_size=60) | st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["messages", "contents", "input", "parts", "role", "content", "text", "model", "tools"]), x)).map(
    lambda value: json.dumps(value).encode()))  # fmt: skip
def test_a_body_is_read_or_refused_and_nothing_else(name, body):
    for read in (DIALECTS[name].parse, DIALECTS[name].parse_count):
        try:
            request = read(body, Target())
        except RequestError as error:
            assert 400 <= error.status < 500
        else:
            assert request.messages


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_request_and_its_reply_byte_by_byte_over_a_socket(make_world, name, stream):
    recording, part = SMALL[name]
    exchange = exchanges(FOLDERS[0] / f"{recording}.jsonl.gz", part)[0]
    body, path = exchange["body"], str(exchange["path"])
    if name == "gemini":
        path = path.rpartition(":")[0] + (":streamGenerateContent?alt=sse" if stream else ":generateContent")
    else:
        body = {**body, "stream": stream}
    request = DIALECTS[name].parse(json.dumps(body).encode(), Target())
    answer = ANSWER % request.tools[0].name
    async with make_world(lambda prompt: answer, context=1 << 16) as world:
        first, second = [await byte_by_byte(world, path, json.dumps(body).encode(), rollout) for rollout in ("r0", "r1")]
        read = read_stream if stream else read_whole
        content, reasoning, calls, *_ = values(read(name, first))
        assert (content, reasoning) == ("Grüße 🙂\u2028 I look.", "hm")
        assert calls == [(request.tools[0].name, {"command": "é"})]
        assert values(read(name, second))[:4] == values(read(name, first))[:4]
        assert [(call.dialect, call.streamed, call.error) for call in world.calls()] == [(name, stream, "")]


async def byte_by_byte(world, path, body, rollout):
    """The body of the reply to a request that is sent, and read, one byte at a time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    key = mint(bytes(range(32)), rollout, 1)
    lines = [
        f"POST /r/{key}{path} HTTP/1.0",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    for byte in "\r\n".join([*lines, "", ""]).encode() + body:
        writer.write(bytes([byte]))
        await writer.drain()
    received = bytearray()
    while byte := await reader.read(1):
        received += byte
    writer.close()
    headers, _, content = bytes(received).partition(b"\r\n\r\n")
    assert b" 200 OK" in headers.splitlines()[0], content
    return content
