"""The whole left half on real parts: mini-SWE-agent follows trails in sandboxes, and the gateway records every token."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from control_world import World

from whippletree.control.config import PoolConfig
from whippletree.sandboxes import probe
from whippletree.tasks import TrailFamily
from whippletree.tasks.trail import write_tasks

pytest.importorskip("minisweagent")
pytestmark = pytest.mark.live

CASES = [("pool", "process", 3), ("pool", "bubblewrap", 3), ("process", "bubblewrap", 1)]  # a process each costs seconds


def follow(prompt: str) -> str:
    """What a perfect model says: read on until the code is seen, then submit it."""
    found = re.findall(r'\{"(next|code)": "(\w+)"\}', prompt)
    if found and found[-1][0] == "code":
        command = f"submit {found[-1][1]}"
    else:
        name = found[-1][1] if found else re.findall(r"start at (\w+)", prompt)[-1]
        command = f"cat {name}"
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


@pytest.mark.parametrize(("launch", "kind", "count"), CASES)
async def test_trails_are_followed_and_every_token_is_recorded(tmp_path: Path, launch: str, kind: str, count: int) -> None:
    if kind == "bubblewrap" and not probe().works:
        pytest.skip("bubblewrap does not work on this machine")
    tasks, _ = write_tasks(tmp_path / "tasks", TrailFamily(train=count, heldout=1, depths=(2, 1, 3), seed=5))
    world = World(tmp_path / "run", kind)
    world.say = follow
    async with world.serving():
        spec = world.spec(
            adapter="mini-swe-agent",
            harness="mini",
            launch=launch,
            pool=PoolConfig(hosts=1),
            settings={"step_limit": 6, "observation_template": "{{output.output}}"},
        )
        names = [name for task in tasks for name in world.add(1, task, harness="mini", max_attempts=1)]
        async with world.controlling(spec):
            rollouts = await world.finished(names, 100)
    assert {(rollout.state, rollout.reward) for rollout in rollouts} == {("succeeded", 1.0)}, [r.cause for r in rollouts]
    assert world.boxes() == []
    for rollout in rollouts:
        (attempt,) = world.store.attempts(rollout.spec.rollout_id)
        calls = world.store.calls(rollout.spec.rollout_id, 1)
        assert attempt.exit_status == "Submitted"
        assert all(call.delivered and call.sampled_tokens for call in calls)
        assert [call.prefix_break for call in calls] == ["first"] + [""] * (len(calls) - 1)
        for call in calls:
            payload = world.store.payload(call)
            assert len(payload.sampled_ids) == len(payload.logprobs) == call.sampled_tokens
    assert len(list((world.directory / "attempts").glob("*/1/trajectory.json"))) == count
    world.close()
