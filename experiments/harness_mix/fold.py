"""What the harness mix found, from its results. Pure but for the picture.

Runs are compared at one budget of processed tokens, the least that any run used; success at it is read off the line between
the two evaluations around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from experiments.folding import Estimate, at_budget, before, draw_mixes, estimate, of_variant, spent, table
from experiments.running import RunResult
from whippletree.types import Struct

HARNESSES = ("mini-tool", "mini-text", "whitebox", "heldout")
TRAINED = HARNESSES[:3]
MIXES = (*TRAINED, "three")
COLOURS = {"mini-tool": "#1f5fbf", "mini-text": "#c2660c", "whitebox": "#2e8b57", "three": "#7a3b9e"}
SHOWN = {"before": "before training", "three": "all three", "heldout": "held out"}


class MixSummary(Struct, omit_defaults=False):
    """The experiment. `budget`: tokens; `grid`: success by policy ("before" training, or the mix that trained it) and by
    harness; `trained`, `other`, `everywhere`: of each mix, the mean success over the harnesses that it trained in, over the
    others of the four, and over all; `tokens`: those that a whole run processed; `gain`: success over all four of the policy
    trained in three harnesses, less the mean of the others' (paired by seed), None without them.

    Example: MixSummary(budget=40000, updates=10, seeds=3, grid={"three": {"heldout": Estimate(...)}}, ...)
    """

    budget: int
    updates: int
    seeds: int
    grid: dict[str, dict[str, Estimate]]
    everywhere: dict[str, Estimate]
    other: dict[str, Estimate]
    trained: dict[str, Estimate]
    tokens: dict[str, Estimate]
    gain: Estimate | None


def fold(results: Sequence[RunResult], mixes: Sequence[str] = MIXES) -> MixSummary:
    """Raises ValueError where a mix has no run."""
    budget = min(spent(run)[-1] for run in results)
    by_mix = {mix: of_variant(results, mix) for mix in mixes}

    def over(mix: str, harnesses: Sequence[str]) -> Estimate:
        return estimate(at_budget(run, budget, harnesses) for run in by_mix[mix])

    grid = {"before": {harness: before(results, harness) for harness in HARNESSES}}
    grid |= {mix: {harness: over(mix, [harness]) for harness in HARNESSES} for mix in mixes}
    own = {mix: TRAINED if mix == "three" else (mix,) for mix in mixes}
    return MixSummary(
        budget=budget,
        updates=len(results[0].steps),
        seeds=len({run.seed for run in results}),
        grid=grid,
        everywhere={mix: over(mix, HARNESSES) for mix in mixes},
        other={mix: over(mix, [name for name in HARNESSES if name not in own[mix]]) for mix in mixes},
        trained={mix: over(mix, own[mix]) for mix in mixes},
        tokens={mix: estimate(spent(run)[-1] for run in by_mix[mix]) for mix in mixes},
        gain=_gain(by_mix, budget),
    )


def _gain(by_mix: Mapping[str, Sequence[RunResult]], budget: float) -> Estimate | None:
    scores = {mix: {run.seed: at_budget(run, budget, HARNESSES) for run in runs} for mix, runs in by_mix.items()}
    three = scores.pop("three", {})
    if not three or not scores:
        return None
    return estimate(score - fmean(single[seed] for single in scores.values()) for seed, score in three.items())


def tables(summary: MixSummary) -> dict[str, str]:
    """The tables of the page."""
    grid = [
        [SHOWN.get(policy, policy), *(str(cells[harness]) for harness in HARNESSES)] for policy, cells in summary.grid.items()
    ]
    means = [
        [
            SHOWN.get(mix, mix),
            *(str(found[mix]) for found in (summary.trained, summary.other, summary.everywhere)),
            f"{summary.tokens[mix].mean:,.0f}",
        ]
        for mix in summary.everywhere
    ]
    heads = [SHOWN.get(harness, harness) for harness in HARNESSES]
    return {
        "grid": table(["trained in", *(f"in {head}" if head != "held out" else head for head in heads)], grid),
        "means": table(["trained in", "where it trained", "elsewhere", "all four", "tokens of the whole run"], means),
    }


def draw(results: Sequence[RunResult], summary: MixSummary, path: Path) -> None:
    """Write the picture: the grid as a heat map, and success over all four harnesses against tokens processed."""
    draw_mixes(
        path,
        results,
        summary.grid,
        summary.budget,
        width=14,
        harnesses=HARNESSES,
        mixes=tuple(summary.everywhere),
        shown=SHOWN,
        colours=COLOURS,
    )
