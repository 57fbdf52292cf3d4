"""Cases of many at once, and of records that grow: what peers lost under load."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_world import SECRET

from whippletree.engines.config import Faults, ScriptedConfig
from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.engines.scripted import ScriptedEngine
from whippletree.engines.scripted_server import ScriptedServer
from whippletree.errors import ConfigurationError
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import mint
from whippletree.gateway.server import Parts, serving
from whippletree.store import open_store
from whippletree.types import RolloutSpec, Sampling


@asynccontextmanager
async def slow_engine(seconds: float) -> AsyncIterator[str]:
    server = ScriptedServer.configured(ScriptedConfig(faults=Faults(first_token_seconds=seconds)))
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await server.close()


async def test_D21_a_wave_of_first_requests_waits_and_none_fails(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 rollouts ask at once, the engine takes its time, and the environment names a proxy that is not there."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with slow_engine(2.0) as url:
        engine = EmbeddedEngine(url)
        async with make_world(engines=[engine]) as world:
            same = {"group_id": "w", "source": "wave", "task_id": "t", "task_path": "/t", "harness": "h"}
            specs = [
                RolloutSpec(rollout_id=f"w{n}", sampling=Sampling(max_tokens=4, seed=1), **same)  # type: ignore[arg-type]
                for n in range(1024)
            ]
            world.store.create_rollouts(specs).result()
            assert len(world.store.claim("worker", 1024).result()) == 1024
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=100)) as http:

                async def first(number: int) -> int:
                    headers = {"Authorization": f"Bearer {mint(SECRET, f'w{number}', 1)}"}
                    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
                    async with http.post(world.url + "/v1/chat/completions", json=body, headers=headers) as response:
                        await response.read()
                        return response.status

                statuses = await asyncio.gather(*map(first, range(1024)))
            await engine.close()
    assert statuses == [200] * 1024


async def test_D22_servers_that_start_at_the_same_time_take_ports_of_their_own(tmp_path: Path, renderer: Any) -> None:
    """Sixteen gateways at once, again and again: each binds port 0 and says which one it got."""
    with open_store(tmp_path / "store") as store:
        parts = Parts(store=store, engines=[ScriptedEngine()], renderer=renderer, secret=SECRET)
        for _ in range(5):
            async with AsyncExitStack() as stack:
                starting = (stack.enter_async_context(serving(GatewayConfig(port=0), parts)) for _ in range(16))
                ports = await asyncio.gather(*starting)
                assert len(set(ports)) == 16
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*in use.*choose another"):
                async with serving(GatewayConfig(port=taken.getsockname()[1]), parts):
                    pass


async def test_D19_two_hundred_turns_are_stored_about_once(make_world: Callable[..., Any]) -> None:
    """Each turn adds some 500 tokens: what is stored stays within twice the last prompt, and every turn has its whole one."""
    turns = 200
    async with make_world(lambda prompt: "ok", context=400_000, sampling=Sampling(max_tokens=20)) as world:
        messages: list[dict[str, str]] = []
        for number in range(turns):
            messages.append({"role": "user", "content": f"{number} " + "the next file is birch " * 20})
            status, reply = await world.chat(messages)
            assert status == 200
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        calls = world.calls()
        payloads = [world.store.payload(call) for call in calls]
        stored = sum(len(payload.prompt_delta) + len(payload.sampled_ids) for payload in payloads)
        final = calls[-1].prompt_tokens + calls[-1].sampled_tokens
        assert len(calls) == turns
        assert final > 100 * turns
        assert stored <= 2 * final
        requests = sum(len(payload.request_json) for payload in payloads)
        assert requests <= 3 * len(json.dumps(messages))
        for call in (calls[0], calls[turns // 2], calls[-1]):
            assert len(prompt_of(world, call)) == call.prompt_tokens


def prompt_of(world: Any, call: Any) -> list[int]:
    """The whole prompt of a call from its chain of deltas, without recursion."""
    by_id = {item.call_id: item for item in world.calls()}
    chain = [call]
    while chain[-1].parent_call_id:
        chain.append(by_id[chain[-1].parent_call_id])
    ids: list[int] = []
    for item in reversed(chain):
        payload = world.store.payload(item)
        ids += payload.prompt_delta.tolist()
        if item is not call:
            ids += payload.sampled_ids.tolist()
    return ids
