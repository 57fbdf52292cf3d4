"""The terminal's view of a run: a live panel on a terminal, one line per event elsewhere.

    panel ── reads metrics.jsonl, eval.jsonl and the store, twice a second; it waits for nothing and nobody waits for it

Invariants (tests/ui/test_panel.py):
- the time left is extrapolated from updates done in this process, and absent before the first;
- without a terminal every update and evaluation is printed once, on one line, in the order in which they happened, with the
  agreement of sampler and learner;
- nothing that is shown can drive the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from whippletree.loop.metrics import EvalMetrics, Log, StepMetrics
from whippletree.ui.conversation import printable

BARS = "▁▂▃▄▅▆▇█"
LABEL_WIDTH = 10
RIGHT_WIDTH = 14
FRAME = 12  # columns that the panel's border, paddings and gaps take
WIDEST = 110
RECENT = 5
EVALS_SHOWN = 5


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, clamped to [0, 1], as one line of bars."""
    return "".join(BARS[min(7, max(0, int(value * 8)))] for value in values[-width:]) if width > 0 else ""


def time_left(own: Sequence[StepMetrics], evals: Sequence[EvalMetrics], total: int, now: float) -> float | None:
    """Seconds until the run's end: the pace of this process's own updates (evaluations among them), and the last evaluation.

    `own`: the updates that this process saw made, in order; None while there are none. `now`: seconds since the epoch.
    """
    if not own:
        return None
    begun = own[0].time - own[0].seconds_collect - own[0].seconds_update
    remaining = total - own[-1].step - 1
    pace = (own[-1].time - begun) / len(own)
    last = evals[-1].seconds if evals and evals[-1].step != total else 0.0
    return max(0.0, pace * remaining + last - (now - own[-1].time)) if remaining or last else 0.0


def clock(seconds: float | None) -> str:
    """m:ss, or h:mm:ss from an hour on."""
    if seconds is None:
        return "–:––"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class RunView:
    """Progress of one run directory. `activity` gives the current counts: queuing, running, done."""

    def __init__(self, directory: Path, total: int, *, console: Console, activity: Callable[[], dict[str, int]]) -> None:
        self.directory = directory
        self.total = total
        self.console = console
        self.activity = activity
        self.log = Log(directory)
        self.started = time.monotonic()
        self.started_at = time.time()
        self.printed_steps = {line.step for line in self.log.steps()}
        self.printed_evals = {line.step for line in self.log.evals()}
        self.stage = "starting"
        self.isolation = ""
        self._live: Live | None = None

    def __enter__(self) -> RunView:
        if self.console.is_terminal:
            self._live = Live(self.render(), console=self.console, refresh_per_second=2, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self.render())
            self._live.stop()
            self._live = None
        else:
            self._print_new(everything=True)

    def say(self, stage: str) -> None:
        """What the run is doing now."""
        self.stage = printable(stage)
        if self._live is None:
            self._print(f"[{clock(time.monotonic() - self.started)}] {self.stage}")
        else:
            self._live.update(self.render())

    def refresh(self) -> None:
        """Show what is new."""
        if self._live is not None:
            self._live.update(self.render())
        else:
            self._print_new(everything=False)

    # --- lines -------------------------------------------------------------------------------------------------------

    def _print(self, line: str) -> None:
        self.console.out(printable(line).replace("\n", " "), highlight=False)

    def _print_new(self, *, everything: bool) -> None:
        """Lines that were not printed yet. An update waits for its weight check, unless a later one is there or all is over."""
        steps = self.log.steps()
        newest = steps[-1].step if steps else -1
        found: list[tuple[int, int, str]] = []
        for step in steps:
            whole = step.weight_check_diff is not None or step.replayed or step.step < newest or everything
            if step.step not in self.printed_steps and whole:
                self.printed_steps.add(step.step)
                found.append((step.step + 1, 0, step_text(step, self.total)))
        for line in self.log.evals():
            follows = line.step == 0 or line.step - 1 in self.printed_steps or everything
            if line.step not in self.printed_evals and follows:
                self.printed_evals.add(line.step)
                found.append((line.step, 1, eval_text(line)))
        for _, _, text in sorted(found):
            self._print(text)

    # --- panel -------------------------------------------------------------------------------------------------------

    def isolate(self, sentence: str) -> None:
        """How attempts are isolated; it stays on the panel."""
        self.isolation = printable(sentence)
        self.say(sentence)

    def render(self) -> RenderableType:
        """The panel, in the console's width."""
        steps, evals = self.log.steps(), self.log.evals()
        done = steps[-1].step + 1 if steps else 0
        width = min(WIDEST, self.console.width)
        room = max(8, width - LABEL_WIDTH - RIGHT_WIDTH - FRAME)
        table = Table.grid(padding=(0, 2))
        table.add_column(width=LABEL_WIDTH, style="dim")
        table.add_column(width=room, overflow="fold")
        table.add_column(width=RIGHT_WIDTH, no_wrap=True)
        table.add_row("now", Text(self.stage), "")
        if self.isolation:
            style = "bold red" if "NO isolation" in self.isolation else ""
            table.add_row("sandboxes", Text(self.isolation, style=style), "")
        if self.total:
            table.add_row("updates", ProgressBar(total=self.total, completed=done, width=room), f"{done} of {self.total}")
        own = [line for line in steps if line.time >= self.started_at and not line.replayed]
        left = time_left(own, evals, self.total, time.time())
        elapsed = clock(time.monotonic() - self.started)
        table.add_row("time", Text(f"{elapsed} gone" + (f", about {clock(left)} left" if left is not None else "")), "")
        _add_results(table, steps, evals, room)
        counts = "   ".join(f"{name} {count}" for name, count in self.activity().items())
        table.add_row("rollouts", Text(printable(counts) or "none yet"), "")
        if steps:
            table.add_row("agreement", Text(agreement(steps[-1])), "")
            for told in steps[-1].alarms:
                table.add_row("warning", Text(printable(told), style="bold red"), "")
        title = Text(f" whippletree · {printable(self.directory.name)} ", style="bold")
        return Panel(table, title=title, title_align="left", border_style="blue", width=width, padding=(0, 1))


