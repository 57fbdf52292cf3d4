"""The page says what the committed results say: every run is there, the summaries and tables follow from them, and so do the
sentences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from experiments import folding
from experiments.harness_mix import __main__ as mix_runs
from experiments.harness_mix import fold as mix
from experiments.multi_harness import __main__ as multi_runs
from experiments.multi_harness import fold as multi
from experiments.running import RunResult, read_results
from experiments.split import __main__ as split_runs
from experiments.split import fold as split
from whippletree.configuration import load
from whippletree.loop.config import RunConfig

PAGE = (Path(__file__).parents[2] / "docs/experiments.md").read_text(encoding="utf-8")
EXPERIMENTS = [
    pytest.param(split_runs, split, split.SplitSummary, id="split"),
    pytest.param(mix_runs, mix, mix.MixSummary, id="harness-mix"),
    pytest.param(multi_runs, multi, multi.MultiSummary, id="multi-harness"),
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
    file = next(runs.HERE.glob("*.toml"))
    for plan, result in zip(runs.planned(), results(runs), strict=True):
        config = load(RunConfig, file, plan.settings)
        assert [step.step for step in result.steps] == list(range(config.loop.steps)), result.name
        assert result.evals[-1].step == config.loop.steps
        assert result.failed_rollouts == 0 and not any(line.failed for line in result.evals), result.name


def test_what_the_page_says_of_normalisations() -> None:
    found = results(split_runs)
    summary = split.fold(found)
    runs = {mode: folding.of_variant(found, mode) for mode in split.MODES}
    assert min(folding.rate(run.evals[-1]) for run in found) >= 0.75  # "ended between 0.75 and 1.00"
    assert max(folding.rate(run.evals[-1]) for run in found) == 1.0
    assert all(gain.half is not None and abs(gain.mean) < gain.half for gain in summary.gain.values())  # "the interval holds 0"
    largest = {mode: [max(step.grad_norm for step in run.steps) for run in runs[mode]] for mode in runs}
    assert max(largest["token-mean"]) < 0.8
    assert [round(max(largest[mode]), 1) for mode in ("rollout-mean", "sequence-mean")] == [2.0, 2.1]
    turns = {mode: [max(step.turns for step in run.steps) for run in runs[mode]] for mode in runs}
    for mode in ("token-mean", "sequence-mean"):  # "in every seed"
        assert all(longer > shorter for longer, shorter in zip(turns["rollout-mean"], turns[mode], strict=True))
    spread = {mode: {run.steps[0].weight_spread for run in runs[mode]} for mode in runs}
    assert spread == {"rollout-mean": {8.0}, "token-mean": {1.0}, "sequence-mean": {2.0}}
    spike = max((step for run in found for step in run.steps), key=lambda step: step.entropy)
    (spiked,) = (run for run in found if spike in run.steps)
    entropies = [step.entropy for step in spiked.steps[spike.step : spike.step + 2]]
    assert (spiked.variant, [round(value, 1) for value in entropies]) == ("token-mean", [2.2, 0.2])
    late = [(round(step.entropy, 2), round(step.reward, 3)) for step in runs["rollout-mean"][1].steps[-3:]]
    assert (late[0], late[-1]) == ((0.13, 0.875), (0.50, 0.675))
    assert all(run.steps[-1].reward >= run.steps[-3].reward - 0.1 for run in found if run.name != "rollout-mean-2")


def test_what_the_page_says_of_mixes() -> None:
    found = results(mix_runs)
    summary = mix.fold(found)
    assert summary.budget == 9551

    def two(estimates: Iterable[folding.Estimate]) -> tuple[float, float]:
        means = [round(found.mean, 2) for found in estimates]
        return min(means), max(means)

    single = mix.TRAINED
    assert two(summary.trained[name] for name in single) == (0.80, 0.85)
    assert two(summary.other[name] for name in single) == (0.25, 0.31)
    assert two(summary.everywhere[name] for name in single) == (0.39, 0.45)
    assert max(cell.mean for cell in summary.grid["before"].values()) < 0.30
    assert two(summary.grid["three"][name] for name in single) == (0.60, 0.72)
    assert round(summary.everywhere["three"].mean, 2) == 0.57
    assert str(summary.gain) == "0.15 ± 0.22"
    for seed in (1, 2, 3):  # "in every seed"
        at = {run.variant: folding.at_budget(run, summary.budget, mix.HARNESSES) for run in found if run.seed == seed}
        assert at["three"] > sum(at[name] for name in single) / 3
    heldout = {name: cells["heldout"].mean for name, cells in summary.grid.items()}
    assert round(heldout.pop("before"), 2) == 0.21 and max(heldout, key=heldout.__getitem__) == "three"
    assert (round(min(heldout.values()), 2), round(max(heldout.values()), 2)) == (0.18, 0.28)


def test_what_the_page_says_of_real_agents() -> None:
    found = results(multi_runs)
    summary = multi.fold(found)
    assert summary.budget == 17_654
    before, three = summary.grid["before"], summary.grid["three"]
    assert max(cell.mean for cell in before.values()) < 0.30
    assert [round(three[name].mean, 2) for name in multi.HARNESSES] == [0.67, 0.37, 0.63, 0.62]
    for name in ("mini", "claude-code", "pi"):  # "apart from those of the beginning"
        assert low(three[name]) > high(before[name])
    assert [round(summary.everywhere[name].mean, 2) for name in ("three", "codex")] == [0.57, 0.36]
    assert str(summary.gain["codex"]) == "0.22 ± 0.10"
    runs = {mix: folding.of_variant(found, mix) for mix in multi.MIXES}
    at = {
        mix: [folding.at_budget(run, summary.budget, multi.HARNESSES, multi.distinct_of) for run in runs[mix]]
        for mix in ("three", "codex")
    }
    assert all(more > less for more, less in zip(at["three"], at["codex"], strict=True))  # "in every seed"
    in_codex = sorted(folding.at_budget(run, summary.budget, ["codex"], multi.distinct_of) for run in runs["three"])
    assert in_codex[2] < 0.25 and [round(value, 2) for value in in_codex[3:]] == [0.54, 0.81]
    assert round(summary.grid["codex"]["codex"].mean, 2) == 0.51
    ends = [folding.rate(run.evals[-1], ["codex"]) for run in runs["codex"]]
    assert (round(min(ends), 2), round(max(ends), 2), round(ends[0], 2)) == (0.28, 0.94, 0.94)
    assert [round(summary.grid["mini"][name].mean, 2) for name in ("mini", "pi")] == [0.89, 0.81]
    for trained, others in (("mini", ("codex", "claude-code")), ("codex", ("mini", "claude-code", "pi"))):
        for name in others:  # "about what it began with", "in no other agent reliably more"
            assert low(summary.grid[trained][name]) < before[name].mean
    in_pi = [(folding.rate(run.evals[0], ["pi"]), folding.rate(run.evals[-1], ["pi"])) for run in runs["three"]]
    assert all(begin < end for begin, end in in_pi)
    assert [round(pick(end for _, end in in_pi), 2) for pick in (min, max)] == [0.44, 0.83]
    worst = {mix: max((max(step.misnamed for step in run.steps), run.seed) for run in runs[mix]) for mix in ("codex", "mini")}
    assert [(round(share, 2), seed) for share, seed in worst.values()] == [(0.78, 1), (0.43, 3)]
    assert str(summary.gain["mini"]) == "0.04 ± 0.15"  # "they do not rank"
    ratios = [summary.tokens[mix].mean / summary.distinct[mix].mean for mix in ("three", "codex")]
    assert [round(ratio, 1) for ratio in ratios] == [3.9, 4.8]
    assert [round(summary.computed[mix].mean / summary.fed[mix].mean, 2) for mix in ("three", "codex")] == [0.10, 0.07]


def low(found: folding.Estimate) -> float:
    assert found.half is not None
    return found.mean - found.half


def high(found: folding.Estimate) -> float:
    assert found.half is not None
    return found.mean + found.half
