"""Rollouts for people: a list of them; one with its attempts and phases, its messages, its calls, and every token if asked.

Invariants (tests/ui/test_rollout_view.py):
- control characters that a model or tool wrote cannot reach the terminal, and nothing it wrote is read as markup;
- where the output is no terminal, nothing is cut off, so that it can be searched;
- a rollout in any state can be shown, also one without an attempt, and one whose payloads were released.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whippletree.errors import AlignmentError, StoreError
from whippletree.loop.layout import Layout
from whippletree.protocols import Renderer, Store
from whippletree.traces import TracesConfig, alarm, assign_roles, funnel, load_trace
from whippletree.types import Attempt, Call, Event, Rollout, RubricScore, Usage
from whippletree.ui.conversation import conversation, printable

WIDE = 1000  # columns, where the output is a file or a pipe
ROLE_WIDTH = 9
MOST_NOTICES = 100
LONGEST_NOTICE = 500  # characters


def make_console(file: TextIO | None = None) -> Console:
    """A console on `file` (default: standard output) that cuts nothing off where that is no terminal."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(file=file, width=WIDE, highlight=False, markup=False, emoji=False)


def print_rollouts(store: Store, rollouts: Iterable[Rollout], console: Console) -> None:
    """One line per rollout."""
    rows = []
    for rollout in rollouts:
        calls = store.calls(rollout.spec.rollout_id, rollout.attempt) if rollout.attempt else []
        cause = f"{rollout.cause.cause}: {rollout.cause.message}".splitlines()[0] if rollout.cause else ""
        reward = "–" if rollout.reward is None else f"{rollout.reward:g}"
        spec = rollout.spec
        rows.append((spec.rollout_id, spec.task_id, rollout.state, str(rollout.attempt), reward, str(len(calls)), cause))
    console.print(_table(("rollout", "task", "state", "attempt", "reward", "calls", "cause"), rows, whole=2))


def print_rollout(store: Store, layout: Layout, rollout_id: str, *, tokens: bool, console: Console) -> None:
    """Print a rollout. Raises StoreError when it is unknown."""
    rollout = store.rollout(rollout_id)
    _head(rollout, console)
    for attempt in store.attempts(rollout_id):
        _attempt(attempt, console)
    _notices(store.events(rollout_id), console)
    calls = store.calls(rollout_id, rollout.attempt) if rollout.attempt else []
    if calls:
        _messages(store, rollout, calls, console)
        _calls(store, layout, rollout, calls, console)
    if tokens:
        _tokens(store, layout, calls, console)


def _head(rollout: Rollout, console: Console) -> None:
    spec = rollout.spec
    reward = "none" if rollout.reward is None else f"{rollout.reward:g}"
    console.print(Text(printable(f"{spec.rollout_id}: {rollout.state}, reward {reward}"), style="bold"))
    where = f"task {spec.task_id} ({spec.source}), harness {spec.harness}, group {spec.group_id}, {spec.purpose}"
    console.print(Text(printable(where)))
    if rollout.cause is not None:
        cause = rollout.cause
        console.print(Text(printable(f"{cause.cause} in {cause.phase}: {cause.message}"), style="red"))
        if cause.next_step:
            console.print(Text(printable(f"what to do: {cause.next_step}"), style="red"))


def _attempt(attempt: Attempt, console: Console) -> None:
    phases = ", ".join(
        f"{phase.name}{f' of {phase.step}' if phase.step else ''} {phase.seconds:.2f} s" for phase in attempt.phases
    )
    end = attempt.cause.cause if attempt.cause else attempt.exit_status or "unfinished"
    console.print(Text(printable(f"attempt {attempt.attempt}: {end}" + (f"; {phases}" if phases else ""))))
    if attempt.cut_short is not None:
        console.print(Text(printable(f"  {attempt.cut_short.cause}: {attempt.cut_short.message}"), style="yellow"))
    if attempt.usage is not None:
        console.print(Text(f"  sandbox: {_used(attempt.usage)}", style="dim"))
    if (kept := attempt.snapshot) is not None:
        why = f" ({kept.reason})" if kept.reason else ""
        text = f"  snapshot after {kept.after}: {kept.holds}{why}, {kept.bytes / 2**20:.1f} MiB, {kept.directory}"
        console.print(Text(printable(text), style="dim"))
    for step in attempt.result.steps if attempt.result else ():
        reward = "no reward" if step.reward is None else f"reward {step.reward:g}"
        ended = step.cause.cause if step.cause else step.exit_status
        console.print(Text(printable(f"  step {step.name}: {reward}, {ended}")))
    if attempt.result is not None and attempt.result.tampering:
        console.print(Text(printable(f"  tampering: {'; '.join(attempt.result.tampering)}"), style="red"))
    for given in attempt.result.rubrics if attempt.result else ():
        console.print(Text(printable(f"  rubric {_scored(given)}"), style="dim"))
    if attempt.result is not None and attempt.result.pending:
        console.print(Text(printable(f"  waits for: {', '.join(attempt.result.pending)}"), style="yellow"))
    if attempt.result is not None and attempt.result.output:
        console.print(Text(f"  verifier: {printable(attempt.result.output.strip())}", style="dim"))


