"""How far a judge agrees with the tests, before anything is trained on it. Pure.

Invariants (tests/control/test_rubric_agreement.py):
- a number that the data do not give (no scores, one class only, no spread) is None, never 0 or NaN;
- AUC and rank correlation depend on the order of scores alone; ties count half, as in the definitions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from whippletree.types import Struct


class Agreement(Struct):
    """Of a rubric's scores with those of the tests. `failed`: attempts without a score. `passed_mean`, `others_mean`: mean
    score of attempts that passed and of the others. `auc`: the chance that one that passed is scored higher than one that did
    not. `spearman`: rank correlation with the tests' score.

    Example: Agreement(rubric="style", scored=120, failed=1, mean=0.6, passed_mean=0.8, others_mean=0.4, auc=0.9, spearman=0.7)
    """

    rubric: str
    scored: int
    failed: int
    mean: float | None
    passed_mean: float | None
    others_mean: float | None
    auc: float | None
    spearman: float | None


def agreement(rubric: str, pairs: Sequence[tuple[float, float]], *, failed: int, passing: float) -> Agreement:
    """`pairs`: score of the judge, score of the tests. An attempt has passed with at least `passing`."""
    passed = [judge for judge, tests in pairs if tests >= passing]
    others = [judge for judge, tests in pairs if tests < passing]
    return Agreement(
        rubric=rubric,
        scored=len(pairs),
        failed=failed,
        mean=_mean([judge for judge, _ in pairs]),
        passed_mean=_mean(passed),
        others_mean=_mean(others),
        auc=auc(passed, others),
        spearman=spearman([judge for judge, _ in pairs], [tests for _, tests in pairs]),
    )


def auc(above: Sequence[float], below: Sequence[float]) -> float | None:
    """The chance that one of `above` is greater than one of `below`, ties half (Mann-Whitney U / (n m)); None without both."""
    if not above or not below:
        return None
    ranks = _ranks([*above, *below])
    least = len(above) * (len(above) + 1) / 2
    return (sum(ranks[: len(above)]) - least) / (len(above) * len(below))


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks; None where either has no spread."""
    first, second = _ranks(one), _ranks(other)
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return max(-1.0, min(1.0, statistics.correlation(first, second)))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties sharing their mean."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [math.nan] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2
        start = end
    return ranks


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
