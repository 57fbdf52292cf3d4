"""Streams over real HTTP, read by the official SDK, byte by byte, and around slow engines."""

import asyncio
from contextlib import AsyncExitStack

import openai
import pytest
from gateway_world import SECRET, slow_disk, user

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import mint

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
ANSWER = '<think>I wonder.</think>Grüße 🙂 I look.<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


def key(rollout="r0"):
    return mint(SECRET, rollout, 1)


def put_together(chunks):
    content, reasoning, calls, finish = "", "", {}, None
    for chunk in chunks:
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
        for piece in delta.tool_calls or []:
            call = calls.setdefault(piece.index, {"name": "", "arguments": ""})
            call["name"] += piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    return content, reasoning, list(calls.values()), finish


async def test_the_async_sdk_streamed_and_whole_agree(make_world):
    async with make_world(lambda prompt: ANSWER, faults=Faults(token_seconds=0.002)) as world:
        async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=key(), max_retries=0) as sdk:
            whole = await sdk.chat.completions.create(model="policy", messages=[user("go")], tools=TOOLS)
            stream = await sdk.chat.completions.create(
                model="policy", messages=[user("go 2")], tools=TOOLS, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert [model.id async for model in sdk.models.list()] == ["policy"]
        message = whole.choices[0].message
        call = message.tool_calls[0].function
        assert put_together(chunks) == (
            message.content,
            message.model_extra["reasoning_content"],
            [{"name": call.name, "arguments": call.arguments}],
            "tool_calls",
        )
        assert message.content == "Grüße 🙂 I look."
        assert len(chunks) > 6
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        streamed = world.calls()[1]
        assert streamed.streamed
        await world.control.seal_async("r0", 1)
        assert all(call.delivered for call in world.calls())
        assert streamed.sampled_tokens == whole.usage.completion_tokens


async def test_the_sync_sdk_below_a_path_with_the_key(make_world):
    async with make_world(lambda prompt: "hello") as world:

        def use():
            with openai.OpenAI(base_url=f"{world.url}/r/{key()}/v1", api_key="unused", max_retries=0) as sdk:
                whole = sdk.chat.completions.create(model="any-name", messages=[user("go")])
                with sdk.chat.completions.stream(model="any-name", messages=[user("go on")]) as stream:
                    return whole, stream.get_final_completion()

        whole, streamed = await asyncio.to_thread(use)
        assert whole.choices[0].message.content == streamed.choices[0].message.content == "hello"


async def test_a_client_that_reads_one_byte_at_a_time_gets_the_same(make_world):
    async with make_world(lambda prompt: ANSWER) as world:
        body = b'{"messages": [{"role": "user", "content": "go"}], "stream": true}'
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        head = f"POST /r/{key()}/v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        for byte in head.encode() + body:
            writer.write(bytes([byte]))
            await writer.drain()
        received = b""
        while byte := await reader.read(1):
            received += byte
        writer.close()
        assert received.startswith(b"HTTP/1.0 200 OK")
        assert received.endswith(b'"finish_reason":"stop","index":0}],"object":"chat.completion.chunk"}\n\ndata: [DONE]\n\n')
        assert world.calls()[0].finish_reason == "stop"


def begun_stream(world):
    """A streamed reply, from its headers on."""
    body = {"model": "policy", "messages": [user("go")], "stream": True}
    return world.http.post(f"{world.url}/r/{key()}/v1/chat/completions", json=body)


async def test_a_silent_stream_carries_comments(make_world):
    async with make_world(lambda prompt: "hi", keepalive=0.05) as world:
        await world.engines[0].pause()
        async with begun_stream(world) as response:
            comments = b": keep-alive\n\n: keep-alive\n\n"
            assert await response.content.readexactly(len(comments)) == comments
            assert response.headers["Content-Type"].startswith("text/event-stream")
            await world.engines[0].resume()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_the_terminal_event_waits_until_the_store_has_the_call(make_world):
    async with make_world(lambda prompt: "hello") as world, AsyncExitStack() as stack:
        asked, may_record = stack.enter_context(slow_disk(world.store))
        body = {"messages": [user("go")], "stream": True}
        async with world.http.post(f"{world.url}/r/{key()}/v1/chat/completions", json=body) as response:
            await asked.wait()
            received = b""
            with pytest.raises(asyncio.TimeoutError):
                while True:
                    received += await asyncio.wait_for(response.content.readany(), 0.2)
            assert b'"content":"h' in received
            assert b"[DONE]" not in received
            assert b'"finish_reason":"' not in received
            assert world.calls() == []
            may_record.set()
            rest = await _until_done(response)
            assert rest.endswith(b"data: [DONE]\n\n")
            assert b'"finish_reason":"stop"' in rest
            assert len(world.calls()) == 1


async def _until_done(response):
    received = b""
    while not received.endswith(b"[DONE]\n\n"):
        piece = await response.content.readany()
        assert piece, received
        received += piece
    return received


async def test_an_error_before_the_first_token_is_a_plain_error(make_world):
    async with make_world(None, faults=Faults(broken=1)) as world, begun_stream(world) as response:
        assert response.status == 502
        assert response.headers["Content-Type"].startswith("application/json")
        assert b"engine_error" in await response.read()


async def test_an_error_after_the_headers_ends_the_stream_without_an_end_mark(make_world):
    async with make_world(None, faults=Faults(broken=1, first_token_seconds=0.0), keepalive=0.03) as world:
        await world.control.hold_async()
        async with begun_stream(world) as response:  # with the first comment
            assert response.status == 200
            await world.control.release_async()
            received = await response.read()
        assert b'data: {"error":' in received
        assert b"[DONE]" not in received


async def test_the_sdk_raises_on_a_stream_that_could_not_be_completed(make_world):
    async with make_world(lambda prompt: "a long answer", faults=Faults(no_logprobs=True), keepalive=0.03) as world:
        await world.control.hold_async()
        async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=key(), max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(model="policy", messages=[user("go")], stream=True)
            await world.control.release_async()
            with pytest.raises(openai.APIError, match=r"call c-[0-9a-f]+: the engine sent 1 ids with 0 logprobs"):
                [chunk async for chunk in stream]
