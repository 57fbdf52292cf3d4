"""Evaluation on the held-out tasks: the same tasks, the same sampling, at chosen policy versions.

    create ─► controller runs them ─► all over, or `limit` seconds: the others are cancelled ─► one line

Invariants (tests/loop/test_evaluation.py):
- it ends within its limit, whatever the rollouts do; what was cut is counted and said, never left out;
- a rollout that failed for reasons other than the model is counted apart, never as a wrong answer;
- evaluation rollouts are never trained (their purpose says so).
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Sequence

from whippletree.loop.metrics import EvalMetrics, mean, success_rate
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
    return [
        RolloutSpec(
            rollout_id=f"eval{step:05d}-{task.source}-{task.task_id}-{number:02d}",
            group_id=f"eval{step:05d}-{task.source}-{task.task_id}",
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


def finish(watch: Watch, names: Collection[str], limit: float) -> list[Rollout]:
    """Wait until these rollouts are over, at most `limit` seconds (0: no limit); then cancel the others. All of them, ended.

    Raises StoreError and ProcessError as Watch.until does.
    """

    def unfinished() -> list[str]:
        known = ((name, watch.rollouts.get(name)) for name in sorted(names))
        return [name for name, rollout in known if rollout is None or not rollout.terminal]

    if not watch.until(lambda: not unfinished(), seconds=limit or math.inf):
        late = unfinished()
        log.warning("%d of %d evaluation rollouts were not over after %g s: they are cancelled", len(late), len(names), limit)
        watch.store.cancel(late, f"the evaluation's time ({limit:g} s, loop.eval_limit) was over").result()
        watch.refresh()
    return [watch.rollouts[name] for name in sorted(names)]


def summarise(store: Store, rollouts: Sequence[Rollout], *, step: int, policy_version: int, seconds: float) -> EvalMetrics:
    """Fold terminal rollouts into one line."""
    valid = [rollout for rollout in rollouts if rollout.reward is not None]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for rollout in valid:
        cell = counts[rollout.spec.labels.get("difficulty", "all")]
        cell[0] += int(rollout.reward is not None and rollout.reward >= 1.0)
        cell[1] += 1
    turns = mean(len(store.calls(rollout.spec.rollout_id, rollout.attempt)) for rollout in valid)
    cut = sum(cancelled(rollout) for rollout in rollouts)
    newest = max((rollout.updated for rollout in rollouts), default=0.0)
    return EvalMetrics(
        step=step,
        policy_version=policy_version,
        time=newest,
        valid=len(valid),
        failed=len(rollouts) - len(valid) - cut,
        cut=cut,
        success=success_rate(valid),
        turns_mean=turns,
        by_difficulty={name: (passed, total) for name, (passed, total) in sorted(counts.items())},
        seconds=seconds,
    )
