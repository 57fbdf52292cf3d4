from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import SampleLength, plan_rows
from whippletree.batching.packing import level
from whippletree.errors import AlignmentError, ConfigurationError


def lengths(*tokens: int) -> list[SampleLength]:
    return [SampleLength(sample_id=f"s{n}", rollout_id=f"r{n // 2}", tokens=count) for n, count in enumerate(tokens)]


def test_best_fit_decreasing() -> None:
    plan = plan_rows(lengths(3, 6, 4, 5, 2), 10)
    assert [(row.sample_ids, row.tokens) for row in plan.rows] == [(("s1", "s2"), 10), (("s3", "s0", "s4"), 10)]
    assert plan.rows[1].rollout_ids == ("r1", "r0", "r2")
    assert (plan.tokens, plan.fill, plan.oversized_rows) == (20, 1.0, 0)


def test_the_fullest_row_with_room_is_chosen() -> None:
    plan = plan_rows(lengths(7, 6, 3), 10)
    assert [row.sample_ids for row in plan.rows] == [("s0", "s2"), ("s1",)]
    assert plan.fill == 16 / 20


def test_a_sample_longer_than_the_budget_has_its_own_row() -> None:
    plan = plan_rows(lengths(25, 4, 5), 10)
    assert [row.sample_ids for row in plan.rows] == [("s0",), ("s2", "s1")]
    assert plan.oversized_rows == 1
    assert plan.fill == 34 / 35


@given(tokens=st.lists(st.integers(1, 60), max_size=60), budget=st.integers(1, 50), data=st.data())
def test_any_plan_is_complete_within_budget_and_independent_of_order(
    tokens: list[int], budget: int, data: st.DataObject
) -> None:
    given_samples = lengths(*tokens)
    by_id = {sample.sample_id: sample for sample in given_samples}
    plan = plan_rows(given_samples, budget)
    placed = [name for row in plan.rows for name in row.sample_ids]
    assert sorted(placed) == sorted(by_id)  # each once
    for row in plan.rows:
        assert row.tokens == sum(by_id[name].tokens for name in row.sample_ids)
        assert row.rollout_ids == tuple(by_id[name].rollout_id for name in row.sample_ids)
        assert row.tokens <= budget or len(row.sample_ids) == 1
    for one, other in itertools.combinations(plan.rows, 2):
        assert one.tokens + other.tokens > budget
    assert 0.0 < plan.fill <= 1.0
    assert [row.tokens for row in plan.rows] == sorted((row.tokens for row in plan.rows), reverse=True)
    assert plan_rows(data.draw(st.permutations(given_samples)), budget) == plan


def test_an_empty_batch_has_an_empty_plan() -> None:
    plan = plan_rows([], 10)
    assert (plan.rows, plan.tokens, plan.fill, plan.oversized_rows) == ((), 0, 1.0, 0)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="budget"):
        plan_rows([], 0)
    with pytest.raises(AlignmentError, match="s0 has 0 tokens"):
        plan_rows(lengths(0), 10)
    with pytest.raises(AlignmentError, match="s0 is listed twice"):
        plan_rows(lengths(1) * 2, 10)


@given(tokens=st.lists(st.integers(1, 60), max_size=60), rows=st.integers(0, 40), budget=st.integers(1, 50))
def test_levelled_rows_are_within_budget_and_even(tokens: list[int], rows: int, budget: int) -> None:
    sizes = sorted(tokens, reverse=True)
    numbers = level(sizes, sizes, rows, budget)
    if numbers is None:
        return
    assert len(numbers) == len(sizes)
    loads = [0] * rows
    for size, number in zip(sizes, numbers, strict=True):
        assert loads[number] + size <= budget or loads[number] == 0
        loads[number] += size
    shared = [load for load in loads if load <= budget]
    if shared and sizes:
        assert max(shared) - min(shared) <= max(size for size in [0, *sizes] if size <= budget)


@given(tokens=st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_levelling_finds_room_where_there_is_plenty(tokens: list[int]) -> None:
    sizes = sorted(tokens, reverse=True)
    assert level(sizes, [1.0 * size * size for size in sizes], 4, sum(sizes)) is not None
    assert level(sizes, sizes, 1, sum(sizes)) == [0] * len(sizes)
    assert level(sizes, sizes, 1, sum(sizes) - 1) is None or len(sizes) == 1
