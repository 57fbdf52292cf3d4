"""From results of runs to what a page says: means over seeds with intervals, tables in Markdown, the look of plots. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.running import Evaluation, RunResult
from whippletree.types import Struct
from whippletree.ui.plots import FAINT, GRID, INK

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    mpl.rcParams.update(
        {
            "font.size": 11,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": FAINT,
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "xtick.color": INK,
            "ytick.color": INK,
            "grid.color": GRID,
            "legend.frameon": False,
            "svg.hashsalt": "whippletree",
        }
    )
    found = Figure(figsize=(width, height), dpi=100, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    FigureCanvasAgg(found)
    axes = found.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    return found, axes


def band(axis: Any, xs: Sequence[float], curves: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """The mean of one curve per seed, and the range between them."""
    columns = list(zip(*curves, strict=True))
    axis.fill_between(
        xs, [min(column) for column in columns], [max(column) for column in columns], color=colour, alpha=0.15, lw=0
    )
    axis.plot(xs, [sum(column) / len(column) for column in columns], color=colour, lw=2, label=label)
