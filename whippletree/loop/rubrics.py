"""What judge models did for the rollouts of a batch, in numbers.

Invariants (tests/loop/test_loop_rubrics.py):
- a mean is over the rollouts that have a score, and None where there is none; one that failed counts in no mean;
- an answer that several rollouts share (a group's, or that of equal questions) is counted once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from whippletree.loop.metrics import RubricMetrics, mean
from whippletree.protocols import Store
from whippletree.types import Rollout, RubricScore


def rubric_metrics(store: Store, rollouts: Iterable[Rollout]) -> dict[str, RubricMetrics]:
    """By the rubrics' names. Raises StoreError."""
    given: dict[str, list[RubricScore]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.attempt:
            result = store.attempts(rollout.spec.rollout_id)[-1].result
            for score in result.rubrics if result is not None else ():
                given[score.name].append(score)
    return {name: _numbers(scores) for name, scores in sorted(given.items())}


def _numbers(scores: list[RubricScore]) -> RubricMetrics:
    found = [score for score in scores if score.score is not None]
    asked = {key for score in found if not score.cached for key in score.requests}
    return RubricMetrics(
        mean=mean(score.score for score in found if score.score is not None),
        scored=len(found),
        failed=len(scores) - len(found),
        asked=len(asked),
        cached=sum(score.cached for score in found),
    )


def rubric_alarms(found: dict[str, RubricMetrics]) -> tuple[str, ...]:
    """Which rubrics gave rollouts no score, in sentences."""
    return tuple(f"rubric {name} gave {one.failed} rollouts no score" for name, one in found.items() if one.failed)
