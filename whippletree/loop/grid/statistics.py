"""What counts say of rates: pass@k, intervals that resample tasks, paired differences. Pure functions on arrays.

Rollouts of one task are alike, so tasks are what is drawn: a resample takes tasks with replacement, each with all its rollouts
(a cluster bootstrap), and every task has one vote however many of its rollouts are valid.

    values [T], one of each task ─► weights [B, T], how often each task is in each resample ─► B means ─► their quantiles

Where all tasks agree, resampling sees no variation, and an interval of no width would claim too much. Then the interval of a
rate is Wilson's over the tasks, and that of a difference is made of the two rates' (Newcombe 1998, without the correlation).

Invariants (tests/loop/test_grid_statistics.py):
- pass@k is the share of all k-subsets of the rollouts that hold a passed one, counted out;
- the resampled means have the distribution of all T^T resamples;
- an interval holds its estimate; a rate's lies in [0, 1], a difference's in [-1, 1]; over nothing there is none;
- exchanging the two sides of a difference exchanges signs and ends; a side with itself differs by exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from whippletree.types import Struct

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

RESAMPLES_AT_ONCE = 500


class Estimate(Struct):
    """A number with its interval. `tasks`: how many tasks it is over.

    Example: Estimate(value=0.42, low=0.31, high=0.53, tasks=48)
    """

    value: float
    low: float
    high: float
    tasks: int


class Ratio(Struct):
    """A ratio of sums with its interval; `high` is None where resamples say that it may be anything above `low`.

    Example: Ratio(value=812.5, low=640.0, high=1033.0, tasks=48)
    """

    value: float
    low: float
    high: float | None
    tasks: int


class Resampling(Struct):
    """How intervals are made.

    Example: Resampling(confidence=0.95, resamples=10000, seed=1)
    """

    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 1

    @property
    def tails(self) -> tuple[float, float]:
        """The quantiles of the interval's ends."""
        return (1 - self.confidence) / 2, (1 + self.confidence) / 2


def pass_at_k(valid: Int64, passed: Int64, k: int) -> Float64:
    """Chance that of k of a task's valid rollouts, drawn without replacement, one has passed: 1 - C(n - c, k) / C(n, k), the
    unbiased estimate of Chen et al. 2021 (arXiv:2107.03374). NaN for tasks with fewer than k valid ones. Shapes [T] to [T]."""
    missed = (valid - passed)[:, None] - np.arange(k)
    total = np.maximum(valid[:, None] - np.arange(k), 1)
    all_missed = np.prod(np.maximum(missed, 0) / total, axis=1)
    return np.where(valid >= k, 1.0 - all_missed, np.nan)


def rates(valid: Int64, passed: Int64) -> Float64:
    """Share of each task's valid rollouts that passed, pass@1; NaN for tasks without any. Shapes [T] to [T]."""
    return pass_at_k(valid, passed, 1)


def resampled(tasks: int, statistic: Callable[[Float64], Float64], how: Resampling) -> Float64:
    """The statistic of each resample. It is given weights [b, T] (how often each task is in it) and gives [b]. Shape [B]."""
    draw = np.random.default_rng([how.seed, tasks])
    share = np.full(tasks, 1.0 / tasks)
    found = []
    for start in range(0, how.resamples, RESAMPLES_AT_ONCE):
        count = min(RESAMPLES_AT_ONCE, how.resamples - start)
        found.append(statistic(draw.multinomial(tasks, share, size=count).astype(np.float64)))
    return np.concatenate(found)


def resampled_means(values: Float64, how: Resampling) -> Float64:
    """Means of the resamples of values [T]. Shape [B]."""
    return resampled(len(values), lambda weights: weights @ values / len(values), how)


def mean_of(values: Float64, how: Resampling) -> Estimate | None:
    """Mean over the tasks that have a value (not NaN); None over none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, high = np.quantile(resampled_means(known, how), how.tails)
    return _estimate(float(known.mean()), float(low), float(high), len(known))


def rate_of(values: Float64, how: Resampling) -> Estimate | None:
    """The same for shares in [0, 1]."""
    found = mean_of(values, how)
    known = values[~np.isnan(values)]
    if found is None or _varies(known):
        return found
    low, high = wilson(found.value, found.tasks, how.confidence)
    return _estimate(found.value, low, high, found.tasks)


def difference_of(first: Float64, second: Float64, how: Resampling) -> Estimate | None:
    """Mean of first - second over the tasks that have both (shares in [0, 1], the same tasks in the same order); None over
    none. Tasks are resampled with both their values, so that what is hard for both is in neither's way."""
    both = ~(np.isnan(first) | np.isnan(second))
    one, other = first[both], second[both]
    gaps = one - other
    found = mean_of(gaps, how)
    if found is None or _varies(gaps):
        return found
    (a, a_low, a_high), (b, b_low, b_high) = (_with_wilson(side, how) for side in (one, other))
    low = found.value - math.hypot(a - a_low, b_high - b)
    high = found.value + math.hypot(a_high - a, b - b_low)
    return _estimate(found.value, max(-1.0, low), min(1.0, high), found.tasks)


def ratio_of(parts: Float64, wholes: Float64, how: Resampling) -> Ratio | None:
    """Sum of `parts` over sum of `wholes` (both [T], of the same tasks); None where the wholes sum to 0. A resample in which
    they do so counts as infinite."""
    if not len(parts) or wholes.sum() <= 0:
        return None

    def ratio(weights: Float64) -> Float64:
        below = weights @ wholes
        found: Float64 = np.divide(weights @ parts, below, out=np.full(len(weights), np.inf), where=below > 0)
        return found

    found = np.sort(resampled(len(parts), ratio, how))
    low, high = (float(found[round(tail * (len(found) - 1))]) for tail in how.tails)  # no mean with infinity
    value = float(parts.sum() / wholes.sum())
    return Ratio(value=value, low=min(low, value), high=max(high, value) if math.isfinite(high) else None, tasks=len(parts))


def wilson(rate: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a rate over `count` independent trials (Wilson 1927); never empty, also at 0 and 1."""
    z = normal_quantile((1 + confidence) / 2)
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (z / (1 + z * z / count)) * math.sqrt(max(0.0, rate * (1 - rate)) / count + z * z / (4 * count * count))
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


def normal_quantile(share: float) -> float:
    """The standard normal's quantile."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


def _with_wilson(values: Float64, how: Resampling) -> tuple[float, float, float]:
    rate = min(1.0, max(0.0, float(values.mean())))
    return rate, *wilson(rate, len(values), how.confidence)


def _varies(values: Float64) -> bool:
    return bool(np.ptp(values) > 1e-12)


def _estimate(value: float, low: float, high: float, tasks: int) -> Estimate:
    """With an interval that holds its value, whatever rounding did."""
    return Estimate(value=value, low=min(low, value), high=max(high, value), tasks=tasks)
