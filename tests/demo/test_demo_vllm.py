"""Training with a real vLLM as the engine: harness, gateway, vLLM, in-place weight updates, agreement with the learner."""

from __future__ import annotations

import os
from pathlib import Path

import demo_parts as parts
import pytest

PYTHON = os.environ.get("WHIPPLETREE_VLLM_PYTHON", "")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.live,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PYTHON, reason="set WHIPPLETREE_VLLM_PYTHON to the interpreter of a vLLM environment (make env-vllm)"
    ),
]


def test_a_run_trains_through_vllm(tmp_path: Path):
    directory = tmp_path / "run"
    settings = (
        "loop.steps=3", "loop.groups_per_step=4", "loop.groups_in_flight=6", "loop.eval_every=0", "loop.eval_samples=1",
        "sources.0.tasks.family={train = 24, heldout = 12}",
        f'engine={{kind = "vllm", python = "{PYTHON}", dtype = "float32", context = 512}}',
    )  # fmt: skip
    summary = parts.finish(parts.start(directory, *settings), directory)
    assert summary["complete"]
    assert summary["failed_rollouts"] == 0
    assert summary["logprob_max_abs_diff"] <= 1e-4
    assert summary["logprob_correlation"] >= 0.9999
    parts.assert_trained_once(directory, 3)
