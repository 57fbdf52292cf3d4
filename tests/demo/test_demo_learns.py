"""The demo at reduced size, through the real harness in real sandboxes: the model gets better, by a margin."""

from __future__ import annotations

import json
from pathlib import Path

import demo_parts as parts
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(1200)]

KEYS = {
    "heldout_before", "heldout_after", "seconds_total", "logprob_max_abs_diff", "logprob_correlation", "rollouts", "calls",
    "tokens_trained", "seed",
}  # fmt: skip


def test_held_out_success_rises_and_the_record_is_whole(tmp_path: Path):
    directory = tmp_path / "run"
    summary = parts.finish(parts.start(directory, "loop.steps=16", "loop.eval_samples=1", "loop.eval_every=0"), directory)
    assert summary.keys() >= KEYS
    assert summary["heldout_after"] - summary["heldout_before"] >= 0.2
    assert summary["logprob_max_abs_diff"] <= 1e-4
    assert summary["logprob_correlation"] >= 0.9999
    parts.assert_trained_once(directory, 16)
    for name in ("config.toml", "metrics.jsonl", "metrics.parquet", "eval.jsonl", "report.html", "report.png"):
        assert (directory / name).stat().st_size > 0
    assert list((directory / "checkpoints").glob("step-0016/model.safetensors"))
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert max(line["weight_check_diff"] or 0.0 for line in lines if "weight_check_diff" in line) <= 1e-4
