"""Attempts at tasks with several steps, artifacts, healthchecks, separate verifiers; limits of the agent and of the whole."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from attempt_parts import failed, run_one
from control_world import REWARD, World, until, write_task
from rich.console import Console

from whippletree.control.config import DeadlineConfig
from whippletree.loop.layout import Layout
from whippletree.types import CauseClass
from whippletree.ui.rollout import print_rollout

STEPS = """
[[steps]]
name = "one"
min_reward = 1.0
[[steps]]
name = "two"
artifacts = ["done"]
"""
OUT = '"$WHIPPLETREE_ROOT/logs/verifier/reward.json"'
GRADE = f'#!/bin/sh\n[ -e $STEP ] && r=1 || r=0\necho "{{\\"reward\\": $r, \\"style\\": 0.5}}" > {OUT}\n'
ASK = f'{sys.executable} -c "$ASK" && '


def write_steps(directory: Path, toml: str = STEPS, **files: str) -> Path:
    """Two steps: `one` is passed by a file of that name, `two` by `done`."""
    texts = {
        "steps/one/instruction.md": "make one",
        "steps/one/tests/test.sh": GRADE.replace("$STEP", "one"),
        "steps/two/instruction.md": "make done",
        "steps/two/tests/test.sh": GRADE.replace("$STEP", "done"),
        **files,
    }
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return write_task(directory, toml=toml)


async def test_the_harness_is_launched_once_per_step_under_one_key(world: World, tmp_path: Path) -> None:
    asked: list[str] = []
    world.say = lambda prompt: asked.append(prompt) or "ok"
    rollout, attempt = await run_one(world, write_steps(tmp_path / "t"), settings={"command": "touch one done"})
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert ["make one" in asked[0], "make done" in asked[1], len(asked)] == [True, True, 2]
    calls = world.store.calls(rollout.spec.rollout_id, 1)
    assert [(call.attempt, attempt.step_at(call.times.received)) for call in calls] == [(1, "one"), (1, "two")]
    assert [(phase.name, phase.step) for phase in attempt.phases] == [
        ("boot", ""),
        ("setup", "one"),
        ("agent", "one"),
        ("collect", "one"),
        ("verify", "one"),
        ("setup", "two"),
        ("agent", "two"),
        ("seal", ""),
        ("collect", "two"),
        ("verify", "two"),
        ("cleanup", ""),
    ]
    assert all(phase.limit > 0 and not phase.overran for phase in attempt.phases)
    assert attempt.result is not None and attempt.result.scores == {"reward": 1.0, "style": 0.5}
    assert [(step.name, step.reward, step.exit_status) for step in attempt.result.steps] == [
        ("one", 1.0, "Submitted"),
        ("two", 1.0, "Submitted"),
    ]
    events = [event.data for event in world.store.events(rollout.spec.rollout_id) if event.kind == "phase"]
    assert [data["step"] for data in events if data["name"] == "agent"] == ["one", "two"]
    console = Console(file=io.StringIO(), width=250, record=True)
    print_rollout(world.store, Layout(world.directory), rollout.spec.rollout_id, tokens=False, console=console)
    shown = console.export_text()
    assert "agent of two" in shown and "step one: reward 1, Submitted" in shown and "#  step" in shown
    (kept,) = world.directory.glob("attempts/*/1/artifacts/two/app/done")
    assert json.loads((kept.parents[1] / "manifest.json").read_text())["step"] == "two"


async def test_a_harness_in_the_sandbox_starts_afresh_in_each_step(world: World, tmp_path: Path) -> None:
    shell = f"{ASK} cat note && touch one done"
    rollout, attempt = await run_one(world, write_steps(tmp_path / "t"), launch="process", settings={"shell": shell})
    assert rollout.reward == 1.0 and attempt.exit_status == "exit 0"
    logs = sorted(
        path.relative_to(world.directory).parts[-2] for path in world.directory.glob("attempts/*/1/steps/*/agent.log")
    )
    assert logs == ["one", "two"]


async def test_below_its_least_reward_no_further_step_runs(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_steps(tmp_path / "t"), settings={"command": "touch done"})
    assert (rollout.state, rollout.reward) == ("succeeded", 0.0) and world.turns == 1
    assert attempt.result is not None and [step.name for step in attempt.result.steps] == ["one"]
    assert "seal" in [phase.name for phase in attempt.phases] and attempt.cut_short is None


async def test_a_crash_in_a_later_step_keeps_the_record_of_the_earlier_and_gives_no_reward(
    world: World, tmp_path: Path
) -> None:
    shell = f"{ASK} if [ -e one ]; then echo fell over; exit 3; fi; touch one"
    rollout, attempt = await run_one(world, write_steps(tmp_path / "t"), launch="process", settings={"shell": shell})
    assert "fell over" in failed(rollout, CauseClass.HARNESS, "agent")
    assert rollout.cause is not None and rollout.cause.step == "two"
    assert attempt.result is not None and [step.reward for step in attempt.result.steps] == [1.0]


async def test_a_steps_files_and_script_come_before_its_agent(world: World, tmp_path: Path) -> None:
    task = write_steps(tmp_path / "t", **{"steps/two/workdir/setup.sh": "#!/bin/sh\nmv one two\n"})
    rollout, _ = await run_one(world, task, settings={"command": "[ -e two ] && touch done || touch one"})
    assert rollout.reward == 1.0


async def test_set_up_that_fails_is_a_cause_of_its_own(world: World, tmp_path: Path) -> None:
    task = write_steps(tmp_path / "t", **{"steps/one/workdir/setup.sh": "#!/bin/sh\necho no disk; exit 3\n"})
    rollout, attempt = await run_one(world, task, max_attempts=2)
    assert "no disk" in failed(rollout, CauseClass.SETUP, "setup") and attempt.attempt == 2


@pytest.mark.parametrize(("command", "reward"), [("true", 1.0), ("echo sick; false", None)])
async def test_a_healthcheck_is_a_phase(world: World, tmp_path: Path, command: str, reward: float | None) -> None:
    toml = f"[environment.healthcheck]\ncommand = {command!r}\nretries = 1\n"
    rollout, attempt = await run_one(world, write_task(tmp_path / "t", toml=toml))
    assert [phase.name for phase in attempt.phases][1] == "healthcheck" and rollout.reward == reward
    if reward is None:
        assert "sick" in failed(rollout, CauseClass.SETUP, "healthcheck")


async def test_a_separate_verifier_boots_beside_the_agent_and_is_gone(world: World, tmp_path: Path) -> None:
    toml = 'artifacts = ["done"]\n[verifier]\nenvironment_mode = "separate"\n'
    task = write_task(tmp_path / "t", f"#!/bin/sh\n[ -e done ] && [ ! -e other ] && echo 1 {REWARD} || echo 0 {REWARD}\n", toml)
    names = world.add(1, task)
    async with world.controlling(world.spec(settings={"command": "touch done other; sleep 1"})):
        await until(lambda: len(world.boxes()) == 2)
        assert sorted(name.rpartition("-")[2] for name in world.boxes()) == ["1", "v0"]
        (rollout,) = await world.finished(names)
        await until(lambda: world.boxes() == [])
    assert rollout.reward == 1.0


async def test_a_separate_verifier_is_gone_when_the_attempt_is_stopped(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", toml='[verifier]\nenvironment_mode = "separate"\n')
    names = world.add(1, task)
    async with world.controlling(world.spec(settings={"command": "sleep 1000"})):
        await until(lambda: len(world.boxes()) == 2)
    assert world.boxes() == [] and world.store.rollout(names[0]).state == "queuing"


async def test_the_rule_of_the_configuration_gives_the_reward_and_is_recorded(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", GRADE.replace("$STEP", "done"))
    rollout, attempt = await run_one(world, task, reward="0.8 * reward + 0.2 * style")
    assert rollout.reward == pytest.approx(0.9)
    assert attempt.result is not None and attempt.result.expression == "0.8 * reward + 0.2 * style"


async def test_a_rule_that_names_no_score_is_a_configuration_error_with_the_nearest(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", GRADE.replace("$STEP", "done"))
    rollout, attempt = await run_one(world, task, reward="stile", max_attempts=3)
    failed(rollout, CauseClass.CONFIGURATION, "verify")
    assert rollout.cause is not None and "style" in rollout.cause.next_step and attempt.attempt == 1


async def test_variables_of_the_configuration_reach_the_task(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", f'#!/bin/sh\necho "$LEVEL" {REWARD}\n', "[verifier.env]\nLEVEL = '${LEVEL}'\n")
    rollout, _ = await run_one(world, task, variables={"LEVEL": "0.25"})
    assert rollout.reward == 0.25
    other = write_task(tmp_path / "u", toml="[verifier.env]\nLEVEL = '${LEVEL}'\n")
    rollout, _ = await run_one(world, other)
    assert "the variable LEVEL is not given" in failed(rollout, CauseClass.TASK, "boot")


async def test_a_user_cannot_be_given_to_a_harness_outside_the_sandbox(world: World, tmp_path: Path) -> None:
    rollout, _ = await run_one(world, write_task(tmp_path / "t", toml="[agent]\nuser = 'coder'\n"))
    assert "agent.user = coder" in failed(rollout, CauseClass.CONFIGURATION, "boot")


@pytest.mark.parametrize(
    ("setting", "state", "attempts"), [("score", "succeeded", 1), ("mask", "failed", 1), ("retry", "failed", 2)]
)
async def test_an_agent_out_of_budget_is_judged_masked_or_tried_again(
    world: World, tmp_path: Path, setting: str, state: str, attempts: int
) -> None:
    settings = {"command": "touch done", "ran_out": "budget"}
    rollout, attempt = await run_one(
        world, write_task(tmp_path / "t"), settings=settings, out_of_budget=setting, max_attempts=2
    )
    assert (rollout.state, attempt.attempt) == (state, attempts)
    if setting == "score":
        assert rollout.reward == 1.0 and attempt.cut_short is not None and attempt.cut_short.cause is CauseClass.BUDGET
    else:
        failed(rollout, CauseClass.BUDGET, "agent")
        assert attempt.cut_short is None


async def test_the_whole_attempt_has_a_limit_that_names_the_phase(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", test="#!/bin/sh\nsleep 60\n")
    rollout, attempt = await run_one(world, task, deadlines=DeadlineConfig(grace=2.0, seal=10.0, total=8.0))
    message = failed(rollout, CauseClass.DEADLINE, "verify")
    assert "within 8 s" in message and rollout.cause is not None and "deadlines.total" in rollout.cause.next_step
    assert [phase.name for phase in attempt.phases if phase.overran] == ["verify"] and attempt.phases[-1].name == "cleanup"


async def test_hooks_that_take_too_long_overrun_the_collect_phase(world: World, tmp_path: Path) -> None:
    toml = "[[verifier.collect]]\ncommand = 'sleep 60'\n"
    rollout, attempt = await run_one(
        world, write_task(tmp_path / "t", toml=toml), deadlines=DeadlineConfig(grace=2.0, seal=10.0, collect=0.5)
    )
    failed(rollout, CauseClass.DEADLINE, "collect")
    assert [phase.name for phase in attempt.phases if phase.overran] == ["collect"]


async def test_stopping_between_the_steps_leaves_nothing(world: World, tmp_path: Path) -> None:
    names = world.add(1, write_steps(tmp_path / "t"))
    command = "if [ -e one ]; then sleep 1000; fi; touch one"
    async with world.controlling(world.spec(settings={"command": command})):
        await until(lambda: world.turns == 2)
        await asyncio.sleep(0.1)
    (attempt,) = world.store.attempts(names[0])
    assert world.boxes() == [] and attempt.cause is not None and attempt.cause.cause is CauseClass.CANCELLED
    assert attempt.result is not None and [step.reward for step in attempt.result.steps] == [1.0]


async def test_tests_and_solution_are_not_there_while_the_agent_works(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t")
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\ntouch done\n")
    look = 'find "$WHIPPLETREE_ROOT" -name "test.sh" -o -name "solve.sh" -o -name "reward.*" | grep . && exit 1; touch done'
    rollout, _ = await run_one(world, task, settings={"command": look})
    assert rollout.reward == 1.0
