"""Whole replies that take long, and how many writes a stream takes."""

import asyncio
import json

import aiohttp
import openai
import pytest
from aiohttp import web
from gateway_world import SECRET

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import mint

BODY = {"messages": [{"role": "user", "content": "go"}]}


def address(world):
    return f"{world.url}/r/{mint(SECRET, 'r0', 1)}/v1/chat/completions"


async def until_waiting(world, count=1):
    while (await world.control.status_async()).waiting != count:
        await asyncio.sleep(0.01)


async def test_a_whole_reply_that_is_held_long_begins_with_white_space(make_world):
    async with make_world(lambda prompt: "hello", whole_keepalive=0.05) as world:
        await world.control.hold_async()
        async with world.http.post(address(world), json=BODY) as response:
            assert response.status == 200  # the headers are there while the call is still held
            assert (await world.control.status_async()).waiting == 1
            assert await response.content.readexactly(2) == b"  "
            await world.control.release_async()
            body = await response.read()
        assert json.loads(b"  " + body)["choices"][0]["message"]["content"] == "hello"
        await world.control.seal_async("r0", 1)
        assert [call.delivered for call in world.calls()] == [True]


async def test_the_sdk_reads_a_whole_reply_that_begins_with_white_space(make_world):
    async with make_world(lambda prompt: "hello", whole_keepalive=0.03) as world:
        await world.control.hold_async()
        async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=mint(SECRET, "r0", 1), max_retries=0) as sdk:
            pending = asyncio.create_task(sdk.chat.completions.create(model="policy", messages=BODY["messages"]))
            await until_waiting(world)
            await asyncio.sleep(0.15)
            await world.control.release_async()
            assert (await pending).choices[0].message.content == "hello"


async def test_a_whole_reply_that_fails_after_it_began_drops_the_connection_and_a_retry_is_served(make_world):
    async with make_world(lambda prompt: "hello", faults=Faults(broken=1), whole_keepalive=0.03) as world:
        await world.control.hold_async()
        async with world.http.post(address(world), json=BODY) as response:
            assert await response.content.readexactly(1) == b" "
            await world.control.release_async()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        async with world.http.post(address(world), json=BODY) as response:
            assert (response.status, (await response.json())["choices"][0]["message"]["content"]) == (200, "hello")


async def test_a_whole_reply_that_fails_at_once_is_a_plain_error(make_world):
    async with (
        make_world(lambda prompt: "hello", faults=Faults(broken=1), whole_keepalive=60.0) as world,
        world.http.post(address(world), json=BODY) as response,
    ):
        assert (response.status, response.content_type) == (502, "application/json")


async def test_a_quick_whole_reply_says_its_length(make_world):
    async with make_world(lambda prompt: "hello") as world, world.http.post(address(world), json=BODY) as response:
        assert response.content_length == len(await response.read())


async def test_a_client_that_leaves_a_whole_reply_that_has_begun_abandons_the_call(make_world):
    async with make_world(lambda prompt: "hello", whole_keepalive=0.03) as world:
        await world.control.hold_async()
        async with world.http.post(address(world), json=BODY) as response:
            await response.content.readexactly(1)
            response.close()
        await until_waiting(world, 0)
        await world.control.release_async()
        assert world.calls() == []


async def test_deltas_that_are_ready_together_go_out_in_one_write(make_world, monkeypatch):
    writes = []
    real = web.StreamResponse.write

    async def counted(self, data):
        writes.append(bytes(data))
        await real(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", counted)
    async with make_world(["word " * 60]) as world:  # nobody reads on between the tokens of a scripted engine
        await world.control.hold_async()
        first = asyncio.create_task(world.chat(BODY["messages"]))
        await until_waiting(world)
        await world.control.release_async()
        assert (await first)[0] == 200
        writes.clear()
        retry = {"x-stainless-retry-count": "1"}  # the recorded reply, as a stream: all its deltas are there at once
        async with world.http.post(
            address(world), json={**BODY, "tools": TOOLS, "model": "policy", "stream": True}, headers=retry
        ) as response:
            streamed = await response.read()
        assert streamed.endswith(b"data: [DONE]\n\n")
        assert b"".join(writes) == streamed
        assert len(writes) == 2  # the deltas, the end


TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
