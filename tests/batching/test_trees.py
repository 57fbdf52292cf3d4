"""whippletree/batching/trees.py"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching.trees import PrefixOrder, cut, prefix_order
from whippletree.errors import AlignmentError, ConfigurationError

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


def named(sequences: list[list[int]]) -> dict[str, np.ndarray]:
    return {f"s{number}": np.array(ids, np.int32) for number, ids in enumerate(sequences)}


def prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))}


def least_repeated(order: PrefixOrder, budget: int) -> int:
    """By trying every way to cut."""
    count, best = len(order.names), 10**9
    for cuts in itertools.product((False, True), repeat=count - 1):
        starts = [0, *(index for index, here in enumerate(cuts, 1) if here), count]
        repeated = 0
        for start, end in itertools.pairwise(starts):
            tokens = sum(order.lengths[start:end]) - sum(order.shared[start + 1 : end])
            split_root = any(order.shared[index] == 0 for index in range(start + 1, end))
            if split_root or (tokens > budget and end - start > 1):
                break
            repeated += order.shared[start]
        else:
            best = min(best, repeated)
    return best


def test_what_sequences_share_is_counted_once():
    order = prefix_order(named([[1, 2, 3, 4], [1, 6], [1, 2, 3, 5, 5]]))
    assert (order.names, order.shared) == (("s0", "s2", "s1"), (0, 3, 1))
    assert (order.tokens, order.distinct) == (11, 7)
    (part,) = cut(order, 100)
    assert (part.names, part.shared, part.tokens) == (order.names, order.shared, 7)


def test_large_and_negative_ids_sort_without_losing_a_common_beginning():
    order = prefix_order(named([[256, 1], [1, 1], [256, 2], [65536, 0], [65536, 9]]))
    assert order.distinct == 8


@given(SEQUENCES, st.integers(1, 30))
def test_parts_hold_everything_once_within_the_budget(sequences: list[list[int]], budget: int):
    order = prefix_order(named(sequences))
    parts = cut(order, budget)
    assert [name for part in parts for name in part.names] == list(order.names)
    assert order.distinct == len(prefixes(sequences))
    own = [[named(sequences)[name].tolist() for name in part.names] for part in parts]
    assert [part.tokens for part in parts] == [len(prefixes(part)) for part in own]
    assert all(part.tokens <= budget or len(part.names) == 1 for part in parts)


@given(SEQUENCES, st.integers(1, 30))
def test_no_other_cutting_repeats_fewer_tokens(sequences: list[list[int]], budget: int):
    order = prefix_order(named(sequences))
    assert sum(part.tokens for part in cut(order, budget)) - order.distinct == least_repeated(order, budget)


@given(SEQUENCES, st.integers(1, 30), st.randoms())
def test_the_order_of_the_list_decides_nothing(sequences: list[list[int]], budget: int, random: object):
    listed = named(sequences)
    other = list(listed.items())
    random.shuffle(other)  # type: ignore[attr-defined]
    assert cut(prefix_order(listed), budget) == cut(prefix_order(dict(other)), budget)


def test_trees_that_share_nothing_are_never_in_one_part():
    assert [part.names for part in cut(prefix_order(named([[1, 2], [3], [1, 4]])), 100)] == [("s0", "s2"), ("s1",)]


def test_nothing_gives_no_part_and_bad_input_is_named():
    assert cut(prefix_order({}), 5) == []
    with pytest.raises(ConfigurationError, match="token budget of a row is 0"):
        cut(prefix_order({}), 0)
    with pytest.raises(AlignmentError, match="sample s0 has 0 tokens"):
        prefix_order(named([[]]))


@given(SEQUENCES, st.integers(1, 30))
def test_attention_of_a_part_is_what_its_tokens_look_at(sequences: list[list[int]], budget: int):
    for part in cut(prefix_order(named(sequences)), budget):
        own = [named(sequences)[name].tolist() for name in part.names]
        assert part.attention == sum(2 * len(prefix) - 1 for prefix in prefixes(own))


@given(SEQUENCES, st.integers(0, 255))
def test_the_order_of_some_is_the_one_that_they_have_by_themselves(sequences: list[list[int]], bits: int):
    every = named(sequences)
    some = {name: ids for number, (name, ids) in enumerate(every.items()) if bits >> number & 1}
    assert prefix_order(every).only(some) == prefix_order(some)