def _scored(given: RubricScore) -> str:
    if given.score is None:
        return f"{given.name}: no score: {given.problem}"
    shares = ", ".join(f"{name} {share:g}" for name, share in given.criteria.items())
    return f"{given.name}: {given.score:g} by {given.model}" + (f" ({shares})" if shares else "") + f" {given.why}".rstrip()


def _used(usage: Usage) -> str:
    memory = "" if usage.memory_peak_bytes is None else f", {usage.memory_peak_bytes / 2**20:.1f} MiB of memory at most"
    return f"{usage.cpu_seconds:.2f} s of CPU{memory}, {usage.disk_bytes / 2**20:.1f} MiB of files"


def _notices(events: Sequence[Event], console: Console) -> None:
    """What was noted beside the phases: suspicions, refusals of the network, what was left out."""
    for event in [event for event in events if event.kind != "phase"][:MOST_NOTICES]:
        said = ", ".join(f"{key} {value}" for key, value in event.data.items() if value not in ("", None))
        console.print(Text(printable(f"  {event.kind} in attempt {event.attempt}: {said[:LONGEST_NOTICE]}"), style="yellow"))


def _messages(store: Store, rollout: Rollout, calls: Sequence[Call], console: Console) -> None:
    console.print(Text(f"\nmessages of attempt {rollout.attempt}", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(width=ROLE_WIDTH, justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for turn in conversation(store, calls):
        text = Text(turn.text, style="blue" if turn.role == "assistant" else "dim" if turn.role == "note" else "")
        if turn.note:
            text.append(f"{'  ' if turn.text else ''}[{turn.note}]", style="dim")
        table.add_row(turn.role, text)
    console.print(table)


def traces_config(layout: Layout) -> TracesConfig:
    """A run's [traces] settings; the defaults where it has no configuration. Raises ConfigurationError."""
    from whippletree.configuration import load
    from whippletree.loop.config import RunConfig

    return load(RunConfig, layout.config).traces if layout.config.is_file() else TracesConfig()


def _judged(store: Store, layout: Layout, rollout: Rollout, calls: Sequence[Call]) -> tuple[dict[str, tuple[str, str]], str]:
    """Role and fate of each call, and what the trace as a whole has to say; roles alone where payloads are gone."""
    try:
        trace = load_trace(store, rollout, traces_config(layout))
    except (StoreError, AlignmentError) as error:
        parts = assign_roles(calls, {call.call_id: call.parent_call_id for call in calls})
        return {name: (part.role, "unknown") for name, part in parts.items()}, str(error)
    counts = funnel(trace)
    share = f"{counts.trained_tokens} of {counts.sampled_tokens} sampled tokens in {counts.samples} samples"
    return {node.call_id: (node.role, node.excluded or "yes") for node in trace.nodes}, alarm(counts) or f"trained: {share}"


def _calls(store: Store, layout: Layout, rollout: Rollout, calls: Sequence[Call], console: Console) -> None:
    judged, summary = _judged(store, layout, rollout, calls)
    attempt = store.attempts(rollout.spec.rollout_id)[-1]
    stepped = any(phase.step for phase in attempt.phases)
    rows = [
        (
            str(call.index),
            *((attempt.step_at(call.times.received),) if stepped else ()),
            str(call.prompt_tokens),
            str(call.cached_tokens),
            str(call.sampled_tokens),
            call.finish_reason,
            f"{call.version_start}–{call.version_end}" if call.version_start != call.version_end else str(call.version_end),
            call.prefix_break or "extends",
            "yes" if call.delivered else "no",
            f"{call.times.finished - call.times.received:.2f}" if call.times.finished else "–",
            *judged[call.call_id],
        )
        for call in calls
    ]
    names = (
        "#",
        *(("step",) if stepped else ()),
        "prompt",
        "cached",
        "sampled",
        "finish",
        "version",
        "prefix",
        "delivered",
        "seconds",
        "role",
        "trained",
    )
    console.print(Text("\ncalls", style="bold"))
    console.print(_table(names, rows))
    console.print(Text(printable(summary), style="dim"))


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, whole: int = 0) -> Table:
    """Cells as they are, never as markup; the first `whole` columns are never wrapped."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, no_wrap=number < whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(value)) for value in row))
    return table


def _tokens(store: Store, layout: Layout, calls: Sequence[Call], console: Console) -> None:
    from whippletree.configuration import load
    from whippletree.loop.config import RunConfig
    from whippletree.rendering import load_renderer

    config = load(RunConfig, layout.config)
    renderer: Renderer = load_renderer(Path(layout.read_services().model_directory), config.rendering)
    for call in calls:
        console.print(Text(f"\ncall {call.index}: sampled tokens", style="bold"))
        try:
            payload = store.payload(call)
        except StoreError as error:
            console.print(Text(printable(str(error)), style="dim"))
            continue
        rows = []
        for number, (token, logprob) in enumerate(zip(payload.sampled_ids.tolist(), payload.logprobs.tolist(), strict=True)):
            version = max((span for span in call.versions if span.start <= number), key=lambda span: span.start, default=None)
            told = "–" if version is None else str(version.policy_version)
            rows.append((str(number), str(token), repr(renderer.decode([token])), f"{logprob:.4f}", told))
        console.print(_table(("#", "id", "text", "logprob", "version"), rows))
