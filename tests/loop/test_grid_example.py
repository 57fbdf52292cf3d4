"""examples/grid at toy size: the demo's model through the real mini-SWE-agent, then fine-tuning on what it did well."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from grid_parts import ROOT, command, environment, evaluate

from whippletree.loop.grid.running import GridLayout, read_grid, read_results, record_of
from whippletree.loop.sft.exporting import read_chat
from whippletree.loop.sft.training import SftSummary

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(900)]


def test_the_example_runs_and_its_successes_are_learned_from(tmp_path: Path):
    layout = GridLayout(tmp_path / "g")
    small = ["--set", "grid.samples=6", "--set", "sources.0.limit=4", "--set", "grid.resamples=500"]
    ended = evaluate(str(ROOT / "examples/grid/grid.toml"), "--run-dir", str(layout.directory), *small, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = read_results(layout)
    tools, text = results.block("tiny", "mini-toolcall"), results.block("tiny", "mini-text")
    assert (tools.cells, tools.valid, text.valid) == (24, 24, 24)
    assert tools.passed > 0  # it guesses, at worst
    assert tools.tool_calls_per_solved.value > 0 and sum(tools.breaks.values()) == 0
    config, _ = read_grid(layout.directory)
    cells = record_of(config, layout)
    assert all(cell.grade == "tokens" and cell.turns > 0 for cell in cells)
    assert {cell.tool_calls > 0 for cell in cells if cell.harness == "mini-text"} == {False}
    target = tmp_path / "tuned"
    tuned = subprocess.run(
        command(
            "sft", str(layout.directory), "--run-dir", str(target), "--set", "sft.epochs=2", "--set", "sft.batch_tokens=32"
        ),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert tuned.returncode == 0, tuned.stdout + tuned.stderr
    lines = read_chat(target / "exported" / "00" / "chat.jsonl")
    solved = {cell.rollout_id for cell in cells if cell.passed}
    assert {line.rollout_id for line in lines} <= solved and lines
    assert all(line.messages[line.target].role == "assistant" for line in lines)
    summary = msgspec.json.decode((target / "summary.json").read_bytes(), type=SftSummary)
    assert summary.steps > 0 and not summary.dropped
    assert (target / "model" / "model.safetensors").is_file()
