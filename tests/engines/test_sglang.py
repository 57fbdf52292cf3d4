"""The SGLang adapter on a local server of SGLang's published schema (sglang_server.py): the shared suite and its own habits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sglang_server import LAYERS, SglangServer
from suite import EngineSuite, Served, prompt_of, request, run
from vllm_parts import serving

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.engines.sglang import SglangEngine
from whippletree.errors import EngineError
from whippletree.protocols import ChatEngine, Engine
from whippletree.types import WeightUpdate

VOCABULARY, CONTEXT = 256, 512


@asynccontextmanager
async def sglang(faults: Faults | None = None, **habits: Any) -> AsyncIterator[tuple[SglangEngine, SglangServer]]:
    settings = {"experts_per_token": habits["experts"]} if "experts" in habits else {}
    server = SglangServer(ScriptedEngine(vocabulary=VOCABULARY, context=CONTEXT, faults=faults), context=CONTEXT, **habits)
    async with serving(server.handle) as url:
        engine = SglangEngine(url, **settings)
        try:
            yield engine, server
        finally:
            await engine.close()


@pytest.fixture(params=[False, True], ids=["cumulative", "incremental"])
async def engine(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Engine]:
    faults = Faults(token_seconds=0.0005)
    async with sglang(faults, incremental=request.param) as (client, _):
        await client.update_weights(WeightUpdate(directory=served.old, policy_version=1))
        yield client


@pytest.fixture
def served(tmp_path: Path) -> Served:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    return Served(VOCABULARY, CONTEXT, str(tmp_path / "old"), str(tmp_path / "new"), tolerance=1e-6)


class TestSglangSuite(EngineSuite):
    """Every behaviour of the suite, over cumulative and incremental streams."""


async def test_it_satisfies_both_protocols() -> None:
    async with sglang() as (engine, _):
        assert isinstance(engine, Engine)
        assert isinstance(engine, ChatEngine)


async def test_the_request_fixes_every_knob_and_keeps_the_stop_token() -> None:
    async with sglang() as (engine, server):
        await run(engine, request("r1", prompt_of(9), stop=[5], max_tokens=4, temperature=0.7, seed=3))
        await run(engine, request("r2", prompt_of(9), max_tokens=4))
        stopped, free = [body for path, body in server.asked if path == "/generate"]
    assert stopped["input_ids"] == prompt_of(9)
    fixed = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "max_new_tokens": 4}
    kept = {"no_stop_trim": True, "skip_special_tokens": False, "stop_token_ids": [5], "sampling_seed": 3}
    assert stopped["sampling_params"] == {**fixed, **kept, "ignore_eos": False}
    assert free["sampling_params"]["ignore_eos"] is True  # with stop ids it must not be set: the server then ignores them too
    assert (stopped["return_logprob"], stopped["logprob_start_len"], stopped["stream"]) == (True, -1, True)


async def test_a_schema_is_sent_as_text_and_lets_the_models_own_end_count() -> None:
    from msgspec.structs import replace

    async with sglang() as (engine, server):
        await run(engine, replace(request("r1", prompt_of(9), max_tokens=4), schema={"type": "object"}))
        params = server.asked[0][1]["sampling_params"]
    assert (params["json_schema"], params["ignore_eos"]) == ('{"type":"object"}', False)


async def test_abort_does_not_reach_a_request_whose_id_begins_alike() -> None:
    async with sglang(Faults(token_seconds=0.002)) as (engine, _):
        longer = asyncio.create_task(run(engine, request("c-1-10", prompt_of(7), max_tokens=60)))
        shorter = asyncio.create_task(run(engine, request("c-1-1", prompt_of(8), max_tokens=400)))
        await asyncio.sleep(0.05)
        await engine.abort("c-1-1")
        assert (await shorter).finish_reason == "abort"
        assert (await longer).finish_reason == "length"


async def test_without_spans_the_label_of_each_event_is_its_tokens_version(served: Served) -> None:
    async with sglang(Faults(token_seconds=0.002), spans=False) as (engine, _):
        stream = engine.generate(request("r1", prompt_of(9), max_tokens=40))
        chunks = [await anext(stream)]
        await engine.pause()
        await engine.update_weights(WeightUpdate(directory=served.new, policy_version=7))
        await engine.resume()
        chunks += [chunk async for chunk in stream]
    versions = [chunk.policy_version for chunk in chunks if chunk.token_ids]
    assert set(versions) == {0, 7}
    assert versions == sorted(versions)
    assert all(not chunk.versions for chunk in chunks)


async def test_routed_experts_are_asked_for_and_read(served: Served) -> None:
    async with sglang(experts=4) as (engine, server):
        chunks = [chunk async for chunk in engine.generate(request("r1", prompt_of(9), max_tokens=5))]
        assert server.asked[0][1]["return_routed_experts"] is True
        report = await engine.probe()
    experts = chunks[-1].experts
    assert experts is not None
    assert experts.shape == (9 + 5 - 1, LAYERS, 4)
    assert len(experts.data) == 2 * 13 * LAYERS * 4
    assert report.experts


async def test_an_update_that_fails_is_an_error_and_keeps_the_label(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    async with sglang() as (engine, _):
        with pytest.raises(EngineError, match=r"no \*\.safetensors"):
            await engine.update_weights(WeightUpdate(directory=str(broken), policy_version=1))
        (broken / "model.safetensors").write_bytes(b"")
        with pytest.raises(EngineError, match="Rolling back"):
            await engine.update_weights(WeightUpdate(directory=str(broken), policy_version=1))
        assert (await engine.status()).policy_version == 0


async def test_a_server_that_does_not_take_the_label_is_found_out(served: Served) -> None:
    async with sglang() as (engine, server):

        async def load(request: Any, body: Any) -> Any:
            from aiohttp import web

            return web.json_response({"success": True, "message": "ok"})

        server.on_update_weights_from_disk = load  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="labels its weights 'default'"):
            await engine.update_weights(WeightUpdate(directory=served.new, policy_version=3))


async def test_older_servers_without_the_new_routes_are_served_too() -> None:
    async with sglang(newer_routes=False) as (engine, server):
        server.on_get_load = None  # type: ignore[assignment]
        status = await engine.status()
    assert (status.policy_version, status.context_length, status.running) == (0, CONTEXT, 0)


async def test_the_probe_says_what_the_chat_endpoint_can_do() -> None:
    async with sglang() as (engine, _):
        report = await engine.probe()
    assert (report.grade, report.logprobs, report.context_length) == ("tokens", "processed", CONTEXT)
    assert (report.tool_calls, report.structured, report.experts) == (True, True, False)
