"""The terminal's view of a fine-tuning: one line per measurement or tenth of the way, and the curve at the end.

Invariants (tests/ui/test_grid_view.py):
- the first and the last update, and every measurement, have a line;
- a curve shows its highest and lowest value in its own scale; a single value is a curve too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from whippletree.loop.sft.training import SftMetrics, read_metrics
from whippletree.ui.panel import BARS

WIDTH = 60
LINES = 20


class SftView:
    """Prints lines as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, line: SftMetrics) -> None:
        """Print an update where it is worth a line."""
        stride = max(1, line.steps // LINES)
        if line.heldout_loss is not None or line.step in (1, line.steps) or line.step % stride == 0:
            self._console.out(line_text(line), highlight=False)

    def curve(self, directory: Path) -> None:
        """Print the loss of every update, and of the held-out examples."""
        lines = read_metrics(directory)
        for name, values in (
            ("loss", [line.loss for line in lines if line.loss is not None]),
            ("held out", [line.heldout_loss for line in lines if line.heldout_loss is not None]),
        ):
            if values:
                self._console.out(f"{name:8} {values[0]:.3f} {curve_text(values)} {values[-1]:.3f}", highlight=False)


def line_text(line: SftMetrics) -> str:
    """One line of a fine-tuning."""
    held = "" if line.heldout_loss is None else f" held-out loss {line.heldout_loss:.4f}"
    if line.loss is None:
        return f"before the first update:{held or ' nothing is held out'}"
    grad = "" if line.grad_norm is None else f" grad {line.grad_norm:.2f}"
    return f"update {line.step}/{line.steps} loss {line.loss:.4f} tokens {line.tokens}{grad}{held} {line.seconds:.1f} s"


def curve_text(values: Sequence[float], width: int = WIDTH) -> str:
    """Values as a line of bars between their lowest and their highest; more than `width` are averaged."""
    count = min(width, len(values))
    means = [
        sum(part) / len(part)
        for part in (values[number * len(values) // count : (number + 1) * len(values) // count] for number in range(count))
    ]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in means)
