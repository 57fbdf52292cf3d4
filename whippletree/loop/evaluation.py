"""Evaluation on the held-out tasks: the same tasks, the same sampling, at chosen policy versions.

    begin ─► controller runs them ─┬─► the loop trains on, and looks whenever it waits for rollouts ─┐
                                   └─► or waits (synchronous loop; the last evaluation)  ────────────┴─► one line
             all over, or `limit` seconds: the others are cancelled

Invariants (tests/loop/test_evaluation.py):
- one that is looked at never blocks; one that a killed process began is ended by the next;
- the versions that sampled it are in its line: several, where training went on beside it;
- it ends within its limit, whatever the rollouts do; what was cut is counted and said, never left out;
- a rollout that failed for reasons other than the model is counted apart, never as a wrong answer; beside the rate over those
  that were judged is the one over all, in which it did not pass;
- evaluation rollouts are never trained (their purpose says so).
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Sequence

from whippletree.identifiers import joined
from whippletree.loop.metrics import EvalMetrics, Log, mean, success_rate
from whippletree.loop.watch import Watch
from whippletree.protocols import Store
from whippletree.store.transitions import cancelled
from whippletree.types import Rollout, RolloutSpec, Sampling, Struct

log = logging.getLogger(__name__)


class Heldout(Struct):
    """A held-out task of a source. `labels` come from the task's metadata; "difficulty" is the one that reports group by.

    Example: Heldout(source="trail", task_id="t-1", task_path="/tasks/t-1", harness="mini-swe-agent")
    """

    source: str
    task_id: str
    task_path: str
    harness: str
    labels: dict[str, str] = {}


def evaluation_specs(
    tasks: Sequence[Heldout], *, step: int, samples: int, sampling: Sampling, max_attempts: int
) -> list[RolloutSpec]:
    """`samples` rollouts of each held-out task; the group is the task at this step."""
    names = joined((task.source, task.task_id) for task in tasks)
    return [
        RolloutSpec(
            rollout_id=f"eval{step:05d}-{names[task.source, task.task_id]}-{number:02d}",
            group_id=f"eval{step:05d}-{names[task.source, task.task_id]}",
            source=task.source,
            task_id=task.task_id,
            task_path=task.task_path,
            harness=task.harness,
            purpose="eval",
            step=step,
            sampling=sampling,
            max_attempts=max_attempts,
            labels=task.labels,
        )
        for task in tasks
        for number in range(samples)
    ]


class Pending(Struct):
    """An evaluation that has no line yet. `since` in seconds of the monotonic clock of this process.

    Example: Pending(step=20, policy_version=20, rollout_ids=("eval00020-trail-t-1-00",), since=812.5)
    """

    step: int
    policy_version: int
    rollout_ids: tuple[str, ...]
    since: float


class Evaluations:
    """The evaluations of a run: begun when due, each written as a line when it is over. `limit`: seconds for each, 0: none."""

    def __init__(self, watch: Watch, lines: Log, *, limit: float) -> None:
        self._watch = watch
        self._lines = lines
        self._limit = limit
        self._pending: dict[int, Pending] = {}

    @property
    def pending(self) -> tuple[int, ...]:
        """Steps whose evaluation is under way."""
        return tuple(sorted(self._pending))

    def adopt(self) -> None:
        """Take over those that another process of this run began and did not end; their limit begins anew."""
        written = {line.step for line in self._lines.evals()}
        names: dict[int, list[str]] = defaultdict(list)
        for rollout in self._watch.store.rollouts(purpose="eval"):
            names[rollout.spec.step].append(rollout.spec.rollout_id)
        for step in sorted(set(names) - written):
            self._add(step, step, names[step])

    def begin(self, specs: Sequence[RolloutSpec], *, step: int, policy_version: int) -> None:
        """Create the rollouts of an evaluation, unless it has been begun or has its line."""
        if step in self._pending or any(line.step == step for line in self._lines.evals()):
            return
        self._watch.store.create_rollouts(specs).result()
        self._add(step, policy_version, [spec.rollout_id for spec in specs])

    def look(self) -> bool:
        """Write the lines of those that are over or out of time; never waits. True where an evaluation rollout has changed."""
        if not self._pending:
            return False
        changed = self._watch.refresh()
        for pending in list(self._pending.values()):
            late = unfinished(self._watch, pending.rollout_ids)
            if late and self._limit and time.monotonic() - pending.since > self._limit:
                cut(self._watch, late, self._limit, of=len(pending.rollout_ids))
                late = []
            if not late:
                self._write(pending)
        return changed

    def finish(self) -> None:
        """Wait for those that are under way, each within its limit. Raises StoreError and ProcessError as Watch.until does."""
        for pending in list(self._pending.values()):
            left = max(0.0, pending.since + self._limit - time.monotonic()) if self._limit else math.inf
            if not self._watch.until(lambda names=pending.rollout_ids: not unfinished(self._watch, names), seconds=left):  # type: ignore[misc]
                late = unfinished(self._watch, pending.rollout_ids)
                cut(self._watch, late, self._limit, of=len(pending.rollout_ids))
            self._write(pending)

    def _add(self, step: int, policy_version: int, names: Sequence[str]) -> None:
        self._pending[step] = Pending(
            step=step, policy_version=policy_version, rollout_ids=tuple(sorted(names)), since=time.monotonic()
        )

    def _write(self, pending: Pending) -> None:
        done = [self._watch.rollouts[name] for name in pending.rollout_ids]
        seconds = time.monotonic() - pending.since
        line = summarise(self._watch.store, done, step=pending.step, policy_version=pending.policy_version, seconds=seconds)
        self._lines.append("eval", line)
        del self._pending[pending.step]


def unfinished(watch: Watch, names: Collection[str]) -> list[str]:
    """Which of these rollouts are not over, as far as the watch has seen."""
    known = ((name, watch.rollouts.get(name)) for name in sorted(names))
    return [name for name, rollout in known if rollout is None or not rollout.terminal]


def cut(watch: Watch, late: Sequence[str], limit: float, *, of: int) -> None:
    """Cancel the rollouts of an evaluation whose time is over."""
    log.warning("%d of %d evaluation rollouts were not over after %g s: they are cancelled", len(late), of, limit)
    watch.store.cancel(late, f"the evaluation's time ({limit:g} s, loop.eval_limit) was over").result()
    watch.refresh()


def summarise(store: Store, rollouts: Sequence[Rollout], *, step: int, policy_version: int, seconds: float) -> EvalMetrics:
    """Fold terminal rollouts into one line."""
    valid = [rollout for rollout in rollouts if rollout.reward is not None]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    sources: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for rollout in valid:
        for cell in (counts[rollout.spec.labels.get("difficulty", "all")], sources[rollout.spec.source]):
            cell[0] += int(rollout.reward is not None and rollout.reward >= 1.0)
            cell[1] += 1
    calls = [store.calls(rollout.spec.rollout_id, rollout.attempt) for rollout in valid]
    cancelled_ones = sum(cancelled(rollout) for rollout in rollouts)
    newest = max((rollout.updated for rollout in rollouts), default=0.0)
    return EvalMetrics(
        step=step,
        policy_version=policy_version,
        time=newest,
        valid=len(valid),
        failed=len(rollouts) - len(valid) - cancelled_ones,
        cut=cancelled_ones,
        success=success_rate(valid),
        success_of_all=mean(float(rollout.reward is not None and rollout.reward >= 1.0) for rollout in rollouts),
        versions=tuple(sorted({span.policy_version for found in calls for call in found for span in call.versions})),
        turns_mean=mean(map(len, calls)),
        by_difficulty={name: (passed, total) for name, (passed, total) in sorted(counts.items())},
        by_source={name: (passed, total) for name, (passed, total) in sorted(sources.items())},
        seconds=seconds,
    )
