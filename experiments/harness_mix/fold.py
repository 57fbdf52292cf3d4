"""What the harness mix found, from its results. Pure but for the picture.

Runs are compared at one budget of processed tokens, the least that any run used; success at it is read off the line between
the two evaluations around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.folding import Estimate, band, estimate, figure, of_variant, rate, table
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


def spent(run: RunResult) -> list[int]:
    """Tokens processed before each update, and in all."""
    return list(accumulate((step.tokens for step in run.steps), initial=0))


def at_budget(run: RunResult, budget: float, sources: Sequence[str]) -> float:
    """Success over these harnesses when the run had processed `budget` tokens. Raises ValueError for more than it used."""
    tokens = spent(run)
    points = [(tokens[line.step], rate(line, sources)) for line in run.evals]
    for (before, low), (after, high) in pairwise(points):
        if before <= budget <= after:
            return low + (high - low) * (budget - before) / max(1, after - before)
    raise ValueError(f"{run.name} used {points[-1][0]} tokens, less than {budget:g}")


def fold(results: Sequence[RunResult], mixes: Sequence[str] = MIXES) -> MixSummary:
    """Raises ValueError where a mix has no run."""
    budget = min(spent(run)[-1] for run in results)
    by_mix = {mix: of_variant(results, mix) for mix in mixes}
    seeds = sorted({run.seed for run in results})

    def before(harness: str) -> Estimate:  # the same weights in every run of a seed
        per_seed = []
        for seed in seeds:
            cells = [run.evals[0].by_source[harness] for run in results if run.seed == seed]
            per_seed.append(sum(cell[0] for cell in cells) / sum(cell[1] for cell in cells))
        return estimate(per_seed)

    def over(mix: str, harnesses: Sequence[str]) -> Estimate:
        return estimate(at_budget(run, budget, harnesses) for run in by_mix[mix])

    grid = {"before": {harness: before(harness) for harness in HARNESSES}}
    grid |= {mix: {harness: over(mix, [harness]) for harness in HARNESSES} for mix in mixes}
    own = {mix: TRAINED if mix == "three" else (mix,) for mix in mixes}
    return MixSummary(
        budget=budget,
        updates=len(results[0].steps),
        seeds=len(seeds),
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
    canvas, axes = figure(14, 5.6, 1, 2)
    _grid(axes[0][0], summary)
    _curves(axes[0][1], results, summary)
    canvas.savefig(path)


def _grid(axis: Any, summary: MixSummary) -> None:
    values = [[summary.grid[policy][harness].mean for harness in HARNESSES] for policy in summary.grid]
    image = axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, policy in enumerate(summary.grid):
        for column, harness in enumerate(HARNESSES):
            cell = summary.grid[policy][harness]
            colour = "white" if cell.mean > 0.6 else "#1c2430"
            axis.text(column, row, str(cell), ha="center", va="center", color=colour)
    axis.set_xticks(range(len(HARNESSES)), [SHOWN.get(name, name) for name in HARNESSES])
    axis.set_yticks(range(len(summary.grid)), [SHOWN.get(name, name) for name in summary.grid])
    axis.set_title(f"Held-out success at {summary.budget:,} tokens")
    axis.set_xlabel("evaluated in")
    axis.set_ylabel("trained in")
    axis.tick_params(length=0)
    axis.figure.colorbar(image, ax=axis, shrink=0.8)


def _curves(axis: Any, results: Sequence[RunResult], summary: MixSummary) -> None:
    places = [summary.budget * number / 20 for number in range(21)]
    for mix in summary.everywhere:
        curves = [[at_budget(run, place, HARNESSES) for place in places] for run in of_variant(results, mix)]
        band(axis, places, curves, COLOURS[mix], f"trained in {SHOWN.get(mix, mix)}")
    axis.set_title("Success over all four, mean and range of seeds")
    axis.set_xlabel("tokens processed in training")
    axis.set_ylim(0, 1.02)
    axis.grid(axis="y")
    axis.legend(loc="lower right")
