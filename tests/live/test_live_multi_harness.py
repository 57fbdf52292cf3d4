"""The example of several real harnesses in one run, with the agents that are installed: each is captured, none fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from whippletree.loop.layout import Layout
from whippletree.store import open_store

INSTALLED = os.environ.get("WHIPPLETREE_HARNESSES", "")
ROOT = Path(__file__).parents[2]
DIALECTS = {"mini": "chat", "codex": "responses", "pi": "chat"}

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not INSTALLED, reason="set WHIPPLETREE_HARNESSES to where `make env-harnesses` put the agents"),
]


def test_the_live_example_runs_through_mini_codex_and_pi(tmp_path: Path) -> None:
    settings = [f"control.harness_directory={INSTALLED}", "loop.steps=1"]
    settings += [
        f"sources.{number}.tasks.family.{key}" for number in range(3) for key in ("train=2", "heldout=1", "grades=[1]")
    ]
    command = [sys.executable, "-m", "whippletree.cli", "train", "--plain", "examples/multi_harness/live.toml"]
    command += ["--run-dir", str(tmp_path / "run"), *(f"--set={item}" for item in settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    with open_store(Layout(tmp_path / "run").store) as store:
        rollouts = store.rollouts()
        calls = {
            (rollout.spec.source, call.dialect)
            for rollout in rollouts
            for call in store.calls(rollout.spec.rollout_id, rollout.attempt)
            if call.delivered
        }
    assert {(rollout.state, rollout.cause) for rollout in rollouts} == {("succeeded", None)}
    assert calls == set(DIALECTS.items())
    assert Counter(rollout.spec.source for rollout in rollouts if rollout.spec.purpose == "train") == dict.fromkeys(DIALECTS, 2)
