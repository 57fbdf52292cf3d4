"""whippletree/loop/grid/statistics.py: estimates against counting everything out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.loop.grid.statistics import (
    Resampling,
    difference_of,
    mean_of,
    pass_at_k,
    rate_of,
    rates,
    ratio_of,
    resampled,
    resampled_means,
    wilson,
)

HOW = Resampling(resamples=400, seed=3)
counts = st.lists(st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), min_size=1, max_size=8)
shares = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, math.nan]), min_size=1, max_size=9)


@given(counts, st.integers(1, 6))
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_passed_rollout(found, k):
    valid, passed = (np.array(column) for column in zip(*found, strict=True))
    estimates = pass_at_k(valid, passed, k)
    for (n, c), estimate in zip(found, estimates, strict=True):
        subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
        if not subsets:
            assert math.isnan(estimate)
        else:
            assert estimate == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_of_many_rollouts_is_finite_and_right():
    (estimate,) = pass_at_k(np.array([5000]), np.array([3]), 1000)
    assert estimate == pytest.approx(1 - math.comb(4997, 1000) / math.comb(5000, 1000), rel=1e-9)


def test_the_resamples_have_the_distribution_of_all_resamples():
    values = np.array([0.0, 0.25, 1.0, 0.5])
    every = np.sort([np.mean(chosen) for chosen in itertools.product(values, repeat=4)])
    drawn = np.sort(resampled_means(values, Resampling(resamples=20_000, seed=5)))
    places = np.unique(every)
    exact = np.searchsorted(every, places + 1e-9) / len(every)
    found = np.searchsorted(drawn, places + 1e-9) / len(drawn)
    assert np.abs(exact - found).max() < 0.02


def test_the_interval_is_the_quantiles_of_the_resampled_means():
    values = np.array([0.0, 0.25, 1.0, 0.5, 0.75])
    how = Resampling(confidence=0.8, resamples=500, seed=2)
    weights = []
    resampled(5, lambda drawn: weights.append(drawn) or drawn[:, 0], how)
    means = [sum(w * v for w, v in zip(row, values, strict=True)) / 5 for row in np.concatenate(weights)]
    estimate = mean_of(values, how)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(means, [0.1, 0.9])))


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    draw = np.random.default_rng(7)
    hits = 0
    for number in range(200):
        hard = draw.beta(2, 2, size=40)  # chance of each of 40 tasks, mean 0.5
        passed = draw.binomial(4, hard)
        found = rate_of(rates(np.full(40, 4), passed), Resampling(resamples=300, seed=number))
        hits += found.low <= 0.5 <= found.high
    assert 0.88 <= hits / 200 <= 0.99


def test_rollouts_of_one_task_are_one_cluster():
    """Eight tasks with 50 equal rollouts each say no more than eight tasks."""
    passed = np.array([50, 50, 50, 50, 0, 0, 0, 0])
    many = rate_of(rates(np.full(8, 50), passed), HOW)
    one = rate_of(rates(np.full(8, 1), passed // 50), HOW)
    assert many == one
    assert many.high - many.low > 0.5


@settings(max_examples=60)
@given(shares)
def test_a_rates_interval_holds_it_and_stays_in_its_range(values):
    found = rate_of(np.array(values), HOW)
    known = [value for value in values if not math.isnan(value)]
    if not known:
        assert found is None
        return
    assert found.tasks == len(known)
    assert found.value == pytest.approx(np.mean(known))
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert found.high > found.low


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, math.nan])] * 2), min_size=1, max_size=9))
def test_a_difference_is_paired_and_antisymmetric(pairs):
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    found, turned = difference_of(first, second, HOW), difference_of(second, first, HOW)
    both = [(a, b) for a, b in pairs if not (math.isnan(a) or math.isnan(b))]
    if not both:
        assert found is None and turned is None
        return
    assert found.tasks == len(both)
    assert found.value == pytest.approx(np.mean([a - b for a, b in both]))
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    assert (turned.value, turned.low, turned.high) == pytest.approx((-found.value, -found.high, -found.low), abs=0.02)
    itself = difference_of(first, first, HOW)
    assert itself.value == 0.0


def test_pairing_makes_differences_narrower_where_tasks_are_hard_for_both():
    draw = np.random.default_rng(1)
    base = draw.choice([0.0, 1.0], size=60)
    second = base.copy()
    second[:6] = 1.0 - second[:6]
    paired = difference_of(base, second, HOW)
    sides = [rate_of(side, HOW) for side in (base, second)]
    assert paired.high - paired.low < min(side.high - side.low for side in sides)


def test_where_all_tasks_agree_the_interval_is_not_empty():
    assert rate_of(np.ones(12), HOW).low == pytest.approx(wilson(1.0, 12)[0])
    assert rate_of(np.ones(12), HOW).low < 0.8
    gap = difference_of(np.ones(12), np.zeros(12), HOW)
    assert (gap.value, gap.high) == (1.0, 1.0) and 0.5 < gap.low < 0.8


def test_costs_per_solved_are_ratios_of_sums():
    tokens, solved = np.array([100.0, 300.0, 200.0, 50.0]), np.array([1.0, 0.0, 2.0, 1.0])
    found = ratio_of(tokens, solved, HOW)
    assert found.value == 650 / 4
    every = sorted(
        sum(tokens[list(chosen)]) / total if (total := sum(solved[list(chosen)])) else math.inf
        for chosen in itertools.product(range(4), repeat=4)
    )
    assert every[0] <= found.low <= found.value
    assert found.high is not None and found.value <= found.high <= max(value for value in every if value < math.inf)
    assert ratio_of(tokens, np.zeros(4), HOW) is None
    assert ratio_of(tokens, np.array([0.0, 0.0, 0.0, 1.0]), HOW).high is None  # many resamples hold no solved task


def test_wilson_is_the_textbooks():
    low, high = wilson(0.5, 10)
    assert (low, high) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 10)[0] == 0.0 and wilson(0.0, 10)[1] == pytest.approx(0.2775, abs=1e-4)
    assert wilson(0.5, 10, 0.5)[0] > low
