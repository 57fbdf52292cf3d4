"""The page says what the committed results say: every run is there, the summaries and tables follow from them, and so do the
sentences."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from experiments import folding
from experiments.harness_mix import __main__ as mix_runs
from experiments.harness_mix import fold as mix
from experiments.running import RunResult, read_results
from experiments.split import __main__ as split_runs
from experiments.split import fold as split
from whippletree.configuration import load
from whippletree.loop.config import RunConfig

PAGE = (Path(__file__).parents[2] / "docs/experiments.md").read_text(encoding="utf-8")
EXPERIMENTS = [
    pytest.param(split_runs, split, split.SplitSummary, id="split"),
    pytest.param(mix_runs, mix, mix.MixSummary, id="harness-mix"),
]


def results(runs: ModuleType) -> list[RunResult]:
    found = read_results(runs.planned(), runs.HERE / "results")
    assert [result.name for result in found] == [plan.name for plan in runs.planned()]
    return found


@pytest.mark.parametrize(("runs", "fold", "kind"), EXPERIMENTS)
def test_the_summary_and_the_tables_follow_from_the_results(runs: ModuleType, fold: ModuleType, kind: Any) -> None:
    summary = fold.fold(results(runs))
    assert msgspec.json.decode((runs.HERE / "summary.json").read_bytes(), type=kind) == summary
    for name, content in fold.tables(summary).items():
        begin, end = folding.marks(name)
        assert f"{begin}\n{content}{end}" in PAGE, f"run `python -m experiments.{runs.HERE.name} --only-fold`"


@pytest.mark.parametrize(("runs", "fold", "kind"), EXPERIMENTS)
def test_every_run_is_whole_and_of_the_run_file(runs: ModuleType, fold: ModuleType, kind: Any) -> None:
    config = load(RunConfig, next(runs.HERE.glob("*.toml")))
    for result in results(runs):
        assert [step.step for step in result.steps] == list(range(config.loop.steps)), result.name
        assert result.evals[-1].step == config.loop.steps
        assert result.failed_rollouts == 0 and not any(line.failed for line in result.evals), result.name
