"""report.html and report.png of a run.

Invariants (tests/ui/test_report.py):
- nothing that a model or a tool wrote is interpreted as HTML, and none of its control characters reaches the page;
- a run without steps, evaluations or summary gives a report;
- the page needs nothing but the picture beside it: no script, no font, no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from whippletree.files import write_atomically
from whippletree.loop.layout import Layout
from whippletree.protocols import Store
from whippletree.store import open_store
from whippletree.types import Rollout
from whippletree.ui.conversation import Turn, conversation, printable
from whippletree.ui.data import RunData, read_run
from whippletree.ui.plots import NO_PICTURE, draw

COLUMNS = {
    "step": "update",
    "reward_mean": "reward",
    "turns_mean": "calls / rollout",
    "tokens_trained": "tokens",
    "samples": "samples",
    "trained_share": "trained share",
    "failed": "failed",
    "groups_without_signal": "no signal",
    "staleness_mean": "staleness",
    "grad_norm": "grad norm",
    "clip_fraction": "clipped",
    "logprob_max_abs_diff": "max |Δ logprob|",
    "logprob_correlation": "correlation",
    "weight_check_diff": "weight check",
    "seconds_collect": "collect s",
    "seconds_update": "update s",
}
PRECISE = 6  # decimals of what is near 1 by intention


@dataclass(frozen=True)
class Example:
    """One rollout as a conversation."""

    title: str
    turns: list[Turn]


def write_report(directory: Path) -> tuple[Path, Path | None]:
    """Write both files into the run directory and return their paths (HTML, PNG); the page alone where matplotlib is not
    installed.

    Raises ConfigurationError where there is no run, StoreError when its record cannot be read.
    """
    run = read_run(directory)
    picture = draw(run, directory / "report.png")
    path = directory / "report.html"
    write_atomically(path, render(run, picture.name if picture else "").encode())
    return path, picture


def render(run: RunData, picture: str = "report.png") -> str:
    """The page. `picture`: name of the file beside it; empty where there is none."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    source = resources.files("whippletree.ui").joinpath("report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        name=printable(run.directory.name),
        directory=printable(str(run.directory)),
        lead=lead(run),
        picture=picture,
        without=NO_PICTURE,
        cards=cards(run),
        examples=_examples(run),
        columns=list(COLUMNS.values()),
        rows=[[cell(getattr(step, key), key) for key in COLUMNS] for step in run.steps],
        evals=[
            (
                *(line.step, cell(line.success), cell(line.success_of_all)),
                *(line.valid, line.failed, line.cut, cell(line.turns_mean)),
            )
            for line in run.evals
        ],
        alarms=[(step.step, printable(told)) for step in run.steps for told in step.alarms],
        config=printable(run.config_text),
    )


def cell(value: Any, key: str = "") -> str:
    """A number as people read it; None is a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if value and abs(value) < 1e-3:
            return f"{value:.1e}"
        return f"{value:.{PRECISE if key == 'logprob_correlation' else 3}f}".rstrip("0").rstrip(".")
    return str(value)


def lead(run: RunData) -> str:
    """The sentence under the title."""
    if run.summary is None:
        return "This run is not finished; the report shows what is on record so far."
    found = run.summary
    unfinished = "" if found.complete else " It stopped before its last update."
    return printable(f"{found.loop} loop, {found.launch} launch, seed {found.seed}. {found.isolation}{unfinished}")


def cards(run: RunData) -> list[tuple[str, str]]:
    """The run's key numbers, (label, value)."""
    if run.summary is None:
        return [("updates so far", str(len(run.steps)))]
    found = run.summary
    failed = f" ({found.failed_rollouts:,} failed)" if found.failed_rollouts else ""
    return [
        ("held-out success before", cell(found.heldout_before)),
        ("held-out success after", cell(found.heldout_after)),
        ("minutes in all", f"{found.seconds_total / 60:.1f}"),
        (f"rollouts{failed}", f"{found.rollouts:,}"),
        ("model calls", f"{found.calls:,}"),
        ("tokens trained", f"{found.tokens_trained:,}"),
        ("max |Δ logprob|, sampler to learner", cell(found.logprob_max_abs_diff)),
    ]


def _examples(run: RunData) -> list[Example]:
    """A held-out task that failed with the first weights and passed with the last; nothing where there is none."""
    store = open_store(Layout(run.directory).store)
    try:
        rollouts = store.rollouts(purpose="eval", states=("succeeded",))
        steps = [rollout.spec.step for rollout in rollouts]
        if not steps or min(steps) == max(steps):
            return []
        failed = {r.spec.task_id: r for r in rollouts if r.spec.step == min(steps) and (r.reward or 0.0) < 1.0}
        passed = [r for r in rollouts if r.spec.step == max(steps) and r.spec.task_id in failed and (r.reward or 0.0) >= 1.0]
        if not passed:
            return []
        after = max(passed, key=lambda r: (len(store.calls(r.spec.rollout_id, r.attempt)), r.spec.rollout_id))
        return [
            _example(store, failed[after.spec.task_id], "before training" if not min(steps) else f"after {min(steps)} updates"),
            _example(store, after, f"after {max(steps)} updates"),
        ]
    finally:
        store.close()


def _example(store: Store, rollout: Rollout, when: str) -> Example:
    turns = conversation(store, store.calls(rollout.spec.rollout_id, rollout.attempt))
    title = printable(f"{when}: reward {cell(rollout.reward)} ({rollout.spec.rollout_id})")
    return Example(title, turns or [Turn("note", "no model call")])
