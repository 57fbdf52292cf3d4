"""What reports and the panel show, read from a run directory.

Invariants (tests/ui/test_data.py):
- the parts of the time breakdown are sums over attempts and calls of the record, never estimates;
- time in which an attempt's calls overlap is taken from its harness once;
- a run that has only begun can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, StoreError
from whippletree.loop.layout import Layout
from whippletree.loop.metrics import EvalMetrics, Log, StepMetrics, Summary
from whippletree.protocols import Store
from whippletree.store import open_store
from whippletree.types import Call, Struct


class Breakdown(Struct, omit_defaults=False):
    """Seconds summed over all attempts (many run at once, so these exceed the wall time), and the learner's wall seconds.

    `sampling`: from the gateway's hand-over of a call to the engine until its last token. `held`: calls waiting at the gateway
    before that. `harness`: the agent phase less the time in which one of its calls was open, so the harness's own work and the
    commands it ran. `sandbox`: boot, set-up, seal, clean-up. `wall`: from the first rollout's creation to the last change.

    Example: Breakdown(sampling=100.0, held=5.0, harness=60.0, sandbox=20.0, verifier=10.0, learner=30.0, publish=2.0, wall=9.0)
    """

    sampling: float
    held: float
    harness: float
    sandbox: float
    verifier: float
    learner: float
    publish: float
    wall: float


@dataclass(frozen=True)
class RunData:
    """Everything a report needs, store aside."""

    directory: Path
    steps: list[StepMetrics]
    evals: list[EvalMetrics]
    summary: Summary | None
    breakdown: Breakdown
    config_text: str


def read_run(directory: Path) -> RunData:
    """Read a run directory. Raises ConfigurationError where there is no run, StoreError when its record cannot be read."""
    layout = Layout(directory)
    if not layout.config.is_file() and not layout.store.is_dir():
        raise ConfigurationError(f"{directory} holds no run", "give the directory of a run, for example runs/demo")
    log = Log(directory)
    store = open_store(layout.store)
    try:
        steps = log.steps()
        return RunData(
            directory=directory,
            steps=steps,
            evals=log.evals(),
            summary=_summary(layout.summary),
            breakdown=breakdown(store, steps),
            config_text=layout.config.read_text(encoding="utf-8") if layout.config.is_file() else "",
        )
    finally:
        store.close()


def _summary(path: Path) -> Summary | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path} cannot be read: {error}", "remove it; the learner writes it anew on --resume") from error


def breakdown(store: Store, steps: list[StepMetrics]) -> Breakdown:
    """Sum the phases of every attempt and the times of every call of a run."""
    phases: dict[str, float] = {}
    sampling = held = harness = 0.0
    first, last = float("inf"), 0.0
    for rollout in store.rollouts():
        first, last = min(first, rollout.created), max(last, rollout.updated)
        for attempt in store.attempts(rollout.spec.rollout_id):
            calls = [call for call in store.calls(rollout.spec.rollout_id, attempt.attempt) if call.times.finished]
            for phase in attempt.phases:
                phases[phase.name] = phases.get(phase.name, 0.0) + phase.seconds
            agent = sum(phase.seconds for phase in attempt.phases if phase.name == "agent")
            harness += max(0.0, agent - covered((call.times.received, call.times.finished) for call in calls))
            held += sum(submitted_at(call) - call.times.received for call in calls)
            sampling += sum(call.times.finished - submitted_at(call) for call in calls)
    return Breakdown(
        sampling=sampling,
        held=held,
        harness=harness,
        sandbox=sum(phases.get(name, 0.0) for name in ("image", "boot", "setup", "seal", "snapshot", "cleanup")),
        verifier=phases.get("verify", 0.0),
        learner=sum(step.seconds_update for step in steps),
        publish=sum(step.seconds_publish for step in steps),
        wall=max(0.0, last - first) if last else 0.0,
    )


def submitted_at(call: Call) -> float:
    """When the engine got the call; the moment of its end where it never did."""
    return call.times.submitted or call.times.finished


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (begin, end) spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
