"""Inference servers that come and go while the gateway runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from gateway_world import SECRET

from whippletree.engines.config import Faults, ScriptedConfig
from whippletree.engines.scripted_server import ScriptedServer
from whippletree.gateway.keys import control_key
from whippletree.gateway.replicas import Replicas
from whippletree.gateway.rollout_api.endpoints import Endpoints

KEY = {"Authorization": f"Bearer {control_key(SECRET)}"}
HELLO = [{"role": "user", "content": "?"}]


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[tuple[str, ScriptedServer]]:
    """A scripted engine on a port: its address, and the server."""
    server = ScriptedServer.configured(ScriptedConfig(**settings))
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", server
    finally:
        await runner.cleanup()
        await server.close()


async def models(world: Any, method: str, *entries: dict[str, str]) -> tuple[int, Any]:
    body = {"models": list(entries)} if method == "POST" else None
    async with world.http.request(method, world.url + "/api/models", json=body, headers=KEY) as response:
        return response.status, await response.json()


async def serves(world: Any) -> set[str]:
    return {engine.name for engine in (await world.control.status_async()).engines}


async def test_a_gateway_without_engines_waits_for_one_that_is_registered(make_world: Callable[..., Any]) -> None:
    async with engine() as (url, _), make_world(engines=[]) as world:
        calling = asyncio.create_task(world.chat(HELLO))
        await asyncio.sleep(0.1)
        assert not calling.done()
        entry = {"name": "one", "url": url, "kind": "embedded"}
        for _ in range(2):
            status, answer = await models(world, "POST", entry)
            assert (status, [item["name"] for item in answer["models"]]) == (200, ["one"])
        status, _ = await asyncio.wait_for(calling, 60)
        assert status == 200
        assert world.calls()[0].replica == "one"
        assert await serves(world) == {"one"}


async def test_registered_servers_go_and_configured_ones_stay(make_world: Callable[..., Any]) -> None:
    async with engine() as (url, _), make_world() as world:
        await models(world, "POST", {"name": "one", "url": url, "kind": "embedded"})
        assert await serves(world) == {"scripted", "one"}
        for _ in range(2):
            status, answer = await models(world, "DELETE")
            assert (status, answer) == (200, {"models": []})
        assert await serves(world) == {"scripted"}
        assert (await world.chat(HELLO))[0] == 200
        assert world.calls()[0].replica == "scripted"
        assert (await models(world, "GET"))[1] == {"models": []}


async def test_a_name_with_another_address_is_another_server(make_world: Callable[..., Any]) -> None:
    async with engine() as (first, _), engine() as (second, _), make_world(engines=[]) as world:
        await models(world, "POST", {"name": "one", "url": first, "kind": "embedded"})
        _, answer = await models(world, "POST", {"name": "one", "url": second, "kind": "embedded"})
        assert [item["url"] for item in answer["models"]] == [second]
        assert len((await world.control.status_async()).engines) == 1


async def test_what_a_retired_server_samples_goes_on_to_its_end(make_world: Callable[..., Any]) -> None:
    async with engine(faults=Faults(first_token_seconds=0.5)) as (url, server), make_world(engines=[]) as world:
        await models(world, "POST", {"name": "one", "url": url, "kind": "embedded"})
        while not (await world.control.status_async()).engines[0].grade:  # until it is probed
            await asyncio.sleep(0.05)
        calling = asyncio.create_task(world.chat(HELLO))
        while not server.engine._running:
            assert not calling.done()
            await asyncio.sleep(0.01)
        await models(world, "DELETE")
        assert await serves(world) == set()
        status, _ = await asyncio.wait_for(calling, 60)
        assert (status, world.calls()[0].finish_reason != "abort") == (200, True)


async def test_an_address_that_is_none_is_refused_and_adds_nothing(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        for entry in (
            {"name": "one", "url": "ftp://x"},
            {"name": "one", "url": "http://user:word@x"},
            {"name": "one", "url": "http://x:port"},
            {"name": "", "url": "http://x"},
            {"name": "one", "url": "http://x", "kind": "magic"},
        ):
            status, _ = await models(world, "POST", entry)
            assert status == 400, entry
        assert (await models(world, "GET"))[1] == {"models": []}


async def test_a_server_that_does_not_answer_holds_up_nobody(make_world: Callable[..., Any]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with make_world() as world:
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            await models(world, "POST", {"name": "dead", "url": url, "kind": "vllm"})
            statuses = [(await world.chat([{"role": "user", "content": str(n)}], rollout=f"r{n}"))[0] for n in range(3)]
            assert statuses == [200] * 3


async def test_registered_servers_are_there_after_a_restart_and_in_every_worker(make_world: Callable[..., Any]) -> None:
    """Both read what the store has: a gateway that is started on the same store finds the server."""
    async with engine() as (url, _), make_world(engines=[]) as world:
        await models(world, "POST", {"name": "one", "url": url, "kind": "embedded"})
        replicas = Replicas([], {})
        following = asyncio.create_task(Endpoints(world.store, replicas, "policy").follow())
        while not replicas.active:
            await asyncio.sleep(0.01)
        assert [replica.engine.name for replica in replicas.active] == ["one"]
        await models(world, "DELETE")
        while replicas.active:
            await asyncio.sleep(0.01)
        following.cancel()
        await replicas.close()
