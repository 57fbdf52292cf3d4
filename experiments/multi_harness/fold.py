"""What training in three real harnesses or in one found, from its results. Pure but for the picture.

Runs are compared at one budget of processed tokens, the least that any run used; success at it is read off the line between
the evaluations around it. Tokens are counted in two ways: `distinct`, where a beginning that several sequences of an update
share counts once, as tree packing computes it; and whole, where each sequence counts from its first token on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.folding import (
    Estimate,
    at_budget,
    before,
    draw_mixes,
    estimate,
    of_variant,
    spent,
    table,
    tokens_of,
)
from experiments.running import RunResult, Step
from whippletree.types import Struct

HARNESSES = ("mini", "codex", "claude-code", "pi")
OWN = {"three": ("mini", "codex", "claude-code"), "codex": ("codex",), "mini": ("mini",)}
MIXES = tuple(OWN)
COLOURS = {"codex": "#1f5fbf", "mini": "#c2660c", "three": "#7a3b9e"}
SHOWN = {
    "before": "before training",
    "three": "all three",
    "mini": "mini-SWE-agent",
    "codex": "Codex",
    "claude-code": "Claude Code",
    "pi": "pi (held out)",
}


class MultiSummary(Struct, omit_defaults=False):
    """The experiment. `budget`: distinct tokens; `grid`: success by policy ("before" training, or the mix that trained it) and
    by harness, at the budget; `end`: the same at the end of each run; `everywhere`, `trained`, `other`: of each mix, the mean
    at the budget over all four harnesses, over those it trained in, and over the rest; `whole_budget`, `whole`: tokens of whole
    sequences, and the mean over all four at that; `distinct`, `tokens`: those that a whole run trained on, counted both ways;
    `fed`, `computed`: what its engine was given and sampled for that, and what of it was in no cache; `gain`: of the policy
    trained in three over each other one, over all four, paired by seed; `misnamed`: share of the calls of tools that name one
    which the harness does not have, by policy and harness, at the end of each run, and `worst`: in training, in that update of
    each run where it was largest.

    Example: MultiSummary(budget=30000, seeds=3, grid={"three": {"pi": Estimate(...)}}, ...)
    """

    budget: int
    whole_budget: int
    seeds: int
    grid: dict[str, dict[str, Estimate]]
    end: dict[str, dict[str, Estimate]]
    everywhere: dict[str, Estimate]
    trained: dict[str, Estimate]
    other: dict[str, Estimate]
    whole: dict[str, Estimate]
    distinct: dict[str, Estimate]
    tokens: dict[str, Estimate]
    fed: dict[str, Estimate]
    computed: dict[str, Estimate]
    gain: dict[str, Estimate]
    misnamed: dict[str, dict[str, Estimate]]
    worst: dict[str, Estimate]


def distinct_of(step: Step) -> int:
    """The tokens of an update's sequences, each shared beginning once."""
    return step.distinct


