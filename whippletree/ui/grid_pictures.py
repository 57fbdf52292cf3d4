"""The picture of a grid: pass@1 of every model in every harness as a heat map with numbers, and as bars with intervals.

Invariants (tests/ui/test_grid_pictures.py):
- every model and harness is in both parts, and a block without a rate is a mark, not a zero;
- numbers on the map are readable on their ground, and no two labels of an axis overlap;
- the picture is as large as its grid asks for, and no text is cut off at its edge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whippletree.loop.grid.tables import ALL, Block, Results
from whippletree.ui.plots import FAINT, INK, empty_figure, save, style

CELL_WIDTH, CELL_HEIGHT = 2.0, 0.8  # inches
LEAST_WIDTH, LABELS, BARS_HEIGHT = 9.0, 2.6, 4.2
COLOURS = ("#1f5fbf", "#c2660c", "#2f8f5b", "#8a4fa8", "#b23a48", "#5b6675", "#b8932b", "#2b8ca3")
MAP = ("#f6f8fb", "#5b93de")  # light enough for INK
LEGEND_WIDTH = 2.4  # inches of an entry
LONGEST = 18  # characters of a name on an axis
WIDEST_BAR = 0.35


def draw_grid(results: Results, path: Path) -> Path | None:
    """Write a PNG. None where matplotlib is not installed: nothing is written then."""
    return save(lambda: make_figure(results), path)


def make_figure(results: Results) -> Any:
    """The figure (matplotlib)."""
    import matplotlib as mpl

    models, harnesses = len(results.models), len(results.harnesses)
    width = max(LEAST_WIDTH, LABELS + CELL_WIDTH * harnesses, LABELS + 0.55 * models * harnesses)
    upper = 1.6 + CELL_HEIGHT * models
    with mpl.rc_context(style()):
        figure = empty_figure(width, upper + BARS_HEIGHT + 0.6, w_pad=0.15, h_pad=0.15, wspace=0.04, hspace=0.08)
        total = sum(block.valid for block in results.blocks if block.source == ALL)
        tasks = max((block.tasks for block in results.blocks if block.source == ALL), default=0)
        figure.suptitle(f"{results.name}: {tasks} tasks, {total} rollouts judged", fontsize=16, fontweight="bold")
        above, below = figure.subplots(2, 1, height_ratios=(upper, BARS_HEIGHT))
        _map(above, results)
        _bars(below, results, columns=max(1, int((width - LABELS) / LEGEND_WIDTH)))
        figure.canvas.draw()
    return figure


def _map(axis: Any, results: Results) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("grid", MAP).with_extremes(bad="#ffffff")
    values = [[_rate(results.block(model, harness)) for harness in results.harnesses] for model in results.models]
    axis.imshow(values, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
    axis.set_title("pass@1 with interval; passed of judged", pad=12)
    axis.set_xticks(range(len(results.harnesses)), [short(name) for name in results.harnesses])
    axis.set_yticks(range(len(results.models)), [short(name) for name in results.models])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for row, model in enumerate(results.models):
        for column, harness in enumerate(results.harnesses):
            block = results.block(model, harness)
            lines = cell_lines(block)
            axis.text(column, row - 0.12, lines[0], ha="center", va="center", color=INK, fontsize=13, fontweight="bold")
            axis.text(column, row + 0.24, lines[1], ha="center", va="center", color=INK, fontsize=9)


def cell_lines(block: Block) -> tuple[str, str]:
    """What stands in a field of the map: the rate, and below it interval and counts."""
    invalid = f", {block.invalid} invalid" if block.invalid else ""
    if block.rate is None:
        return "–", f"nothing judged{invalid}"
    return f"{block.rate.value:.2f}", f"[{block.rate.low:.2f}, {block.rate.high:.2f}]  {block.passed}/{block.valid}{invalid}"


def _rate(block: Block) -> float:
    return float("nan") if block.rate is None else block.rate.value


def _bars(axis: Any, results: Results, *, columns: int) -> None:
    count = len(results.models)
    width = min(0.8 / count, WIDEST_BAR)
    axis.set_title(f"pass@1 by harness ({results.confidence:.0%} intervals over tasks)", pad=14 + 20 * -(-count // columns))
    for number, model in enumerate(results.models):
        colour = COLOURS[number % len(COLOURS)]
        named = False
        for column, harness in enumerate(results.harnesses):
            rate = results.block(model, harness).rate
            place = column + (number - (count - 1) / 2) * width
            if rate is None:
                axis.text(place, 0.02, "–", ha="center", color=FAINT)
                continue
            ends = [[rate.value - rate.low], [rate.high - rate.value]]
            axis.bar(place, rate.value, width=width * 0.92, color=colour, label=None if named else short(model))
            axis.errorbar(place, rate.value, yerr=ends, color=INK, capsize=4, linewidth=1.4)
            named = True
    axis.set_ylim(0, 1.05)
    axis.set_xlim(-0.6, len(results.harnesses) - 0.4)
    axis.set_xticks(range(len(results.harnesses)), [short(name) for name in results.harnesses])
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="y")
    if shown := len(axis.get_legend_handles_labels()[0]):
        even = -(-shown // -(-shown // columns))  # as many names in each row
        axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=even, fontsize=11, borderaxespad=0.2)


def short(name: str) -> str:
    """A name as an axis has room for it; what is left out is in the middle."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-(LONGEST // 2 - 1) :]}"
