"""whippletree/batching/packing.py"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import PlannedRow, SampleLength
from whippletree.batching.packing import best_fit, fill_of, in_order, level, make_rows
from whippletree.batching.trees import Part
from whippletree.errors import AlignmentError


def lengths(*tokens: int) -> list[SampleLength]:
    return [SampleLength(sample_id=f"s{n}", rollout_id=f"r{n // 2}", tokens=count) for n, count in enumerate(tokens)]


def fitted(samples: list[SampleLength], budget: int) -> list[PlannedRow]:
    ordered = in_order(samples)
    numbers, count = best_fit([sample.tokens for sample in ordered], budget)
    parts = [Part(names=(one.sample_id,), shared=(0,), tokens=one.tokens, attention=0) for one in ordered]
    return make_rows(parts, numbers, count, {one.sample_id: one.rollout_id for one in samples})


def test_best_fit_decreasing() -> None:
    rows = fitted(lengths(3, 6, 4, 5, 2), 10)
    assert [(row.sample_ids, row.tokens) for row in rows] == [(("s1", "s2"), 10), (("s3", "s0", "s4"), 10)]
    assert (rows[1].rollout_ids, rows[1].shared) == (("r1", "r0", "r2"), (0, 0, 0))
    assert fill_of(rows, 10) == 1.0


def test_the_fullest_row_with_room_is_chosen() -> None:
    rows = fitted(lengths(7, 6, 3), 10)
    assert [row.sample_ids for row in rows] == [("s0", "s2"), ("s1",)]
    assert fill_of(rows, 10) == 16 / 20


def test_a_sample_longer_than_the_budget_has_its_own_row_which_counts_as_full() -> None:
    rows = fitted(lengths(25, 4, 5), 10)
    assert [row.sample_ids for row in rows] == [("s0",), ("s2", "s1")]
    assert fill_of(rows, 10) == 34 / 35


def test_a_tree_goes_into_a_row_whole() -> None:
    tree = Part(names=("a", "b"), shared=(0, 3), tokens=6, attention=0)
    alone = Part(names=("c",), shared=(0,), tokens=4, attention=0)
    (row,) = make_rows([tree, alone], [0, 0], 1, {"a": "r0", "b": "r1", "c": "r2"})
    assert row == PlannedRow(sample_ids=("a", "b", "c"), rollout_ids=("r0", "r1", "r2"), shared=(0, 3, 0), tokens=10)


@given(tokens=st.lists(st.integers(1, 60), max_size=60), budget=st.integers(1, 50), data=st.data())
def test_any_fit_is_complete_within_budget_and_independent_of_order(
    tokens: list[int], budget: int, data: st.DataObject
) -> None:
    given_samples = lengths(*tokens)
    by_id = {sample.sample_id: sample for sample in given_samples}
    rows = fitted(given_samples, budget)
    placed = [name for row in rows for name in row.sample_ids]
    assert sorted(placed) == sorted(by_id)  # each once
    for row in rows:
        assert row.tokens == sum(by_id[name].tokens for name in row.sample_ids)
        assert row.rollout_ids == tuple(by_id[name].rollout_id for name in row.sample_ids)
        assert row.tokens <= budget or len(row.sample_ids) == 1
    for one, other in itertools.combinations(rows, 2):
        assert one.tokens + other.tokens > budget
    assert 0.0 < fill_of(rows, budget) <= 1.0
    assert fitted(data.draw(st.permutations(given_samples)), budget) == rows


def test_nothing_needs_no_row() -> None:
    assert (best_fit([], 10), fill_of([], 10)) == (([], 0), 1.0)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(AlignmentError, match="s0 has 0 tokens"):
        in_order(lengths(0))
    with pytest.raises(AlignmentError, match="s0 is listed twice"):
        in_order(lengths(1) * 2)


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
