"""The picture of a run: learning curves, pass rates by difficulty, turns, where the time went.

Invariants (tests/ui/test_report.py):
- a run with any number of steps, also none, gives a picture of 1500 × 900 pixels;
- every point lies inside its axes; axes of rates and counts begin at 0 unless a value is below;
- no two labels of an axis overlap, however many difficulties there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whippletree.loop.metrics import EvalMetrics
from whippletree.ui.data import RunData

INK, FAINT, GRID = "#1c2430", "#8a94a3", "#e6eaf0"
BLUE, LIGHT, ORANGE = "#1f5fbf", "#b9c8de", "#c2660c"
SMOOTH = 5
MOST_CELLS = 8
MOST_SLANTED = 20
PARTS = {
    "sampling": "sampling",
    "held": "calls held",
    "harness": "harness",
    "sandbox": "sandbox",
    "verifier": "verifier",
    "learner": "update",
    "publish": "publish weights",
}
NO_PICTURE = "no picture: it needs matplotlib (pip install 'whippletree[plots]')"
LEARNER_FROM = 5  # the parts from here on are the learner's own wall time


def draw(run: RunData, path: Path) -> Path | None:
    """Write a PNG of 1500 × 900 pixels. None where matplotlib is not installed: nothing is written then."""
    return save(lambda: make_figure(run), path)


def save(make: Callable[[], Any], path: Path) -> Path | None:
    """Write the figure that `make` returns as a PNG. None where matplotlib is not installed: nothing is written then."""
    try:
        figure = make()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        return None
    figure.savefig(path)
    return path


def empty_figure(width: float, height: float, **space: Any) -> Any:
    """A figure of so many inches with `space` around its axes (matplotlib's constrained layout), not registered with pyplot, so
    nothing has to be closed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), dpi=100, layout=ConstrainedLayoutEngine(**space))
    FigureCanvasAgg(figure)
    return figure


def make_figure(run: RunData) -> Any:
    """The figure (matplotlib)."""
    import matplotlib as mpl

    with mpl.rc_context(style()):
        figure = empty_figure(15, 9, w_pad=0.15, h_pad=0.15, wspace=0.04, hspace=0.06)
        figure.suptitle(title(run), fontsize=17, fontweight="bold")
        axes = figure.subplots(2, 2)
        _curves(axes[0][0], run)
        _difficulty(axes[0][1], run)
        _turns(axes[1][0], run)
        _time(axes[1][1], run)
        figure.canvas.draw()
    return figure


def style() -> dict[str, Any]:
    """Matplotlib settings of every picture."""
    return {
        "font.size": 12,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.titlesize": 14,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 32,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": GRID,
        "legend.frameon": False,
        "text.parse_math": False,
    }


def title(run: RunData) -> str:
    """The run's name and, once it has them, the held-out success of its first and last weights."""
    evals = [line for line in run.evals if line.success is not None]
    if len(evals) < 2:
        return run.directory.name
    first, last = evals[0].success or 0.0, evals[-1].success or 0.0
    minutes = f" in {run.summary.seconds_total / 60:.1f} minutes" if run.summary else ""
    return f"{run.directory.name}: held-out success {first:.2f} → {last:.2f} after {evals[-1].step} updates{minutes}"


