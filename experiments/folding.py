"""From results of runs to what a page says: means over seeds with intervals, tables in Markdown, the look of plots. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from experiments.running import Evaluation, RunResult, Step
from whippletree.types import Struct
from whippletree.ui.plots import empty_figure, style

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Quantile 0.975 of Student's t by degrees of freedom."""


class Estimate(Struct, omit_defaults=False):
    """A mean over seeds. `half`: half the width of its 95 % interval (Student's t), None from one seed; `sd`: sample standard
    deviation between seeds.

    Example: Estimate(mean=0.9, half=0.05, sd=0.02, n=3)
    """

    mean: float
    half: float | None
    sd: float | None
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.half is None else f" ± {self.half:.2f}")


def estimate(values: Iterable[float]) -> Estimate:
    """Over one value per seed. Raises ValueError over none, or over more than ten."""
    found = list(values)
    count = len(found)
    if not 1 <= count <= len(T_975) + 1:
        raise ValueError(f"{count} seeds; give 1 to {len(T_975) + 1}")
    mean = math.fsum(found) / count
    if count == 1:
        return Estimate(mean=round(mean, 4), half=None, sd=None, n=1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in found) / (count - 1))
    half = T_975[count - 1] * deviation / math.sqrt(count)
    return Estimate(mean=round(mean, 4), half=round(half, 4), sd=round(deviation, 4), n=count)


def of_variant(results: Sequence[RunResult], variant: str) -> list[RunResult]:
    """The runs of a variant, by seed. Raises ValueError where there is none."""
    found = sorted((result for result in results if result.variant == variant), key=lambda result: result.seed)
    if not found:
        raise ValueError(f"no run of {variant}")
    return found


def rate(evaluation: Evaluation, sources: Sequence[str] = ()) -> float:
    """Success over these sources (none named: all). Raises ValueError where nothing was judged."""
    cells = [cell for name, cell in evaluation.by_source.items() if not sources or name in sources]
    passed, judged = sum(cell[0] for cell in cells), sum(cell[1] for cell in cells)
    if not judged:
        raise ValueError(f"nothing was judged after {evaluation.step} updates")
    return passed / judged


def tokens_of(step: Step) -> int:
    """The tokens of an update's sequences, each sequence whole."""
    return step.tokens


def spent(run: RunResult, count: Callable[[Step], int] = tokens_of) -> list[int]:
    """Tokens processed before each update, and in all, as `count` counts them."""
    return list(accumulate((count(step) for step in run.steps), initial=0))


def at_budget(run: RunResult, budget: float, sources: Sequence[str], count: Callable[[Step], int] = tokens_of) -> float:
    """Success over these sources when the run had processed `budget` tokens: read off the line between the evaluations around
    it. Raises ValueError for more than it used."""
    tokens = spent(run, count)
    points = [(tokens[line.step], rate(line, sources)) for line in run.evals]
    for (before, low), (after, high) in pairwise(points):
        if before <= budget <= after:
            return low + (high - low) * (budget - before) / max(1, after - before)
    raise ValueError(f"{run.name} used {points[-1][0]} tokens, less than {budget:g}")


def before(results: Sequence[RunResult], source: str) -> Estimate:
    """Success in one source before any training. Runs of a seed begin with the same weights: their evaluations are pooled."""
    per_seed = []
    for seed in sorted({run.seed for run in results}):
        cells = [run.evals[0].by_source[source] for run in results if run.seed == seed]
        per_seed.append(sum(cell[0] for cell in cells) / sum(cell[1] for cell in cells))
    return estimate(per_seed)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def put_tables(page: Path, tables: dict[str, str]) -> None:
    """Write each table between its two marks of a page. Raises ValueError where the page has no such marks."""
    text = page.read_text(encoding="utf-8")
    for name, content in tables.items():
        begin, end = marks(name)
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{page.name} has no place for {name}: write {begin} and {end}")
        text = f"{head}{begin}\n{content}{end}{tail}"
    page.write_text(text, encoding="utf-8")


def marks(name: str) -> tuple[str, str]:
    """The comments between which a generated table stands."""
    return f"<!-- results: {name} -->", f"<!-- end of {name} -->"


def figure(width: float, height: float, rows: int, columns: int) -> tuple[Any, Any]:
    """A figure and its axes (matplotlib), in the look of the reports."""
    import matplotlib as mpl
    from matplotlib.ticker import MaxNLocator

    smaller = {"font.size": 11, "axes.titlesize": 12, "axes.titlepad": 6.0}
    mpl.rcParams.update({**style(), **smaller, "svg.hashsalt": "whippletree"})
    found = empty_figure(width, height, w_pad=0.1, h_pad=0.1)
    axes = found.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    return found, axes


def heat_map(axis: Any, cells: Sequence[Sequence[Estimate]], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Rates as colours, with their means and intervals in words."""
    values = [[cell.mean for cell in row] for row in cells]
    image = axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for number, row in enumerate(cells):
        for place, cell in enumerate(row):
            axis.text(place, number, str(cell), ha="center", va="center", color="white" if cell.mean > 0.6 else "#1c2430")
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    axis.figure.colorbar(image, ax=axis, shrink=0.8)


def draw_mixes(
    path: Path,
    results: Sequence[RunResult],
    grid: dict[str, dict[str, Estimate]],
    budget: float,
    *,
    width: float,
    harnesses: Sequence[str],
    mixes: Sequence[str],
    shown: dict[str, str],
    colours: dict[str, str],
    counted: str = "",
    tokens: Callable[[Step], int] = tokens_of,
) -> None:
    """Write the picture: success by policy and harness at the budget as a heat map, and over all harnesses against tokens
    processed. `shown`: names for people; `counted`: how `tokens` counts."""
    canvas, axes = figure(width, 5.6, 1, 2)
    left, right = axes[0]
    cells = [[row[harness] for harness in harnesses] for row in grid.values()]
    heat_map(left, cells, [shown.get(name, name) for name in grid], [shown.get(name, name) for name in harnesses])
    left.set_title(f"Held-out success at {budget:,} tokens")
    left.set_xlabel("evaluated in")
    left.set_ylabel("trained in")
    places = [budget * number / 20 for number in range(21)]
    for mix in mixes:
        curves = [[at_budget(run, place, harnesses, tokens) for place in places] for run in of_variant(results, mix)]
        band(right, places, curves, colours[mix], f"trained in {shown.get(mix, mix)}")
    right.set_title("Success over all four, mean and range of seeds")
    right.set_xlabel(f"tokens processed in training{counted}")
    right.set_ylim(0, 1.02)
    right.grid(axis="y")
    right.legend(loc="lower right")
    canvas.savefig(path)


def band(axis: Any, xs: Sequence[float], curves: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """The mean of one curve per seed, and the range between them."""
    columns = list(zip(*curves, strict=True))
    axis.fill_between(
        xs, [min(column) for column in columns], [max(column) for column in columns], color=colour, alpha=0.15, lw=0
    )
    axis.plot(xs, [sum(column) / len(column) for column in columns], color=colour, lw=2, label=label)
