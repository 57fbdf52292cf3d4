from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.batching import SampleLength, SampleTokens, UpdatePlan, loss_weights, plan_batch
from whippletree.batching.config import CostConfig, PackingConfig
from whippletree.batching.packing import best_fit
from whippletree.batching.ranks import exchange, sample_costs, spread
from whippletree.configuration import convert
from whippletree.errors import AlignmentError, ConfigurationError


def lengths(*tokens: int, per_rollout: int = 2) -> list[SampleLength]:
    return [SampleLength(sample_id=f"s{n}", rollout_id=f"r{n // per_rollout}", tokens=count) for n, count in enumerate(tokens)]


def heavy_tail(count: int, budget: int, seed: int = 0) -> list[SampleLength]:
    drawn = np.random.default_rng(seed).lognormal(np.log(3000), 1.0, count)
    return lengths(*np.clip(drawn, 200, budget).astype(int).tolist())


def cost_of(plan: UpdatePlan, samples: list[SampleLength], cost: CostConfig) -> np.ndarray:
    """Cost of each row, [ranks, micro-batches], computed anew."""
    tokens = {sample.sample_id: sample.tokens for sample in samples}
    return np.array(
        [[float(sample_costs([tokens[name] for name in row.sample_ids], cost).sum()) for row in rank] for rank in plan.ranks]
    )


def test_rows_of_like_cost_share_a_micro_batch_and_ranks_are_even() -> None:
    plan = plan_batch(lengths(10, 9, 8, 7, 3, 2, 1), PackingConfig(token_budget=10), 2)
    (update,) = plan.updates
    assert [[row.tokens for row in rank] for rank in update.ranks] == [[10, 10], [10, 10]]
    assert (update.tokens, update.fill, update.imbalance, update.empty_rows) == (40, 1.0, pytest.approx(0.0, abs=1e-3), 0)


def test_more_ranks_than_samples_get_rows_without_samples() -> None:
    (update,) = plan_batch(lengths(5, 4, 3), PackingConfig(token_budget=6, cost=CostConfig(quadratic=0.0)), 5).updates
    assert sorted([row.tokens for row in rank] for rank in update.ranks) == [[0], [0], [3], [4], [5]]
    empty = [row for rank in update.ranks for row in rank if not row.sample_ids]
    assert all((row.tokens, row.rollout_ids) == (0, ()) for row in empty)
    assert (update.empty_rows, len(empty), update.fill) == (2, 2, 12 / 30)
    assert update.imbalance == update.waiting == pytest.approx(5 / (12 / 5) - 1)


samples_of = st.lists(st.integers(1, 60), max_size=50)


@settings(max_examples=200)
@given(
    tokens=samples_of,
    per_rollout=st.integers(1, 5),
    budget=st.integers(1, 50),
    ranks=st.integers(1, 9),
    updates=st.integers(1, 4),
    quadratic=st.sampled_from([0.0, 2e-5, 0.1]),
    data=st.data(),
)
def test_any_plan_is_complete_even_and_independent_of_order(
    tokens: list[int], per_rollout: int, budget: int, ranks: int, updates: int, quadratic: float, data: st.DataObject
) -> None:
    samples = lengths(*tokens, per_rollout=per_rollout)
    by_id = {sample.sample_id: sample for sample in samples}
    config = PackingConfig(token_budget=budget, updates=updates, cost=CostConfig(quadratic=quadratic))
    plan = plan_batch(samples, config, ranks)
    assert len(plan.updates) == updates
    rows = [row for update in plan.updates for rank in update.ranks for row in rank]
    assert sorted(name for row in rows for name in row.sample_ids) == sorted(by_id)  # each once
    for row in rows:
        assert row.tokens == sum(by_id[name].tokens for name in row.sample_ids)
        assert row.rollout_ids == tuple(by_id[name].rollout_id for name in row.sample_ids)
        assert row.tokens <= budget or len(row.sample_ids) == 1
    owners = Counter(name for update in plan.updates for name in update.rollout_ids)
    assert set(owners.values()) <= {1} and set(owners) == {sample.rollout_id for sample in samples}
    numbers = [len(update.rollout_ids) for update in plan.updates]
    assert max(numbers) - min(numbers) <= 1
    for update in plan.updates:
        mine = [row for rank in update.ranks for row in rank]
        assert {name for row in mine for name in row.rollout_ids} == set(update.rollout_ids)
        assert len(update.ranks) == ranks and len({len(rank) for rank in update.ranks}) == 1
        assert update.tokens == sum(row.tokens for row in mine)
        assert update.empty_rows == sum(1 for row in mine if not row.sample_ids)
        assert update.oversized_rows == sum(1 for row in mine if row.tokens > budget)
        if mine:
            costs = cost_of(update, samples, config.cost)
            mean = costs.sum() / ranks
            assert update.imbalance == pytest.approx(costs.sum(axis=1).max() / mean - 1, abs=1e-9)
            assert update.waiting == pytest.approx(costs.max(axis=0).sum() / mean - 1, abs=1e-9)
            assert update.waiting >= update.imbalance - 1e-9
    assert plan_batch(data.draw(st.permutations(samples)), config, ranks) == plan


