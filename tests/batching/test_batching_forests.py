"""whippletree/batching/ranks.py with trees: what samples share is laid once, on any number of ranks"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.batching import BatchPlan, Packing, PlannedRow, SampleLength, plan_batch, prefix_order
from whippletree.batching.config import CostConfig, PackingConfig
from whippletree.errors import AlignmentError, ConfigurationError

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12)


def named(sequences: list[list[int]]) -> dict[str, np.ndarray]:
    return {f"s{number}": np.array(ids, np.int32) for number, ids in enumerate(sequences)}


def samples_of(sequences: list[list[int]]) -> list[SampleLength]:
    return [SampleLength(sample_id=f"s{n}", rollout_id=f"r{n // 2}", tokens=len(ids)) for n, ids in enumerate(sequences)]


def planned(
    sequences: list[list[int]], budget: int, packing: Packing = "tree", *, ranks: int = 1, updates: int = 1
) -> BatchPlan:
    config = PackingConfig(packing=packing, token_budget=budget, updates=updates)
    return plan_batch(samples_of(sequences), config, ranks, prefix_order(named(sequences)))


def distinct(sequences: list[list[int]]) -> int:
    return len({tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))})


def check_row(row: PlannedRow, sequences: list[list[int]], budget: int) -> None:
    """What is said to be shared is what the sample and the one before it begin with, and everything else is laid."""
    ids = [sequences[int(name[1:])] for name in row.sample_ids]
    for number, common in enumerate(row.shared):
        assert common == 0 or ids[number][:common] == ids[number - 1][:common]
    assert row.tokens == sum(map(len, ids)) - sum(row.shared)
    assert row.tokens <= budget or len(ids) == 1


@settings(max_examples=200)
@given(
    sequences=SEQUENCES,
    budget=st.integers(1, 30),
    ranks=st.integers(1, 5),
    updates=st.integers(1, 3),
    packing=st.sampled_from(["tree", "rows", "single"]),
)
def test_every_sample_is_laid_once_within_the_budget_and_its_rollout_in_one_update(
    sequences: list[list[int]], budget: int, ranks: int, updates: int, packing: Packing
) -> None:
    plan = planned(sequences, budget, packing, ranks=ranks, updates=updates)
    found: list[str] = []
    update_of: dict[str, int] = {}
    for number, update in enumerate(plan.updates):
        rows = [row for rank in update.ranks for row in rank]
        assert len({len(rank) for rank in update.ranks}) == 1
        for row in rows:
            check_row(row, sequences, budget)
            found += row.sample_ids
            assert all(update_of.setdefault(name, number) == number for name in row.rollout_ids)
            assert packing != "single" or len(row.sample_ids) <= 1
        own = [sequences[int(name[1:])] for row in rows for name in row.sample_ids]
        assert update.tokens == sum(row.tokens for row in rows)
        assert (update.sample_tokens, update.distinct_tokens) == (sum(map(len, own)), distinct(own))
        assert update.distinct_tokens <= update.tokens <= update.sample_tokens
        assert packing == "tree" or update.tokens == update.sample_tokens
        assert 0 < update.fill <= 1
    assert sorted(found) == sorted(named(sequences))


@given(sequences=SEQUENCES, ranks=st.integers(1, 4), data=st.data())
def test_the_plan_depends_on_the_set_of_samples_alone(sequences: list[list[int]], ranks: int, data: st.DataObject) -> None:
    config = PackingConfig(packing="tree", token_budget=12, updates=2)
    other = data.draw(st.permutations(samples_of(sequences)))
    every = {**named(sequences), "another": np.array([1, 1, 1], np.int32)}  # the order may know of more
    assert plan_batch(other, config, ranks, prefix_order(every)) == planned(sequences, 12, ranks=ranks, updates=2)


def test_a_tree_within_the_budget_is_laid_with_no_token_twice() -> None:
    (update,) = planned([[1, 2, 3, *range(10, 10 + n)] for n in range(1, 9)], 20).updates
    assert update.tokens == update.distinct_tokens == 11
    (empty,) = planned([], 20).updates
    assert (empty.fill, empty.tokens, empty.ranks) == (1.0, 0, ((),))


def test_ranks_are_even_in_what_trees_cost_and_not_in_what_their_samples_would() -> None:
    """Four samples behind one beginning of 8 tokens cost a little more than one of 12 alone, not four times as much."""
    tree = [[1] * 8 + [number] for number in range(2, 6)]
    sequences = [*tree, [9] * 12]
    config = PackingConfig(packing="tree", token_budget=12, cost=CostConfig(linear=1.0, quadratic=0.5))
    (update,) = plan_batch(samples_of(sequences), config, 2, prefix_order(named(sequences))).updates
    assert [len(rank) for rank in update.ranks] == [1, 1]
    costs = sorted([12 + 0.5 * (8 * 8 + 4 * (81 - 64)), 12 + 0.5 * 144])
    assert update.imbalance == pytest.approx(costs[1] / (sum(costs) / 2) - 1)
    assert update.empty_rows == 0


def test_what_is_shared_must_be_known() -> None:
    config = PackingConfig(packing="tree")
    with pytest.raises(ConfigurationError, match="needs to know what samples share"):
        plan_batch(samples_of([[1]]), config, 1)
    with pytest.raises(AlignmentError, match="s0 of 1 tokens is in the prefix order not at all"):
        plan_batch(samples_of([[1]]), config, 1, prefix_order({}))
    with pytest.raises(AlignmentError, match="s0 of 1 tokens is in the prefix order with 2"):
        plan_batch(samples_of([[1]]), config, 1, prefix_order(named([[1, 2]])))
