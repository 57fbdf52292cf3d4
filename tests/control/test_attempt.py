"""One attempt: every end has one outcome, the right cause, and nothing left behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from attempt_parts import failed, run_one
from control_world import REWARD, World, until, write_task

from whippletree.control.config import DeadlineConfig
from whippletree.engines.scripted import Faults
from whippletree.sandboxes import SandboxConfig
from whippletree.types import CauseClass

PHASES = ["boot", "setup", "agent", "seal", "verify", "cleanup"]


async def test_a_solved_task_goes_through_every_phase(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"))
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert [phase.name for phase in attempt.phases] == PHASES
    assert all(phase.seconds >= 0 and phase.started > 1e9 for phase in attempt.phases)
    assert attempt.exit_status == "Submitted" and attempt.sealed and attempt.finished >= attempt.started
    assert attempt.sandbox.startswith("process:wt-")
    events = world.store.events(rollout.spec.rollout_id)
    assert sorted(event.data["name"] for event in events if event.kind == "phase") == sorted(PHASES)
    (call,) = world.store.calls(rollout.spec.rollout_id, 1)
    assert call.sampled_tokens and call.delivered


async def test_a_wrong_answer_is_a_reward_of_zero(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), settings={"command": "true"})
    assert (rollout.state, rollout.reward) == ("succeeded", 0.0)
    assert attempt.cause is None


async def test_a_time_out_is_still_verified(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", toml="[agent]\ntimeout_sec = 6.0\n")
    rollout, attempt = await run_one(world, task, settings={"command": "touch done; sleep 1000"})
    assert (rollout.state, rollout.reward, attempt.exit_status) == ("succeeded", 1.0, "deadline")
    assert attempt.cut_short is not None and attempt.cut_short.cause is CauseClass.AGENT_TIMEOUT


async def test_a_crash_is_the_harnesss_and_hides_the_key(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), settings={"raise": "fell over"})
    message = failed(rollout, CauseClass.HARNESS, "agent")
    assert "RuntimeError: fell over with [key]" in message
    assert [phase.name for phase in attempt.phases] == ["boot", "setup", "agent", "seal", "cleanup"]


async def test_a_harness_that_asks_nothing_has_no_calls(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), settings={"ask": False})
    failed(rollout, CauseClass.NO_CALLS, "agent")


async def test_a_broken_task_is_never_tried_again(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    (task / "instruction.md").unlink()
    rollout, attempt = await run_one(world, task, max_attempts=5)
    assert "instruction.md" in failed(rollout, CauseClass.TASK, "boot")
    assert attempt.attempt == 1


@pytest.mark.parametrize(("launch", "phase"), [("pool", "agent"), ("process", "setup")])
async def test_wrong_settings_are_never_tried_again(world: World, tmp_path: Path, launch: str, phase: str) -> None:
    task = write_task(tmp_path / "t")
    rollout, attempt = await run_one(world, task, max_attempts=5, launch=launch, settings={"wrong": 1})
    assert "setting wrong" in failed(rollout, CauseClass.CONFIGURATION, phase)
    assert attempt.attempt == 1


async def test_an_adapter_that_cannot_plan_is_the_harnesss_fault(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), launch="process", settings={"raise": "no plan"})
    assert "no plan" in failed(rollout, CauseClass.SETUP, "setup")


async def test_a_sandbox_that_dies_under_a_tenant_is_the_sandboxes_fault(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), settings={"kill": True, "command": "true"})
    failed(rollout, CauseClass.SANDBOX, "agent")


async def test_an_unknown_harness_is_a_configuration_error(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), harness="another")
    assert "'http'" in failed(rollout, CauseClass.CONFIGURATION, "boot")


async def test_a_sandbox_that_cannot_start_is_the_sandboxes_fault(world: World, tmp_path: Path) -> None:
    world.sandbox = SandboxConfig(kind="bubblewrap", root=world.sandbox.root, bwrap="/bin/false")
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), max_attempts=2)
    failed(rollout, CauseClass.SANDBOX, "boot")
    assert attempt.attempt == 2


async def test_a_verifier_without_a_reward_leaves_it_none(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t", test="#!/bin/sh\necho no tests ran\nexit 3\n"))
    assert "no tests ran" in failed(rollout, CauseClass.VERIFIER, "verify")
    assert attempt.result is not None and attempt.result.exit_code == 3


async def test_engines_that_fail_are_blamed_and_not_the_harness(world: World, tmp_path: Path) -> None:
    world.gateway = type(world.gateway)(engine_wait_limit=0.5)
    world.engine.faults = Faults(unavailable=10_000)
    world.port = 0
    async with world.serving():  # one that gives up soon
        rollout, _ = await run_one(world, write_task(tmp_path / "t"))
    assert "unavailable" in failed(rollout, CauseClass.ENGINE, "agent")


@pytest.mark.parametrize(("patience", "seconds"), [(0.3, 60.0), (60.0, 6.0)])
async def test_an_agent_that_an_engine_left_alone_is_not_judged(
    world: World, tmp_path: Path, patience: float, seconds: float
) -> None:
    def say(prompt: str) -> str:
        world.engine.faults = Faults(unavailable=10_000)
        return "done"

    world.gateway, world.port, world.say = type(world.gateway)(engine_wait_limit=patience), 0, say
    task = write_task(tmp_path / "t", toml=f"[agent]\ntimeout_sec = {seconds}\n")
    async with world.serving():
        rollout, _ = await run_one(world, task, settings={"command": "true", "again": "and now?"})
    assert "no engine answered its last call" in failed(rollout, CauseClass.ENGINE, "agent")


async def test_nothing_of_the_agent_runs_while_the_verifier_judges(world: World, tmp_path: Path) -> None:
    test = f"#!/bin/sh\nrm -f beat; sleep 0.5; [ -e beat ] && echo 0 {REWARD} || echo 1 {REWARD}\n"
    beats = "setsid sh -c 'while :; do echo > beat; sleep 0.05; done' > /dev/null 2>&1 &"
    command = f"{beats} while ! test -e beat; do sleep 0.02; done"
    rollout, _ = await run_one(world, write_task(tmp_path / "t", test=test), settings={"command": command})
    assert (rollout.state, rollout.reward) == ("succeeded", 1.0)


async def test_a_sealed_attempt_gets_no_further_call(world: World, tmp_path: Path) -> None:
    names = world.add(1, write_task(tmp_path / "t", toml="[agent]\ntimeout_sec = 1.0\n"), max_attempts=1)
    go, asked = tmp_path / "go", tmp_path / "asked"
    settings = {"wait_for": str(go), "asked": str(asked)}
    async with world.controlling(world.spec(settings=settings, deadlines=DeadlineConfig(grace=60.0))):
        await until(lambda: any(attempt.sealed for attempt in world.store.attempts(names[0])))
        go.touch()  # it asks only after its time was over
        (rollout,) = await world.finished(names)
        await until(asked.exists)
    failed(rollout, CauseClass.NO_CALLS, "agent")
    assert world.store.calls(names[0], 1) == [] and world.turns == 0


@pytest.mark.parametrize("phase", ["boot", "agent"])
async def test_stopping_in_any_early_phase_puts_the_rollout_back(world: World, tmp_path: Path, phase: str) -> None:
    names = world.add(3, write_task(tmp_path / "t"), max_attempts=1)
    async with world.controlling(world.spec(settings={"command": "sleep 1000"})):
        running = "running" if phase == "boot" else None
        await until(lambda: world.turns == 3 if running is None else world.store.rollout(names[0]).state == running)
    assert world.boxes() == []
    for name in names:
        rollout, attempts = world.store.rollout(name), world.store.attempts(name)
        assert rollout.state == "queuing" and rollout.reward is None
        assert all(attempt.sealed and attempt.cause and attempt.cause.cause is CauseClass.CANCELLED for attempt in attempts)
    async with world.controlling(world.spec()):
        assert {rollout.reward for rollout in await world.finished(names)} == {1.0}


async def test_a_harness_in_the_sandbox_reaches_the_gateway(world: World, tmp_path: Path) -> None:
    shell = f'{sys.executable} -c "$ASK" && cat note && touch done'
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), launch="process", settings={"shell": shell})
    assert (rollout.state, rollout.reward, attempt.exit_status) == ("succeeded", 1.0, "exit 0")


async def test_a_harness_process_is_ended_at_its_limit(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", toml="[agent]\ntimeout_sec = 1.0\n")
    rollout, attempt = await run_one(world, task, launch="process", settings={"shell": "echo waiting; sleep 1000"})
    assert "its time ran out: waiting" in failed(rollout, CauseClass.NO_CALLS, "agent")
    assert attempt.exit_status == "deadline"


async def test_process_launch_keeps_output_without_the_key(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), launch="process", settings={"shell": "cat note; exit 7"})
    message = failed(rollout, CauseClass.HARNESS, "agent")
    assert "note for tests-t-0 [key]" in message
    (log,) = (world.directory / "attempts").glob("*/1/agent.log")
    assert "[key]" in log.read_text()


async def test_an_adapter_that_cannot_read_the_end_is_a_crash(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), launch="process", settings={"shell": "echo garbage"})
    assert "cannot read garbage" in failed(rollout, CauseClass.HARNESS, "agent")


def test_no_key_and_no_secret_is_in_the_run_directory(tmp_path: Path) -> None:
    """Runs last on what the others do: a crash, a solved task, both launches."""

    async def all_kinds(world: World) -> None:
        async with world.serving():
            for number, (launch, settings) in enumerate(
                [("pool", {"raise": "x"}), ("pool", {"command": "touch done"}), ("process", {"shell": "cat note; exit 7"})]
            ):
                await run_one(world, write_task(tmp_path / f"t{number}"), launch=launch, settings=settings)

    world = World(tmp_path / "run")
    asyncio.run(all_kinds(world))
    world.close()
    from whippletree.gateway.keys import mint

    keys = [mint(world.secret, f"tests-t{number}-0", 1).encode() for number in range(3)]
    for path in (path for path in world.directory.rglob("*") if path.is_file() and path.name != "secret"):
        data = path.read_bytes()
        assert not any(key in data for key in keys), path
        assert world.secret.hex().encode() not in data