@given(tokens=samples_of, budget=st.integers(1, 50), ranks=st.integers(1, 9))
def test_there_are_no_more_micro_batches_than_the_fewest_rows_need(tokens: list[int], budget: int, ranks: int) -> None:
    _, fewest = best_fit(sorted(tokens, reverse=True), budget)
    (update,) = plan_batch(lengths(*tokens), PackingConfig(token_budget=budget), ranks).updates
    assert len(update.ranks[0]) <= -(-fewest // ranks)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [1000, 10_000])
def test_fill_and_imbalance_on_heavy_tailed_lengths(count: int, seed: int) -> None:
    (update,) = plan_batch(heavy_tail(count, 16_384, seed), PackingConfig(token_budget=16_384), 8).updates
    assert update.fill >= 0.97
    assert update.imbalance <= 0.02
    assert update.waiting <= 0.03


def test_few_samples_are_laid_by_cost_where_that_is_better() -> None:
    """Sixteen short samples and a long one: with 12,000 tokens each, the rank with the long one would cost 18 % too much."""
    samples = lengths(8000, *[1000] * 16)
    config = PackingConfig(token_budget=16_000, cost=CostConfig(linear=1.0, quadratic=1e-4))
    (update,) = plan_batch(samples, config, 2).updates
    assert len(update.ranks[0]) == 1
    assert update.imbalance == pytest.approx(16_500 / 16_000 - 1)
    tokens = sorted(rank[0].tokens for rank in update.ranks)
    assert tokens == [9000, 15000]


def test_steps_per_batch_are_the_configured_number() -> None:
    samples = lengths(*[5 + n % 40 for n in range(181)], per_rollout=3)
    plan = plan_batch(samples, PackingConfig(token_budget=64, updates=4), 8)
    assert sorted(len(update.rollout_ids) for update in plan.updates) == [15, 15, 15, 16]
    costs = [update.tokens for update in plan.updates]
    assert max(costs) - min(costs) < 0.2 * max(costs)


@given(tokens=samples_of, ranks=st.integers(1, 6), budget=st.integers(10, 60))
def test_what_each_sample_weighs_does_not_depend_on_the_ranks(tokens: list[int], ranks: int, budget: int) -> None:
    """The sum over ranks and rows of weight × tokens, in exact fractions, is that of one rank."""
    samples = lengths(*tokens)
    counts = [SampleTokens(sample_id=one.sample_id, rollout_id=one.rollout_id, trained_tokens=one.tokens) for one in samples]
    weights = loss_weights(counts)
    trained = {one.sample_id: one.trained_tokens for one in counts}
    (update,) = plan_batch(samples, PackingConfig(token_budget=budget), ranks).updates
    total = sum(
        (
            Fraction(trained[name], int(weights.divisors[name]))
            for rank in update.ranks
            for row in rank
            for name in row.sample_ids
        ),
        Fraction(0),
    )
    assert total == (1 if tokens else 0)


@given(costs=st.lists(st.floats(0, 100), max_size=40), bins=st.integers(1, 8))
def test_spreading_is_even_in_number_and_nearly_in_sum(costs: list[float], bins: int) -> None:
    ordered = np.array(sorted(costs, reverse=True))
    places = spread(ordered, bins)
    numbers = np.bincount(places, minlength=bins)
    assert numbers.max() - numbers.min() <= 1
    sums = np.bincount(places, weights=ordered, minlength=bins)
    assert sums.max() - sums.min() <= (ordered.max() if len(ordered) else 0.0) + 1e-9


@given(costs=st.lists(st.floats(0, 100), min_size=1, max_size=24), ranks=st.integers(1, 6))
def test_an_exchange_never_makes_the_dearest_rank_dearer_nor_changes_a_micro_batch(costs: list[float], ranks: int) -> None:
    padded = np.array(costs + [0.0] * (-len(costs) % ranks))
    table = np.arange(len(padded)).reshape(-1, ranks)
    after = exchange(table, padded)
    assert padded[after].sum(axis=0).max() <= padded[table].sum(axis=0).max() + 1e-9
    assert np.sort(after, axis=1).tolist() == table.tolist()


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="0 ranks"):
        plan_batch([], PackingConfig(), 0)
    with pytest.raises(AlignmentError, match="s0 has 0 tokens"):
        plan_batch(lengths(0), PackingConfig(), 1)
    with pytest.raises(AlignmentError, match="s0 is listed twice"):
        plan_batch(lengths(1) * 2, PackingConfig(), 1)
    for bad in ({"token_budget": 0}, {"updates": 0}, {"cost": {"linear": 0.0, "quadratic": 0.0}}):
        with pytest.raises(ConfigurationError, match=r"token_budget|updates|linear and quadratic"):
            convert(PackingConfig, bad, "run.toml")
