"""Advantage estimators: rewards by group → advantages by group, of the same shapes, in float64.

With r the rewards of a group's n voters, m and s their mean and standard deviation, and M and S those of the whole batch:

| name | advantage | source |
|---|---|---|
| grpo | (r - m) / d(s) | GRPO, arXiv:2402.03300 |
| dr-grpo | r - m | Dr. GRPO, arXiv:2503.20783 |
| rloo | r - mean of the others = (r - m) n / (n - 1) | RLOO, arXiv:2402.14740 |
| rloo-scaled | rloo / d(s): baseline without oneself, scale shared by the group | |
| reinforce++ | (r - M) / d(S) | REINFORCE++, arXiv:2501.03262 |
| reinforce++-baseline | (r - m) / d(S'), S' of the batch's r - m | REINFORCE++ with baseline, the same |

d(s) = max(s, min_std) + eps. A standard deviation that leaves oneself out is not offered: of seven equal rewards and another
one it is 0 (or a rounding residue of any size) for the other one alone, whose advantage then has no bound. A shared scale
bounds every advantage by sqrt(n).

Means and squares are summed exactly and rounded once (math.fsum), so results depend on no order.

Invariants (tests/batching/test_batching_advantages.py):
- a group of one, or of equal rewards, gives exactly 0.0 in every group-relative estimator, and so does a batch of equal
  rewards in reinforce++; no input gives NaN or inf;
- advantages are centred: on their group, or for reinforce++ on the batch;
- group-relative advantages depend on their own group alone (reinforce++-baseline: up to one factor for the whole batch).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from whippletree.batching.registry import Registry

Float64 = npt.NDArray[np.float64]


class Scaling(Protocol):
    """What estimators read of the settings of advantages, `batching.config.AdvantageConfig`, which says what each means."""

    @property
    def std(self) -> Literal["sample", "population"]:
        """Which standard deviation."""
        ...

    @property
    def eps(self) -> float:
        """Added to what is divided by."""
        ...

    @property
    def min_std(self) -> float:
        """The least standard deviation."""
        ...

    @property
    def resolution(self) -> float:
        """Rewards that are no further apart are equal."""
        ...


Estimator = Callable[[Sequence[Float64], Scaling], list[Float64]]
"""(rewards, settings) → advantages. Both lists have one array of shape [voters] for each group, in one order."""

GroupEstimator = Callable[[Float64, Scaling], Float64]


def mean(values: Float64) -> float:
    """Exactly rounded mean; 0.0 of nothing. Shape [n]."""
    return math.fsum(values) / len(values) if len(values) else 0.0


def deviation(values: Float64, settings: Scaling) -> float:
    """Standard deviation (divided by n - 1 or n, as `settings.std` says); 0.0 where there is none. Shape [n]."""
    degrees = len(values) - (settings.std == "sample")
    return math.sqrt(math.fsum((values - mean(values)) ** 2) / degrees) if degrees > 0 else 0.0


def equal(values: Float64, settings: Scaling) -> bool:
    """Whether all differ by no more than `settings.resolution` (relative to their size, where that is above 1). Shape [n]."""
    if len(values) < 2:
        return True
    low, high = float(values.min()), float(values.max())
    return high - low <= settings.resolution * max(1.0, abs(low), abs(high))


def scale(std: float, settings: Scaling) -> float:
    """What advantages are divided by: d(s) of this module; 1 where that would be 0."""
    return (max(std, settings.min_std) + settings.eps) or 1.0


def group_relative(one: GroupEstimator) -> Estimator:
    """An estimator of a batch from one of a group; groups that say nothing give zeros."""

    @wraps(one)
    def of_batch(rewards: Sequence[Float64], settings: Scaling) -> list[Float64]:
        return [np.zeros(len(group)) if equal(group, settings) else one(group, settings) for group in rewards]

    return of_batch


@group_relative
def grpo(rewards: Float64, settings: Scaling) -> Float64:
    """Centred on the group's mean, over its standard deviation."""
    return (rewards - mean(rewards)) / scale(deviation(rewards, settings), settings)


@group_relative
def dr_grpo(rewards: Float64, settings: Scaling) -> Float64:
    """Centred on the group's mean: without the division, groups of little spread count little."""
    return rewards - mean(rewards)


@group_relative
def rloo(rewards: Float64, settings: Scaling) -> Float64:
    """Centred on the mean of the group's others."""
    return (rewards - mean(rewards)) * (len(rewards) / (len(rewards) - 1))


@group_relative
def rloo_scaled(rewards: Float64, settings: Scaling) -> Float64:
    """Centred on the mean of the group's others, over the standard deviation of the whole group."""
    centred = (rewards - mean(rewards)) * (len(rewards) / (len(rewards) - 1))
    return centred / scale(deviation(rewards, settings), settings)


def reinforce_plus_plus(rewards: Sequence[Float64], settings: Scaling) -> list[Float64]:
    """Centred on the batch's mean, over the batch's standard deviation; works with groups of one."""
    batch = np.concatenate(rewards) if rewards else np.zeros(0)
    if equal(batch, settings):
        return [np.zeros(len(group)) for group in rewards]
    baseline, divisor = mean(batch), scale(deviation(batch, settings), settings)
    return [(group - baseline) / divisor for group in rewards]


def reinforce_plus_plus_baseline(rewards: Sequence[Float64], settings: Scaling) -> list[Float64]:
    """Centred on the group's mean, over the standard deviation of the batch's centred rewards (their mean is 0)."""
    centred = dr_grpo(rewards, settings)
    batch = np.concatenate(centred) if centred else np.zeros(0)
    divisor = scale(deviation(batch, settings), settings)
    return [group / divisor for group in centred] if batch.any() else centred


ESTIMATORS: Registry[Estimator] = Registry(
    what="advantage estimator",
    arguments=("rewards", "settings"),
    shipped={
        "grpo": grpo,
        "dr-grpo": dr_grpo,
        "rloo": rloo,
        "rloo-scaled": rloo_scaled,
        "reinforce++": reinforce_plus_plus,
        "reinforce++-baseline": reinforce_plus_plus_baseline,
    },
)
