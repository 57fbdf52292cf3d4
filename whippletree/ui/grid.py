"""The terminal's view of a grid: a progress bar with the time left, elsewhere plain lines; and the tables.

    view ◄── is told where cells stand; it waits for nothing and nobody waits for it

Invariants (tests/ui/test_grid_view.py):
- the time left is extrapolated from cells that were run in this process, and absent before the first;
- without a terminal there is one line per stage, and one per tenth of the grid's cells, never one per look;
- a table shows every model and harness of the grid, also those without a cell;
- no number is cut off at the width of the terminal: rates and costs are two tables where one is too wide.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from whippletree.loop.grid.statistics import Estimate, Ratio
from whippletree.loop.grid.tables import ALL, Block, Difference, Results
from whippletree.ui.conversation import printable
from whippletree.ui.panel import clock

BAR_WIDTH = 40
TENTHS = 10
MOST_GAPS = 24  # differences in the terminal
WIDEST = 10_000  # characters: where a table's own width is asked for
INVALID = "invalid"


def time_left(ran: int, left: int, seconds: float) -> float | None:
    """Seconds for `left` cells at the pace of the `ran` cells of this process; None before the first."""
    return seconds / ran * left if ran else None


class GridView:
    """Progress of a grid (loop/grid/running.py's Observer)."""

    def __init__(self, total: int, *, console: Console) -> None:
        """`total`: cells of the grid."""
        self.total = total
        self.console = console
        self.stage = ""
        self._models: dict[str, int] = {}  # cells that are over
        self._ran = 0  # in this process, of models before the one at hand
        self._here = 0  # of the one at hand
        self._base = 0
        self._counts = (0, 0)
        self._began = time.monotonic()
        self._tenth = 0
        self._live: Live | None = None

    def __enter__(self) -> GridView:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def done(self) -> int:
        """Cells that are over, of all models looked at so far."""
        return sum(self._models.values())

    def say(self, stage: str) -> None:
        """What the grid is doing now."""
        self.stage = printable(stage)
        if self._live is None:
            self.console.out(self.stage, highlight=False)

    def begin(self, model: str, *, total: int, done: int) -> None:
        """A model's turn."""
        self._ran += self._here
        self._here, self._base = 0, done
        self._models[model] = done
        self._tenth = self._tenths()
        self._counts = (0, 0)
        self.say(f"{model}: {total - done} of {total} cells to run")

    def update(self, model: str, *, done: int, passed: int, invalid: int) -> None:
        """Where the cells that this process runs stand."""
        self._here, self._counts = done, (passed, invalid)
        self._models[model] = self._base + done
        if self._live is None and self._tenths() > self._tenth:
            self._tenth = self._tenths()
            self.console.out(f"{model}: {self._line()}", highlight=False)

    def _tenths(self) -> int:
        return TENTHS * self.done // max(1, self.total)

    def render(self) -> RenderableType:
        """The live view."""
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, self.total), completed=self.done, width=BAR_WIDTH)
        grid.add_row(bar, Text(self._line()))
        return Group(grid, Text(self.stage, style="dim", overflow="ellipsis", no_wrap=True))

    def _line(self) -> str:
        left = time_left(self._ran + self._here, self.total - self.done, time.monotonic() - self._began)
        passed, invalid = self._counts
        wrong = f", {invalid} invalid" if invalid else ""
        return f"{self.done}/{self.total} cells, {passed} of {self._here} passed{wrong}, {clock(left)} left"


def print_results(results: Results, console: Console) -> None:
    """The tables of a grid."""
    for source in (ALL, *results.sources) if len(results.sources) > 1 else (ALL,):
        blocks = [block for block in results.blocks if block.source == source]
        title = f"{results.name}: {'every task' if source == ALL else source}, {results.confidence:.0%} intervals over tasks"
        console.print(_blocks(title, blocks, console))
    for model, reason in results.failed.items():
        console.print(Text(printable(f"{model} could not be evaluated: {reason}"), style="red"))
    gaps = [gap for gap in results.differences if gap.source == ALL]
    if gaps:
        title = f"differences of pass@1, paired by task, {results.confidence:.0%} intervals"
        console.print(_differences(title, gaps[:MOST_GAPS]))
        if len(gaps) > MOST_GAPS:
            console.print(Text(f"{len(gaps) - MOST_GAPS} more are in differences.csv", style="dim"))


def _blocks(title: str, blocks: list[Block], console: Console) -> RenderableType:
    """One table of rates and costs; two, where the console is too narrow for one."""
    rates, costs = _rates(blocks), _costs(blocks)
    whole = _table(title, blocks, {**rates, **costs})
    if Measurement.get(console, console.options.update(width=WIDEST), whole).maximum <= console.width:
        return whole
    return Group(_table(title, blocks, rates), _table("costs, over the same cells", blocks, costs))


def _table(title: str, blocks: list[Block], columns: Mapping[str, Sequence[str]]) -> Table:
    """Where there is too little room names and causes take several lines; numbers are never cut."""
    table = Table(title=printable(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("model", "harness"):
        table.add_column(name, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=name != INVALID, overflow="fold")
    for place, block in enumerate(blocks):
        table.add_row(printable(block.model), printable(block.harness), *(cells[place] for cells in columns.values()))
    return table


def _rates(blocks: list[Block]) -> dict[str, list[str]]:
    ks = sorted({k for block in blocks for k in block.pass_at})
    missing = [f" ({block.missing} missing)" if block.missing else "" for block in blocks]
    columns = {
        "passed": [f"{block.passed}/{block.valid}{more}" for block, more in zip(blocks, missing, strict=True)],
        "pass@1": [rate_text(block.rate) for block in blocks],
        **{f"pass@{k}": [rate_text(block.pass_at.get(k)) for block in blocks] for k in ks},
        INVALID: [printable(", ".join(f"{count} {cause}" for cause, count in block.causes.items())) or "–" for block in blocks],
    }
    if any(block.valid < block.cells for block in blocks):
        columns["of all"] = [f"{block.rate_of_all:.2f}" for block in blocks]
    return columns


def _costs(blocks: list[Block]) -> dict[str, list[str]]:
    return {
        "turns": [number_text(block.turns) for block in blocks],
        "tools/solved": [cost_text(block.tool_calls_per_solved) for block in blocks],
        "sampled/solved": [cost_text(block.sampled_per_solved) for block in blocks],
        "processed/solved": [cost_text(block.computed_per_solved) for block in blocks],
        "seconds": [number_text(block.seconds) for block in blocks],
        "breaks": [str(sum(block.breaks.values())) if block.breaks else "–" for block in blocks],
    }


def _differences(title: str, gaps: list[Difference]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("in", "difference"):
        table.add_column(name, overflow="fold")
    for name in ("by", "tasks"):
        table.add_column(name, no_wrap=True)
    for gap in gaps:
        found = gap.estimate
        table.add_row(
            printable(gap.within),
            printable(f"{gap.first} - {gap.second}"),
            "–" if found is None else f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]",
            "–" if found is None else str(found.tasks),
        )
    return table


def rate_text(estimate: Estimate | None) -> str:
    """A share with its interval."""
    return "–" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def number_text(value: float | None) -> str:
    """A mean."""
    return "–" if value is None else f"{value:.1f}"


def cost_text(ratio: Ratio | None) -> str:
    """A cost per solved task."""
    if ratio is None:
        return "–"
    return f"{ratio.value:,.0f}" if ratio.value >= 100 else f"{ratio.value:.1f}"
