"""Evaluation on the held-out tasks: the same tasks, the same sampling, at chosen policy versions.

Invariants (tests/loop/test_evaluation.py):
- a rollout that failed for reasons other than the model is counted apart, never as a wrong answer;
- evaluation rollouts are never trained (their purpose says so).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from whippletree.loop.metrics import EvalMetrics, mean, success_rate
from whippletree.protocols import Store
from whippletree.types import Rollout, RolloutSpec, Sampling, Struct


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


def summarise(store: Store, rollouts: Sequence[Rollout], *, step: int, policy_version: int, seconds: float) -> EvalMetrics:
    """Fold terminal rollouts into one line."""
    valid = [rollout for rollout in rollouts if rollout.reward is not None]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for rollout in valid:
        cell = counts[rollout.spec.labels.get("difficulty", "all")]
        cell[0] += int(rollout.reward is not None and rollout.reward >= 1.0)
        cell[1] += 1
    turns = mean(len(store.calls(rollout.spec.rollout_id, rollout.attempt)) for rollout in valid)
    newest = max((rollout.updated for rollout in rollouts), default=0.0)
    return EvalMetrics(
        step=step,
        policy_version=policy_version,
        time=newest,
        valid=len(valid),
        failed=len(rollouts) - len(valid),
        success=success_rate(valid),
        turns_mean=turns,
        by_difficulty={name: (passed, total) for name, (passed, total) in sorted(counts.items())},
        seconds=seconds,
    )
