"""One training run through three real harnesses: mini-SWE-agent in a pool host, Codex and pi as processes.

Everything is real but the tasks' rewards, which are drawn at random, so that every group has something to teach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whippletree.control.place import attempt_directory
from whippletree.loop.layout import Layout
from whippletree.store import open_store
from whippletree.traces import load_trace, read_account, reconcile
from whippletree.types import Rollout

INSTALLED = os.environ.get("WHIPPLETREE_HARNESSES", "")
DIALECTS = {"mini": "chat", "codex": "responses", "pi": "chat"}

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not INSTALLED, reason="set WHIPPLETREE_HARNESSES to where `make env-harnesses` put the agents"),
]

RUN = """
[model]
kind = "tiny"

# Long enough for the prompts of all three; the warm-up is too short to learn much.
[model.tiny]
context_length = 6144
warmup = {{ steps = 30 }}

[[sources]]
name = "mini"
tasks = {{ kind = "directory", train = "{tasks}/train", heldout = "{tasks}/heldout" }}

[sources.harness]
name = "mini-swe-agent"
settings = {{ system_template = "Work with the bash tool.", step_limit = 3 }}

[[sources]]
name = "codex"
tasks = {{ kind = "directory", train = "{tasks}/train", heldout = "{tasks}/heldout" }}

[sources.harness]
name = "codex"
launch = "process"
settings = {{ system_prompt = "Work with the tools.", environment_context = false }}

[[sources]]
name = "pi"
tasks = {{ kind = "directory", train = "{tasks}/train", heldout = "{tasks}/heldout" }}

[sources.harness]
name = "pi"
launch = "process"
settings = {{ system_prompt = "Work with the bash tool.", tools = ["bash"], step_limit = 3 }}

[sampling]
max_tokens = 24

[loop]
kind = "synchronous"
steps = 1
groups_per_step = 3
group_size = 2
eval_every = 0

[learner]
token_budget = 16384

[engine]
kind = "embedded"
slots = 8
context = 6144

[control]
launch = "pool"
concurrency = 4
harness_directory = "{harnesses}"

[control.pool]
hosts = 1
"""
TASK = {
    "task.toml": "",
    "instruction.md": "start at amber and submit the code",
    "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
    "tests/test.sh": "#!/bin/sh\nod -An -N2 -tu2 /dev/urandom | awk '{print $1 / 65536}' > /logs/verifier/reward.txt\n",
}


def write_tasks(directory: Path) -> Path:
    for name in ("train/a", "train/b", "heldout/c"):
        for file, text in TASK.items():
            path = directory / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return directory


def train(directory: Path) -> Path:
    """A whole run; fails with its output."""
    tasks = write_tasks(directory / "tasks")
    (directory / "run.toml").write_text(RUN.format(tasks=tasks, harnesses=INSTALLED))
    command = [sys.executable, "-m", "whippletree.cli", "train", "--plain", "run.toml", "--run-dir", "run"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1100, check=False)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (directory / "run/logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{logs}"
    return directory / "run"


def check_rollout(layout: Layout, rollout: Rollout) -> int:
    """A rollout is recorded whole, and its harness tells of exactly the captured calls. Returns its sampled tokens."""
    with open_store(layout.store) as store:
        trace = load_trace(store, rollout)
    spec = rollout.spec
    assert (rollout.state, rollout.cause) == ("succeeded", None) and rollout.reward is not None, rollout
    assert trace.nodes and all(node.call.dialect == DIALECTS[spec.source] and node.call.delivered for node in trace.nodes)
    output = attempt_directory(layout.directory, spec.rollout_id, rollout.attempt)
    found = reconcile(trace, read_account(output / "account.json"))
    assert found.worst != "FATAL" and found.turns == len(found.pairs) == len(trace.nodes), found
    assert (output / "agent.log").exists() == (spec.source != "mini")  # a tenant of a pool host has no output of its own
    return sum(node.call.sampled_tokens for node in trace.nodes)


def test_one_run_trains_through_three_harnesses_in_both_launch_modes(tmp_path: Path) -> None:
    layout = Layout(train(tmp_path))
    with open_store(layout.store) as store:
        rollouts = store.rollouts()
        (step,) = store.steps()
    assert {(rollout.spec.source, rollout.spec.purpose) for rollout in rollouts} == {
        (source, purpose) for source in DIALECTS for purpose in ("train", "eval")
    }
    tokens = {rollout.spec.rollout_id: check_rollout(layout, rollout) for rollout in rollouts}
    assert step.committed and {
        layout_name.spec.rollout_id for layout_name in rollouts if layout_name.spec.purpose == "train"
    } == set(step.rollout_ids)
    line = json.loads((layout.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["tokens_trained"] == sum(tokens[name] for name in step.rollout_ids) > 0
    assert line["logprob_max_abs_diff"] < 1e-3 and line["failed"] == 0
