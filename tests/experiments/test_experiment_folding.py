"""Folding results: intervals over seeds, success at a budget of tokens, tables in a page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from experiments import folding
from experiments.harness_mix import fold as mix
from experiments.multi_harness import fold as multi
from experiments.running import Evaluation, RunResult, Step
from experiments.split import fold as split


def step(number: int, **more: Any) -> Step:
    given: dict[str, Any] = {
        "reward": 0.5,
        "turns": 2.0,
        "tokens": 100,
        "grad_norm": 1.0,
        "entropy": 0.3,
        "weight_spread": 1.0,
        "negative_share": 0.5,
        "samples_per_rollout": 1.0,
    }
    return Step(step=number, **given | more)


def result(variant: str, seed: int, steps: list[Step], evals: dict[int, dict[str, tuple[int, int]]]) -> RunResult:
    lines = tuple(Evaluation(step=number, by_source=cells) for number, cells in evals.items())
    return RunResult(name=f"{variant}-{seed}", variant=variant, seed=seed, steps=tuple(steps), evals=lines)


def test_intervals_are_students_t() -> None:
    found = folding.estimate([0.8, 0.9, 1.0])
    assert (found.mean, found.sd, found.n) == (0.9, 0.1, 3)
    assert found.half == pytest.approx(4.303 * 0.1 / math.sqrt(3), abs=1e-4)
    assert str(found) == "0.90 ± 0.25" and str(folding.estimate([0.5])) == "0.50"
    for count in (0, 11):
        with pytest.raises(ValueError, match=f"{count} seeds"):
            folding.estimate([0.5] * count)


def test_a_rate_is_over_the_named_sources() -> None:
    line = Evaluation(step=3, by_source={"a": (1, 4), "b": (3, 4)})
    assert (folding.rate(line), folding.rate(line, ["b"])) == (0.5, 0.75)
    with pytest.raises(ValueError, match="after 3 updates"):
        folding.rate(line, ["c"])


def test_success_at_a_budget_is_between_the_evaluations_around_it() -> None:
    run = result(
        "three",
        1,
        [step(0, tokens=100), step(1, tokens=300)],
        {0: {"whitebox": (0, 10)}, 1: {"whitebox": (4, 10)}, 2: {"whitebox": (10, 10)}},
    )
    assert folding.spent(run) == [0, 100, 400]
    found = [folding.at_budget(run, budget, ["whitebox"]) for budget in (0, 50, 100, 250, 400)]
    assert found == pytest.approx([0.0, 0.2, 0.4, 0.7, 1.0])
    with pytest.raises(ValueError, match="less than 401"):
        folding.at_budget(run, 401, ["whitebox"])


def test_mixes_are_compared_at_the_least_budget_and_seeds_share_their_beginning() -> None:
    def cells(passed: int) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(mix.HARNESSES, (passed, 10))

    runs = [
        result("whitebox", 1, [step(0, tokens=100)], {0: cells(2), 1: cells(6)}),
        result("three", 1, [step(0, tokens=200)], {0: cells(4), 1: cells(8)}),
    ]
    summary = mix.fold(runs, ["whitebox", "three"])
    assert (summary.budget, summary.seeds, summary.updates) == (100, 1, 1)
    assert summary.grid["before"]["heldout"].mean == pytest.approx(0.3)
    assert summary.grid["whitebox"]["heldout"].mean == pytest.approx(0.6)
    assert summary.grid["three"]["heldout"].mean == pytest.approx(0.6)
    assert [summary.tokens[name].mean for name in ("whitebox", "three")] == [100, 200]
    assert summary.gain == folding.estimate([0.0])
    assert mix.fold(runs[:1], ["whitebox"]).gain is None
    assert "| before training | 0.30 | 0.30 | 0.30 | 0.30 |" in mix.tables(summary)["grid"]


def test_mixes_of_real_harnesses_are_compared_by_tokens_counted_both_ways() -> None:
    def cells(*passed: int) -> dict[str, tuple[int, int]]:
        return {name: (number, 10) for name, number in zip(multi.HARNESSES, passed, strict=True)}

    runs = [
        result(
            "three", 1, [step(0, tokens=400, distinct=100, fed=900, computed=150)], {0: cells(2, 2, 2, 2), 1: cells(8, 6, 7, 5)}
        ),
        result(
            "codex", 1, [step(0, tokens=800, distinct=200, fed=999, computed=99)], {0: cells(4, 2, 2, 2), 1: cells(2, 10, 2, 4)}
        ),
    ]
    found = multi.fold(runs, ["three", "codex"])
    assert (found.budget, found.whole_budget, found.seeds) == (100, 400, 1)
    assert found.grid["before"]["mini"].mean == pytest.approx(0.3)  # pooled
    assert [found.grid["codex"][name].mean for name in multi.HARNESSES] == pytest.approx([0.3, 0.6, 0.2, 0.3])
    assert [found.end["codex"][name].mean for name in multi.HARNESSES] == pytest.approx([0.2, 1.0, 0.2, 0.4])
    assert (found.trained["three"].mean, found.other["three"].mean) == pytest.approx((0.7, 0.5))
    assert (found.trained["codex"].mean, found.other["codex"].mean) == pytest.approx((0.6, 0.8 / 3), abs=1e-4)
    assert found.gain == {"codex": folding.estimate([0.65 - 0.35])}
    assert found.whole["codex"].mean == pytest.approx(0.35)
    assert (found.fed["three"].mean, found.computed["codex"].mean) == (900, 99)
    tables = multi.tables(found)
    assert "| Codex | 0.30 | 0.60 | 0.20 | 0.30 |" in tables["multi-grid"]
    assert "| all three | 100 | 400 | 150 | 900 |" in tables["multi-tokens"]


def test_what_is_measured_of_a_normalisation() -> None:
    steps = [step(0, reward=0.2, grad_norm=1.0, negative_share=0.8), step(1, reward=0.9, grad_norm=1.0, turns=5.0)]
    steps += [step(2, reward=0.7, grad_norm=4.0), step(3, reward=0.9, grad_norm=0.0)]
    evals = {0: {"t": (1, 10)}, 2: {"t": (5, 10)}, 4: {"t": (9, 10)}}
    summary = split.fold([result("token-mean", 1, steps, evals)], ["token-mean"])
    found = summary.modes["token-mean"]
    assert (found.success_before.mean, found.success_half.mean, found.success_after.mean) == (0.1, 0.5, 0.9)
    assert (found.updates_to_learn.mean, found.longest_turns.mean, found.negative_share.mean) == (2, 5.0, 0.8)
    assert (found.late_reward.mean, found.late_wobble.mean, found.largest_norm.mean) == (0.8, 0.1, 4.0)
    never = split.fold([result("token-mean", 1, steps[:1], {0: {"t": (1, 10)}})], ["token-mean"])
    assert never.modes["token-mean"].updates_to_learn.mean == 1
    with pytest.raises(ValueError, match="no run of rollout-mean"):
        split.fold([result("token-mean", 1, steps, evals)])


def test_normalisations_are_compared_seed_by_seed() -> None:
    def run(mode: str, seed: int, passed: int) -> RunResult:
        return result(mode, seed, [step(0)], {0: {"t": (1, 10)}, 1: {"t": (passed, 10)}})

    runs = [run("rollout-mean", 1, 5), run("rollout-mean", 2, 8), run("token-mean", 2, 9), run("token-mean", 1, 6)]
    summary = split.fold(runs, ["rollout-mean", "token-mean"])
    assert summary.gain["token-mean"] == folding.estimate([0.1, 0.1]) and list(summary.gain) == ["token-mean"]
    assert "| the same, less rollout-mean's from the same warm-up |  | 0.10 ± 0.00 |" in split.tables(summary)["split"]


def test_tables_are_written_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = folding.marks("one")
    page.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n")
    content = folding.table(["", "a"], [["x", "1"]])
    folding.put_tables(page, {"one": content})
    assert page.read_text() == f"before\n\n{begin}\n|  | a |\n| --- | --- |\n| x | 1 |\n{end}\n\nafter\n"
    with pytest.raises(ValueError, match="no place for two"):
        folding.put_tables(page, {"two": content})