def fold(results: Sequence[RunResult], mixes: Sequence[str] = MIXES) -> MultiSummary:
    """Raises ValueError where a mix has no run."""
    by_mix = {mix: of_variant(results, mix) for mix in mixes}
    budget = min(spent(run, distinct_of)[-1] for run in results)
    whole = min(spent(run)[-1] for run in results)

    def over(mix: str, harnesses: Sequence[str]) -> Estimate:
        return estimate(at_budget(run, budget, harnesses, distinct_of) for run in by_mix[mix])

    def end(mix: str, harness: str) -> Estimate:
        return estimate(_rate(run.evals[-1].by_source[harness]) for run in by_mix[mix])

    def total(mix: str, count: Callable[[Step], int]) -> Estimate:
        return estimate(spent(run, count)[-1] for run in by_mix[mix])

    start = {"before": {harness: before(results, harness) for harness in HARNESSES}}
    return MultiSummary(
        budget=budget,
        whole_budget=whole,
        seeds=len({run.seed for run in results}),
        grid=start | {mix: {harness: over(mix, [harness]) for harness in HARNESSES} for mix in mixes},
        end=start | {mix: {harness: end(mix, harness) for harness in HARNESSES} for mix in mixes},
        everywhere={mix: over(mix, HARNESSES) for mix in mixes},
        trained={mix: over(mix, OWN[mix]) for mix in mixes},
        other={mix: over(mix, [name for name in HARNESSES if name not in OWN[mix]]) for mix in mixes},
        whole={mix: estimate(at_budget(run, whole, HARNESSES) for run in by_mix[mix]) for mix in mixes},
        distinct={mix: total(mix, distinct_of) for mix in mixes},
        tokens={mix: total(mix, tokens_of) for mix in mixes},
        fed={mix: total(mix, lambda step: step.fed) for mix in mixes},
        computed={mix: total(mix, lambda step: step.computed) for mix in mixes},
        gain=_gain(by_mix, budget),
        worst={mix: estimate(map(_worst, by_mix[mix])) for mix in mixes},
        misnamed={
            mix: {harness: estimate(_misnamed(run, harness) for run in by_mix[mix]) for harness in HARNESSES} for mix in mixes
        },
    )


def _rate(cell: tuple[int, int]) -> float:
    return cell[0] / cell[1]


def _worst(run: RunResult) -> float:
    return max(step.misnamed for step in run.steps)


def _misnamed(run: RunResult, harness: str) -> float:
    wrong, made = run.evals[-1].misnamed.get(harness, (0, 0))
    return wrong / max(1, made)


def _gain(by_mix: Mapping[str, Sequence[RunResult]], budget: float) -> dict[str, Estimate]:
    scores = {mix: {run.seed: at_budget(run, budget, HARNESSES, distinct_of) for run in runs} for mix, runs in by_mix.items()}
    three = scores.pop("three", {})
    return {
        mix: estimate(three[seed] - score for seed, score in single.items() if seed in three)
        for mix, single in scores.items()
        if three
    }


def tables(summary: MultiSummary) -> dict[str, str]:
    """The tables of the page."""
    heads = ["trained in", *(f"in {SHOWN[harness]}" for harness in HARNESSES)]

    def grid(cells: Mapping[str, Mapping[str, Estimate]]) -> str:
        return table(heads, [[SHOWN[policy], *(str(row[name]) for name in HARNESSES)] for policy, row in cells.items()])

    means = [
        [SHOWN[mix], *(str(found[mix]) for found in (summary.trained, summary.other, summary.everywhere, summary.whole))]
        for mix in summary.everywhere
    ]
    costs = [
        [
            SHOWN[mix],
            *(f"{found[mix].mean:,.0f}" for found in (summary.distinct, summary.tokens, summary.computed, summary.fed)),
        ]
        for mix in summary.everywhere
    ]
    return {
        "multi-grid": grid(summary.grid),
        "multi-end": grid(summary.end),
        "multi-misnamed": table(
            [*heads, "in training, worst update"],
            [
                [SHOWN[mix], *(str(row[name]) for name in HARNESSES), str(summary.worst[mix])]
                for mix, row in summary.misnamed.items()
            ],
        ),
        "multi-means": table(
            ["trained in", "where it trained", "elsewhere", "all four", "all four, whole sequences counted"], means
        ),
        "multi-tokens": table(
            ["trained in", "trained, shared beginnings once", "trained, whole sequences", "sampled, computed", "sampled, fed"],
            costs,
        ),
    }


def draw(results: Sequence[RunResult], summary: MultiSummary, path: Path) -> None:
    """Write the picture: the grid as a heat map, and success over all four harnesses against tokens processed."""
    draw_mixes(
        path,
        results,
        summary.grid,
        summary.budget,
        width=15,
        harnesses=HARNESSES,
        mixes=tuple(summary.everywhere),
        shown=SHOWN,
        colours=COLOURS,
        counted=", shared beginnings once",
        tokens=distinct_of,
    )
