"""The example of an agent of one's own, at toy size: it is trained through a pool host, by its own run file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import demo_parts as parts
import pytest

from whippletree.loop.layout import Layout
from whippletree.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOY = (
    "model.tiny.warmup.steps=60",
    "loop.steps=2",
    "loop.groups_per_step=2",
    "loop.group_size=2",
    "loop.groups_in_flight=2",
    "loop.eval_every=0",
    "sources.0.tasks.family.heldout=2",
    "model.tiny.family.heldout=2",
    "control.concurrency=4",
    "control.pool.hosts=1",
    "engine.slots=8",
)


def test_the_run_file_of_the_example_trains(tmp_path: Path):
    directory = tmp_path / "run"
    run_file = "examples/own_agent/run.toml"
    overrides = [f"--set={item}" for item in TOY]
    command = parts.command("train", "--plain", run_file, "--run-dir", str(directory), *overrides)
    output = directory.with_suffix(".out").open("a")
    process = subprocess.Popen(command, cwd=parts.ROOT, stdout=output, stderr=output, text=True, start_new_session=True)
    summary = parts.finish(process, directory)
    parts.assert_trained_once(directory, 2)
    assert summary["rollouts"] >= 8
    with open_store(Layout(directory).store) as store:
        rollouts = [store.rollout(name) for record in store.steps() for name in record.rollout_ids]
        assert rollouts and all(rollout.state == "succeeded" for rollout in rollouts)
        calls = [call for rollout in rollouts for call in store.calls(rollout.spec.rollout_id, 1)]
        assert calls and all(call.delivered and call.dialect == "chat" and call.role == "main" for call in calls)
