"""The reconciler: many rollouts, lost hosts, fenced attempts, a gateway that goes away."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from control_world import World, until, write_task

from whippletree.control import lifeline
from whippletree.control.config import DeadlineConfig, PoolConfig
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.types import CauseClass, RolloutSpec


def hosts(world: World) -> list[int]:
    """Process ids of this process's pool hosts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"whippletree.control.pool_host" in command:
            found.append(int(path.parent.name))
    return found


async def test_every_rollout_is_run_once_and_nothing_is_left(world: World, tmp_path: Path) -> None:
    names = world.add(20, write_task(tmp_path / "t"))
    async with world.controlling(world.spec(concurrency=8)):
        rollouts = await world.finished(names)
        pids = hosts(world)
    assert {(rollout.state, rollout.reward, rollout.attempt) for rollout in rollouts} == {("succeeded", 1.0, 1)}
    assert all(len(world.store.calls(name, 1)) == 1 for name in names)
    assert world.turns == 20
    assert world.boxes() == [] and not any(lifeline.session_members(pid) for pid in pids)


async def test_rollouts_that_come_later_are_taken_too(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    async with world.controlling(world.spec()):
        await world.finished(world.add(1, task))
        await asyncio.sleep(0.3)  # idle
        await world.finished(world.add(2, task, source="later"))


async def test_no_more_than_the_pools_hold_are_under_way(world: World, tmp_path: Path) -> None:
    names = world.add(6, write_task(tmp_path / "t"))
    async with world.controlling(world.spec(concurrency=50, pool=PoolConfig(hosts=1, tenants=2))):
        most = 0
        while not all(world.store.rollout(name).terminal for name in names):
            most = max(most, len(world.store.rollouts(states=("running",))))
            await asyncio.sleep(0.005)
    assert most == 2


async def test_a_lost_host_is_retried_and_each_rollout_ends_once(world: World, tmp_path: Path) -> None:
    world.engine.faults = type(world.engine.faults)(first_token_seconds=1.0)
    names = world.add(6, write_task(tmp_path / "t"))
    async with world.controlling(world.spec(pool=PoolConfig(hosts=1, tenants=8))):
        await until(lambda: len(world.store.rollouts(states=("running",))) == 6 and world.engine._running)
        (host,) = hosts(world)
        os.kill(host, signal.SIGKILL)
        world.engine.faults = type(world.engine.faults)()
        rollouts = await world.finished(names)
    assert {(rollout.state, rollout.reward, rollout.cause) for rollout in rollouts} == {("succeeded", 1.0, None)}
    causes = [attempt.cause.cause for name in names for attempt in world.store.attempts(name) if attempt.cause]
    assert causes and set(causes) == {CauseClass.HOST_LOST}
    assert world.boxes() == []


async def test_an_attempt_that_was_fenced_off_changes_nothing(world: World, tmp_path: Path) -> None:
    world.engine.faults = type(world.engine.faults)(first_token_seconds=1.0)
    (name,) = world.add(1, write_task(tmp_path / "t"))
    async with world.controlling(world.spec()):
        await until(lambda: bool(world.engine._running))
        (taken,) = world.store.release_worker("local/").result()  # as an operator, or another controller, would
        world.engine.faults = type(world.engine.faults)()
        (rollout,) = await world.finished([name])
        await until(lambda: world.boxes() == [])
    assert (rollout.state, rollout.reward, rollout.attempt) == ("succeeded", 1.0, 2)
    first, second = world.store.attempts(name)
    assert first.attempt == taken.attempt and first.result is None
    assert second.result is not None and second.result.reward == 1.0
    assert all(call.attempt == 2 for call in world.store.calls(name, 2))


async def test_rollouts_outlive_a_gateway_that_is_started_again(world: World, tmp_path: Path, unused_tcp_port: int) -> None:
    world.port = unused_tcp_port
    names = world.add(4, write_task(tmp_path / "t"), max_attempts=8)

    def causes() -> set[CauseClass]:
        return {attempt.cause.cause for name in names for attempt in world.store.attempts(name) if attempt.cause}

    async with world.controlling(world.spec(deadlines=DeadlineConfig(seal=0.3))):
        await until(lambda: bool(causes()))
        assert causes() == {CauseClass.GATEWAY}
        async with world.serving():
            rollouts = await world.finished(names)
    assert {rollout.reward for rollout in rollouts} == {1.0}
    assert causes() <= {CauseClass.GATEWAY, CauseClass.HARNESS}  # the latter if it was back before it was asked


async def test_evaluation_comes_first(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    names = world.add(4, task)
    spec = RolloutSpec(
        rollout_id="eval-0", group_id="e", source="tests", task_id="t", task_path=str(task), harness="http", purpose="eval"
    )
    world.store.create_rollouts([spec]).result()
    async with world.controlling(world.spec(concurrency=1)):
        await world.finished([*names, "eval-0"])
    started = {name: world.store.attempts(name)[0].started for name in [*names, "eval-0"]}
    assert min(started, key=lambda name: started[name]) == "eval-0"


async def test_a_second_controller_of_a_run_is_refused(world: World) -> None:
    async with world.controlling(world.spec()) as first:
        await until(lambda: (world.directory / "controller.lock").exists() and bool(hosts(world)))
        await asyncio.sleep(0.2)
        with pytest.raises(ConfigurationError, match="another controller"):
            async with world.controlling(world.spec()):
                await until(lambda: world.controller is not None and world.controller.done())
        assert not first.done()


async def test_a_harness_that_cannot_be_loaded_stops_the_start(world: World, tmp_path: Path) -> None:
    (name,) = world.add(1, write_task(tmp_path / "t"))
    with pytest.raises(HarnessError, match="the_agent"):
        async with world.controlling(world.spec(adapter="harness_parts:BrokenHarness")):
            await until(lambda: world.controller is not None and world.controller.done())
    assert world.store.rollout(name).state == "queuing" and world.store.attempts(name) == []


async def test_D27_cancelled_attempts_stop_and_their_places_are_free_only_then(world: World, tmp_path: Path) -> None:
    """Eight under way are called off and eight others queued: never more than eight sandboxes, and the engine is told."""
    world.engine.faults = type(world.engine.faults)(first_token_seconds=60.0)
    task = write_task(tmp_path / "t")
    first = world.add(8, task)
    most, watching = 0, True

    async def watch() -> None:
        nonlocal most
        while watching:
            most = max(most, len(world.boxes()))
            await asyncio.sleep(0.002)

    async with world.controlling(world.spec(concurrency=8)):
        watcher = asyncio.create_task(watch())
        await until(lambda: len(world.engine._running) == 8)
        await asyncio.wrap_future(world.store.cancel(first, "stale"))
        world.engine.faults = type(world.engine.faults)()
        rollouts = await world.finished(world.add(8, task, source="new"))
        watching = False
        await watcher
        assert not world.engine._running
    assert {rollout.state for rollout in rollouts} == {"succeeded"}
    assert 0 < most <= 8
    ended = [world.store.rollout(name) for name in first]
    assert {(rollout.state, rollout.reward, rollout.attempt) for rollout in ended} == {("failed", None, 1)}
    assert {rollout.cause.cause for rollout in ended if rollout.cause} == {CauseClass.CANCELLED}
    assert world.boxes() == []
