"""Cases of attempts: what hangs, lingers, times out or dies in one rollout must not spoil it, or the others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

CONTROL = str(Path(__file__).parents[1] / "control")
sys.path.insert(0, CONTROL)  # control_world, attempt_parts, harness_parts

from attempt_parts import failed, run_one  # noqa: E402
from control_world import REWARD, World, until, write_task  # noqa: E402

from whippletree.control.config import DeadlineConfig  # noqa: E402
from whippletree.engines.scripted import Faults  # noqa: E402
from whippletree.gateway.client import GatewayControl  # noqa: E402
from whippletree.gateway.keys import control_key  # noqa: E402
from whippletree.sandboxes import SandboxConfig  # noqa: E402
from whippletree.types import CauseClass  # noqa: E402

ASK = f'{sys.executable} -c "$ASK"'


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("PYTHONPATH", CONTROL, prepend=":")
    made = World(tmp_path / "run")
    async with made.serving():
        yield made
    made.close()


# --- D02: 256 rollouts, ConnectionResetError in number 17 -------------------------------------------------------------


@pytest.mark.parametrize("count", [32, pytest.param(256, marks=pytest.mark.slow)])
async def test_D02_an_exception_in_one_rollout_leaves_the_others_alone(world: World, tmp_path: Path, count: int) -> None:
    names = world.add(count, write_task(tmp_path / "t"), max_attempts=1)
    settings = {"command": "touch done", "reset_in": names[17]}
    async with world.controlling(world.spec(concurrency=16, settings=settings)):
        rollouts = await world.finished(names, 100.0)
    ended = {rollout.spec.rollout_id: (rollout.state, rollout.reward) for rollout in rollouts}
    assert ended.pop(names[17]) == ("failed", None)
    assert len(ended) == count - 1 and set(ended.values()) == {("succeeded", 1.0)}
    cause = rollouts[17].cause
    assert cause is not None and cause.cause is CauseClass.HARNESS and "ConnectionResetError" in cause.message


async def test_D02_a_cancellation_still_reaches_whoever_cancelled(world: World, tmp_path: Path) -> None:
    names = world.add(2, write_task(tmp_path / "t"))
    from whippletree.control.process import run

    task = asyncio.create_task(run(world.spec(settings={"command": "sleep 1000"}), asyncio.Event()))
    await until(lambda: world.turns == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.boxes() == [] and {world.store.rollout(name).state for name in names} == {"queuing"}


# --- D07: create hangs; own limits for set-up, agent, verify, clean-up and the total ------------------------------------


async def test_D07_a_sandbox_stuck_while_booting_ends_at_the_limit_of_boot(world: World, tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\nexec sleep 1800\n")
    bwrap.chmod(0o755)
    world.sandbox = SandboxConfig(
        kind="bubblewrap", root=world.sandbox.root, bwrap=str(bwrap), start_seconds=1800.0, stop_seconds=0.5
    )
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), deadlines=DeadlineConfig(boot=0.5))
    failed(rollout, CauseClass.DEADLINE, "boot")
    assert [(phase.name, phase.limit, phase.overran) for phase in attempt.phases] == [
        ("boot", 0.5, True),
        ("cleanup", 20.0, False),
    ]


SLEEP = "#!/bin/sh\nsleep 1800\n"
STEP = '[[steps]]\nname = "one"\n'


@pytest.mark.parametrize(
    ("phase", "cause", "limits", "toml", "files"),
    [
        ("setup", CauseClass.DEADLINE, {"setup": 0.5}, STEP, {"steps/one/workdir/setup.sh": SLEEP}),
        ("healthcheck", CauseClass.DEADLINE, {"healthcheck": 0.5}, "[environment.healthcheck]\ncommand = 'sleep 1800'\n", {}),
        ("collect", CauseClass.DEADLINE, {"collect": 0.5}, "[[verifier.collect]]\ncommand = 'sleep 1800'\n", {}),
        ("verify", CauseClass.VERIFIER, {"verify": 0.5}, "", {"tests/test.sh": SLEEP}),
        ("verify", CauseClass.DEADLINE, {"total": 8.0}, "", {"tests/test.sh": SLEEP}),
    ],
)
async def test_D07_every_phase_has_its_own_limit_and_is_named(
    world: World, tmp_path: Path, phase: str, cause: CauseClass, limits: dict, toml: str, files: dict[str, str]
) -> None:
    task = write_task(tmp_path / "t", toml=toml)
    for name, text in {**({"steps/one/instruction.md": "one"} if toml == STEP else {}), **files}.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    rollout, attempt = await run_one(world, task, deadlines=DeadlineConfig(**{"grace": 2.0, "seal": 10.0, **limits}))
    failed(rollout, cause, phase)
    assert attempt.phases[-1].name == "cleanup" and attempt.phases[-2].name == phase


async def test_D07_the_agents_limit_is_the_agents(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(
        world,
        write_task(tmp_path / "t"),
        settings={"command": "sleep 1800"},
        agent_timeout="mask",
        deadlines=DeadlineConfig(agent=6.0, grace=2.0, seal=10.0),
    )
    failed(rollout, CauseClass.AGENT_TIMEOUT, "agent")
    assert attempt.result is not None and attempt.result.scores == {"reward": 0.0}  # judged, and of no account


# --- D08: a time-out of the agent inside one step of several --------------------------------------------------------------


def two_steps(directory: Path) -> Path:
    for name, wanted in (("one", "one"), ("two", "done")):
        (directory / "steps" / name / "tests").mkdir(parents=True)
        (directory / "steps" / name / "instruction.md").write_text(f"make {wanted}")
        test = f"#!/bin/sh\n[ -e {wanted} ] && echo 1 {REWARD} || echo 0 {REWARD}\n"
        (directory / "steps" / name / "tests" / "test.sh").write_text(test)
    """Of them the second has little time."""
    toml = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n[steps.agent]\ntimeout_sec = 1.5\n'
    return write_task(directory, toml=toml)


SLEEPS_IN_TWO = {"command": "if [ -e one ]; then sleep 1800; fi; touch one"}


async def test_D08_a_time_out_in_a_step_is_not_a_wrong_answer(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, two_steps(tmp_path / "t"), settings=SLEEPS_IN_TWO)
    assert (rollout.state, rollout.reward) == ("succeeded", 0.5)  # the setting is "score": what it left is judged
    assert attempt.cut_short is not None and attempt.cut_short.cause is CauseClass.AGENT_TIMEOUT
    assert attempt.result is not None
    one, two = attempt.result.steps
    assert (one.reward, one.cause) == (1.0, None)
    assert two.reward == 0.0 and two.cause is not None and two.cause.cause is CauseClass.AGENT_TIMEOUT


async def test_D08_finished_with_reward_0_is_told_from_it(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, two_steps(tmp_path / "t"), settings={"command": "touch one"})
    assert (rollout.state, rollout.reward, attempt.cut_short) == ("succeeded", 0.5, None)
    assert attempt.result is not None and attempt.result.steps[1].cause is None


@pytest.mark.parametrize(("setting", "attempts", "steps"), [("mask", 1, [1.0, 0.0]), ("retry", 2, [1.0])])
async def test_D08_what_follows_from_a_time_out_is_a_setting(
    world: World, tmp_path: Path, setting: str, attempts: int, steps: list[float]
) -> None:
    rollout, attempt = await run_one(
        world, two_steps(tmp_path / "t"), settings=SLEEPS_IN_TWO, agent_timeout=setting, max_attempts=2
    )
    failed(rollout, CauseClass.AGENT_TIMEOUT, "agent")
    assert attempt.attempt == attempts
    assert attempt.result is not None and [step.reward for step in attempt.result.steps] == steps


# --- D09: (sleep 100000 &) ; the final answer; exit ---------------------------------------------------------------------


@pytest.mark.parametrize("launch", ["process", "pool"])
async def test_D09_what_the_agent_left_running_does_not_keep_it(world: World, tmp_path: Path, launch: str) -> None:
    mark = f"1{abs(hash(str(tmp_path))) % 10**9}.5"
    left = f"(sleep {mark} & setsid sleep {mark} &) ; touch done; echo the final answer"
    settings = {"shell": f"{ASK} && {left}"} if launch == "process" else {"command": f"({left}) > /dev/null 2>&1"}
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), launch=launch, settings=settings)
    assert (rollout.state, rollout.reward, attempt.cut_short) == ("succeeded", 1.0, None)
    if launch == "process":
        assert attempt.exit_status == "exit 0"
        (log,) = world.directory.glob("attempts/*/1/agent.log")
        assert "the final answer" in log.read_text()
    assert not any(mark.encode() in line for line in command_lines())


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


async def test_D09_an_agent_cannot_turn_its_output_into_an_infrastructure_fault(world: World, tmp_path: Path) -> None:
    shell = f'{ASK}; for f in "$WHIPPLETREE_ROOT"/logs/agent/*; do rm "$f"; ln -s /etc/passwd "$f"; done'
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), launch="process", settings={"shell": shell})
    assert (rollout.state, rollout.reward) == ("succeeded", 0.0)


# --- D13: reward functions that sleep, and 50 MB of JSON, for many rollouts at once ----------------------------------------


async def test_D13_blocking_verifiers_and_huge_rewards_leave_the_loops_free(world: World, tmp_path: Path) -> None:
    huge = 'printf \'{"reward": 1, "x": \' > $out; head -c 50000000 /dev/zero | tr "\\0" 1 >> $out; echo "}" >> $out'
    test = f'#!/bin/sh\nout="$WHIPPLETREE_ROOT/logs/verifier/reward.json"\ntouch "{tmp_path}/judging"; sleep 1; {huge}\n'
    names = world.add(8, write_task(tmp_path / "t", test=test), max_attempts=1)
    control = GatewayControl(f"http://127.0.0.1:{world.port}", control_key(world.secret), patience=0.0)
    async with world.controlling(world.spec(concurrency=8)):
        await until((tmp_path / "judging").exists)
        answers = 0
        while not all(world.store.rollout(name).terminal for name in names):
            await asyncio.wait_for(asyncio.to_thread(control.status), 30.0)  # the gateway answers meanwhile
            answers += 1
            await asyncio.sleep(0.02)
        rollouts = await world.finished(names)
    assert answers > 0
    for rollout in rollouts:
        assert "larger than 65536 bytes" in failed(rollout, CauseClass.VERIFIER, "verify")


# --- D27: limit 8; cancel all 8, then start 8 new ------------------------------------------------------------------------


async def test_D27_cancelling_reaches_sandbox_and_engine_and_frees_the_places(world: World, tmp_path: Path) -> None:
    world.engine.faults = Faults(first_token_seconds=1000.0)
    names = world.add(16, write_task(tmp_path / "t"))
    spec = world.spec(concurrency=8)
    most = 0
    async with world.controlling(spec):
        while len(world.engine._running) < 8:
            most = max(most, len(world.boxes()))
            await asyncio.sleep(0.01)
        assert len(world.store.rollouts(states=("running",))) == 8
    assert world.boxes() == []
    await until(lambda: not world.engine._running)  # their requests were aborted, not left to finish
    world.engine.faults = Faults()
    async with world.controlling(spec):
        while not all(world.store.rollout(name).terminal for name in names):
            most = max(most, len(world.boxes()))
            await asyncio.sleep(0.005)
    assert 0 < most <= 8 and world.boxes() == []
    assert {world.store.rollout(name).reward for name in names} == {1.0}


# --- D33: the harness's session is killed between turn 1 and turn 2 ---------------------------------------------------------


async def test_D33_a_session_that_vanishes_between_turns_is_lost_and_never_carried_on(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    shell = f"{ASK}; if [ ! -e {mark} ]; then touch {mark} done; kill -9 $$; fi; {ASK}; touch done"
    task = write_task(tmp_path / "t")
    (name,) = world.add(1, task, max_attempts=2)
    async with world.controlling(world.spec(launch="process", settings={"shell": shell})):
        (rollout,) = await world.finished([name])
    first, second = world.store.attempts(name)
    assert first.result is None and first.cause is not None and first.cause.cause is CauseClass.HARNESS
    assert first.exit_status == "exit -9" and "verify" not in [phase.name for phase in first.phases]  # though `done` was there
    assert (rollout.state, rollout.reward, second.attempt) == ("succeeded", 1.0, 2)
    turns = [[call.attempt for call in world.store.calls(name, number)] for number in (1, 2)]
    assert turns == [[1], [2, 2]]  # nothing of the lost session is in the new one


async def test_D33_without_another_attempt_it_ends_failed(world: World, tmp_path: Path) -> None:
    shell = f"{ASK}; touch done; kill -9 $$"
    rollout, _ = await run_one(world, write_task(tmp_path / "t"), launch="process", settings={"shell": shell})
    failed(rollout, CauseClass.HARNESS, "agent")
