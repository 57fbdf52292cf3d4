"""Rewards over the rollout API: of a rollout and of its single calls, on a real store and gateway"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whippletree.gateway.keys import control_key
from whippletree.types import CallReward

KEY = {"Authorization": f"Bearer {control_key(bytes(range(32)))}"}
EVENTS = "/api/rollouts/a/attempt/1/events"


async def ask(world: Any, method: str, path: str, body: Any) -> tuple[int, Any]:
    async with world.http.request(method, world.url + path, json=body, headers=KEY) as response:
        return response.status, await response.json()


async def running(world: Any) -> None:
    await ask(world, "POST", "/api/rollouts", {"rollouts": [{"rollout_id": "a"}]})
    await ask(world, "PATCH", "/api/rollouts/a", {"status": "running"})


@pytest.mark.parametrize("by_event", [True, False])
async def test_what_calls_earned_is_recorded_with_the_reward(make_world: Callable[..., Any], by_event: bool) -> None:
    async with make_world() as world:
        await running(world)
        for data in ({"call": 3, "reward": 0.5}, {"turn": 0, "reward": 0.1}, {"call": 3, "reward": 0.25}):
            assert (await ask(world, "POST", EVENTS, {"kind": "call_reward", "data": data}))[0] == 200
        if by_event:
            await ask(world, "POST", EVENTS, {"kind": "reward", "data": {"reward": 1.0}})
        update = {"status": "succeeded"} | ({} if by_event else {"reward": 1.0})
        assert (await ask(world, "PATCH", "/api/rollouts/a", update))[0] == 200
        (attempt,) = world.store.attempts("a")
        assert attempt.result.reward == 1.0
        assert attempt.result.call_rewards == (
            CallReward(of="call", number=3, reward=0.25),  # the last word on it
            CallReward(of="turn", number=0, reward=0.1),
        )


async def test_a_call_reward_alone_is_no_reward_of_the_rollout(make_world: Callable[..., Any]) -> None:
    async with make_world() as world:
        await running(world)
        await ask(world, "POST", EVENTS, {"kind": "call_reward", "data": {"call": 0, "reward": 1.0}})
        status, refused = await ask(world, "PATCH", "/api/rollouts/a", {"status": "succeeded"})
        assert (status, refused["error"]["code"]) == (409, "no_reward")


@pytest.mark.parametrize(
    "data",
    [{}, {"reward": 1.0}, {"call": 1}, {"call": 1, "turn": 1, "reward": 1.0}, {"call": -1, "reward": 1.0},
     {"call": 1.5, "reward": 1.0}, {"call": "c-1", "reward": 1.0}, {"call": 1, "reward": None}, {"turns": 1, "reward": 1.0}],
)  # fmt: skip
async def test_an_event_that_names_no_call_or_no_reward_is_refused_when_sent(
    make_world: Callable[..., Any], data: dict[str, Any]
) -> None:
    async with make_world() as world:
        await running(world)
        status, refused = await ask(world, "POST", EVENTS, {"kind": "call_reward", "data": data})
        assert status == 400
        assert "call_reward" in refused["error"]["message"]
        assert world.store.events("a") == []