def _add_results(table: Table, steps: Sequence[StepMetrics], evals: Sequence[EvalMetrics], room: int) -> None:
    rewards = [line.reward_mean for line in steps if line.reward_mean is not None]
    if rewards:
        recent = rewards[-RECENT:]
        table.add_row(
            "reward", Text(sparkline(rewards, room), style="dark_orange"), f"{sum(recent) / len(recent):.2f} recently"
        )
    known = [line for line in evals if line.success is not None]
    if known:
        shown = known if len(known) <= EVALS_SHOWN else [known[0], *known[1 - EVALS_SHOWN :]]
        text = "  →  ".join(f"{line.success:.2f} after {line.step}{_of_all(line, 2)}" for line in shown)
        table.add_row("held-out", Text(text, style="bold blue"), "")


def _of_all(line: EvalMetrics, digits: int) -> str:
    """The rate over all rollouts of an evaluation, beside that over those that were judged; "" where no line has it."""
    return "" if line.success_of_all is None else f" ({line.success_of_all:.{digits}f} of all)"


def agreement(step: StepMetrics) -> str:
    """Sampler against learner, in words."""
    check = f"{step.weight_check_diff:.1e}" if step.weight_check_diff is not None else "–"
    if step.logprob_max_abs_diff is None:
        return f"no token of the current version; weight check {check}"
    correlation = f"{step.logprob_correlation:.6f}" if step.logprob_correlation is not None else "–"
    return f"logprobs max diff {step.logprob_max_abs_diff:.1e}, correlation {correlation}; weight check {check}"


def step_text(step: StepMetrics, total: int) -> str:
    """One line per update."""
    reward = f"{step.reward_mean:.3f}" if step.reward_mean is not None else "–"
    turns = f"{step.turns_mean:.2f}" if step.turns_mean is not None else "–"
    failed = f" failed {step.failed}" if step.failed else ""
    alarms = "".join(f"\n  warning: {printable(text)}" for text in step.alarms)
    return (
        f"update {step.step + 1}/{total} reward {reward} calls/rollout {turns} tokens {step.tokens_trained}{failed} "
        f"staleness {step.staleness_mean:.2f} grad {step.grad_norm:.2f} | {agreement(step)} | "
        f"collect {step.seconds_collect:.1f} s update {step.seconds_update:.1f} s{' replayed' if step.replayed else ''}"
        f"{alarms}"
    )


def eval_text(line: EvalMetrics) -> str:
    """One line per evaluation. Several sources, that is tasks or harnesses, are told apart; of one, the difficulties are."""
    success = f"{line.success:.3f}" if line.success is not None else "–"
    parts = line.by_source if len(line.by_source) > 1 else line.by_difficulty
    cells = "; ".join(f"{name}: {passed}/{total}" for name, (passed, total) in parts.items())
    failed = f", {line.failed} failed" if line.failed else ""
    failed += f", {line.cut} cut at the evaluation's limit" if line.cut else ""
    told = f"success {success} of {line.valid}{failed}{_of_all(line, 3)}"
    among = f" ({cells})" if cells else ""
    return f"held-out after {line.step} updates: {told}{among} in {line.seconds:.1f} s"


def sources_text(lines: Sequence[EvalMetrics]) -> str:
    """What each of several sources went from and to, a line each; "" where there is one, or no two evaluations."""
    if len(lines) < 2 or len(lines[-1].by_source) < 2:
        return ""
    first, last = lines[0].by_source, lines[-1].by_source
    return "".join(f"  {printable(name)}: {_share(first.get(name))} → {_share(cell)}\n" for name, cell in last.items())


def _share(cell: tuple[int, int] | None) -> str:
    return f"{cell[0] / cell[1]:.3f}" if cell and cell[1] else "–"
