"""Whole attempts whose machine is a pod: the harness in a pool host or as a process in the pod, the verifier in the pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attempt_parts import run_one
from control_world import World, write_task
from pod_world import PodSite

pytestmark = pytest.mark.kube


@pytest.fixture
async def world(site: PodSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A run whose sandboxes are pods."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "control"), prepend=":")
    made = World(tmp_path / "run")
    made.sandbox = site.config(tmp_path / "none")
    async with made.serving():
        yield made
    made.close()


async def test_a_pool_hosts_harness_works_in_a_pod(world: World, site: PodSite, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"))
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert attempt.sandbox.startswith("kubernetes:wt-")
    assert [phase.name for phase in attempt.phases] == ["boot", "setup", "agent", "seal", "verify", "cleanup"]
    assert await site.pods() == [] and await site.policies() == []


async def test_a_wrong_answer_in_a_pod_is_a_reward_of_zero(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), settings={"command": "true"})
    assert (rollout.state, rollout.reward, attempt.cause) == ("succeeded", 0.0, None)


async def test_a_harness_in_the_pod_reaches_the_gateway(world: World, tmp_path: Path) -> None:
    settings = {"shell": 'python3 -c "$ASK" && cat note && touch done'}
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), launch="process", settings=settings)
    assert (rollout.state, rollout.reward, attempt.exit_status) == ("succeeded", 1.0, "exit 0")


async def test_stopping_the_controller_removes_its_pods(world: World, site: PodSite, tmp_path: Path) -> None:
    names = world.add(2, write_task(tmp_path / "t"))
    async with world.controlling(world.spec(settings={"command": "sleep 1000"})):
        while world.turns < 2:
            await asyncio.sleep(0.02)
        assert len(await site.pods()) == 2
    assert await site.pods() == [] and await site.policies() == []
    assert {world.store.rollout(name).state for name in names} == {"queuing"}
