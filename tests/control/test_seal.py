"""Closing an attempt, with a gateway that answers, is silent, refuses, or has no engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from control_world import World, until, write_task

from whippletree.control.seal import GatewaySealer
from whippletree.engines.scripted import Faults
from whippletree.errors import FencedError
from whippletree.gateway.keys import control_key
from whippletree.types import Attempt, Call, CallPayload, CallTimes, Sampling


@pytest.fixture
def attempt(world: World, tmp_path: Path) -> Attempt:
    world.add(1, write_task(tmp_path / "t"))
    return world.store.claim("test", 1).result()[0]


@asynccontextmanager
async def sealer(world: World, *, port: int = 0, key: str = "") -> AsyncIterator[GatewaySealer]:
    made = GatewaySealer(f"http://127.0.0.1:{port or world.port}", key or control_key(world.secret), world.store)
    yield made
    made.close()


async def is_sealed(world: World, attempt: Attempt) -> bool:
    """Whether the store refuses a call of the attempt."""
    import numpy as np

    call = Call(
        call_id="late",
        rollout_id=attempt.rollout_id,
        attempt=attempt.attempt,
        index=0,
        digest="d",
        prompt_tokens=1,
        sampled_tokens=1,
        finish_reason="stop",
        times=CallTimes(received=1.0),
        sampling=Sampling(),
    )
    payload = CallPayload(
        prompt_delta=np.zeros(1, np.int32), sampled_ids=np.zeros(1, np.int32), logprobs=np.zeros(1, np.float32)
    )
    try:
        await asyncio.wrap_future(world.store.record_call(call, payload))
    except FencedError:
        return True
    return False


async def test_an_answering_gateway_seals(world: World, attempt: Attempt) -> None:
    async with sealer(world) as made:
        report = await made.seal(attempt.rollout_id, attempt.attempt, 10, crashed=True)
    assert (report.gateway_trouble, report.engine_trouble) == ("", "")
    assert await is_sealed(world, attempt)


async def test_without_a_gateway_the_store_seals(world: World, attempt: Attempt, unused_tcp_port: int) -> None:
    async with sealer(world, port=unused_tcp_port) as made:
        report = await made.seal(attempt.rollout_id, attempt.attempt, 0.3, crashed=True)
    assert report.gateway_trouble
    assert await is_sealed(world, attempt)


async def test_a_gateway_that_comes_back_is_asked_again(world: World, attempt: Attempt, unused_tcp_port: int) -> None:
    world.port = unused_tcp_port
    tried: list[object] = []
    async with sealer(world) as made:
        try_seal = made._try_seal

        async def noted(*arguments: object) -> object:
            tried.append(await try_seal(*arguments))  # type: ignore[arg-type]
            return tried[-1]

        made._try_seal = noted  # type: ignore[method-assign,assignment]
        sealing = asyncio.create_task(made.seal(attempt.rollout_id, attempt.attempt, 60, crashed=False))
        await until(lambda: len(tried) == 2)
        assert not sealing.done()
        async with world.serving():
            report = await sealing
    assert "not there" in report.gateway_trouble
    assert await is_sealed(world, attempt)


async def test_a_refusal_is_an_answer(world: World, attempt: Attempt) -> None:
    async with sealer(world, key="wtc-wrong") as made:
        report = await made.seal(attempt.rollout_id, attempt.attempt, 10, crashed=False)
    assert report.gateway_trouble == ""
    assert await is_sealed(world, attempt)


async def test_an_older_attempt_seals_nothing(world: World, attempt: Attempt) -> None:
    world.store.release_worker("test").result()
    (current,) = world.store.claim("test", 1).result()
    async with sealer(world) as made:
        await made.seal(attempt.rollout_id, attempt.attempt, 10, crashed=False)
    assert not await is_sealed(world, current)
    assert world.engine.faults == Faults()