def smooth(values: Sequence[float], width: int = SMOOTH) -> list[float]:
    """Mean of each value and up to width - 1 before it."""
    windows = [values[max(0, i - width + 1) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def wilson(rate: float, count: int) -> tuple[float, float]:
    """95 % interval of a success rate over `count` trials (Wilson 1927); never empty, also at 0 and 1."""
    z2 = 1.96**2
    centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = (1.96 / (1 + z2 / count)) * (rate * (1 - rate) / count + z2 / (4 * count**2)) ** 0.5
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


def by_depth(lines: Sequence[EvalMetrics]) -> list[dict[str, tuple[int, int]]]:
    """Pass counts of each line by difficulty; where there are too many cells to read, merged by what is before the comma."""
    names = {name for line in lines for name in line.by_difficulty}
    if len(names) <= MOST_CELLS:
        return [dict(line.by_difficulty) for line in lines]
    return [_merged(line.by_difficulty) for line in lines]


def _merged(cells: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for name, (passed, total) in cells.items():
        key = name.split(",")[0].strip()
        before = out.get(key, (0, 0))
        out[key] = (before[0] + passed, before[1] + total)
    return out


def natural(name: str) -> list[Any]:
    """Sort key that puts "depth 10" after "depth 9"."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def _steps_axis(axis: Any, run: RunData) -> None:
    from matplotlib.ticker import MaxNLocator

    last = max([1, *(line.step for line in run.steps), *(line.step for line in run.evals)])
    axis.set_xlim(-0.03 * last, 1.09 * last)
    axis.set_xlabel("updates")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(axis="y")


def _legend(axis: Any) -> None:
    """A line between the title and the axes, where nothing is drawn."""
    axis.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=11, borderaxespad=0.0, borderpad=0.3, handlelength=1.4
    )


def _curves(axis: Any, run: RunData) -> None:
    axis.set_title("Success through the harness")
    rewards = [(line.step, line.reward_mean) for line in run.steps if line.reward_mean is not None]
    values = [value for _, value in rewards]
    if rewards:
        steps = [step for step, _ in rewards]
        axis.plot(steps, values, color=ORANGE, alpha=0.35, linewidth=1)
        axis.plot(steps, smooth(values), color=ORANGE, linewidth=2, label=f"training reward (mean of {SMOOTH} updates)")
    evals = [(line.step, line.success, line.valid) for line in run.evals if line.success is not None and line.valid]
    if evals:
        _heldout(axis, [(step, rate or 0.0, count) for step, rate, count in evals])
    axis.set_ylim(min(0.0, *values, 0.0) * 1.05, max(1.0, *values, 0.0) * 1.05)
    _steps_axis(axis, run)
    if rewards or evals:
        _legend(axis)


def _heldout(axis: Any, evals: Sequence[tuple[int, float, int]]) -> None:
    bounds = [wilson(rate, count) for _, rate, count in evals]
    rates = [rate for _, rate, _ in evals]
    errors = [
        [rate - low for rate, (low, _) in zip(rates, bounds, strict=True)],
        [high - rate for rate, (_, high) in zip(rates, bounds, strict=True)],
    ]
    steps = [step for step, _, _ in evals]
    axis.errorbar(steps, rates, yerr=errors, color=BLUE, marker="o", linewidth=2, capsize=4, label="held-out (95 % interval)")
    shown = range(len(evals)) if len(evals) <= MOST_CELLS else (0, len(evals) - 1)
    for number in shown:
        axis.annotate(
            f"{rates[number]:.2f}",
            (steps[number], rates[number]),
            textcoords="offset points",
            xytext=(8, -16),
            color=BLUE,
            fontweight="bold",
        )


def _difficulty(axis: Any, run: RunData) -> None:
    axis.set_title("Held-out pass rate by difficulty")
    axis.set_ylim(0, 1.1)
    axis.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axis.grid(axis="y")
    chosen = [run.evals[0], run.evals[-1]] if len(run.evals) > 1 else run.evals[:1]
    cells = by_depth(chosen)
    names = sorted({name for line in cells for name in line}, key=natural)
    if not names:
        axis.set_xticks([])
        return
    width = 0.8 / len(chosen)
    crowded = len(names) > MOST_CELLS
    for number, (line, counts) in enumerate(zip(chosen, cells, strict=True)):
        places = [i + (number - (len(chosen) - 1) / 2) * width for i in range(len(names))]
        found = [counts.get(name, (0, 0)) for name in names]
        heights = [passed / total if total else 0.0 for passed, total in found]
        label = "before training" if line.step == 0 else f"after {line.step} updates"
        axis.bar(places, heights, width=width * 0.94, color=(LIGHT, BLUE)[number], label=label)
        for place, height, (passed, total) in zip(places, heights, found, strict=True):
            if not crowded:
                axis.text(place, height + 0.012, f"{passed}/{total}", ha="center", fontsize=9 if len(names) > 4 else 11)
    _name_cells(axis, names, crowded=crowded)
    _legend(axis)


def _name_cells(axis: Any, names: Sequence[str], *, crowded: bool) -> None:
    """Labels below the bars; where there are very many, slanted, and only as many as fit."""
    stride = 1 + len(names) // MOST_SLANTED if crowded else 1
    axis.set_xticks(
        range(0, len(names), stride), [_short(name) if crowded else name.replace(", ", "\n") for name in names[::stride]]
    )
    axis.tick_params(axis="x", length=0, labelsize=9 if crowded else 10 if len(names) > 4 else 12)
    if crowded:
        for label in axis.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")


def _short(name: str) -> str:
    """At most 24 characters; what is left out is in the middle, because names mostly differ at their ends."""
    return name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}"


def _turns(axis: Any, run: RunData) -> None:
    axis.set_title("Model calls per rollout")
    turns = [(line.step, line.turns_mean) for line in run.steps if line.turns_mean is not None]
    if turns:
        steps, values = [step for step, _ in turns], [value for _, value in turns]
        axis.plot(steps, values, color=ORANGE, alpha=0.35, linewidth=1)
        axis.plot(steps, smooth(values), color=ORANGE, linewidth=2, label=f"training (mean of {SMOOTH} updates)")
    evals = [(line.step, line.turns_mean) for line in run.evals if line.turns_mean is not None]
    if evals:
        axis.plot([step for step, _ in evals], [value for _, value in evals], "o-", color=BLUE, label="held-out")
    axis.set_ylim(0, 1.15 * max([1.0, *(value for _, value in [*turns, *evals])]))
    _steps_axis(axis, run)
    if turns or evals:
        _legend(axis)


def _time(axis: Any, run: RunData) -> None:
    parts = run.breakdown
    axis.set_title(f"Where the time went ({parts.wall:.0f} s on the clock)")
    values = [getattr(parts, name) for name in PARTS]
    names = list(PARTS.values())
    for colour, chosen, label in (
        (BLUE, slice(0, LEARNER_FROM), "summed over attempts, many of them at once"),
        (ORANGE, slice(LEARNER_FROM, None), "learner"),
    ):
        bars = axis.barh(names[chosen], values[chosen], color=colour, label=label)
        axis.bar_label(
            bars, labels=[f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" for value in values[chosen]], padding=5
        )
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * max(1.0, *values))
    axis.set_xlabel("seconds")
    _legend(axis)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")
