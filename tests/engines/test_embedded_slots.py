"""Slots are given away, reused and waited for as slots.py promises."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.engines.embedded.slots import SHARE_MINIMUM, SlotTable

CONTEXT = 96
operations = st.lists(
    st.tuples(st.sampled_from(["place", "place", "finish", "invalidate"]), st.integers(0, 10_000)), max_size=40
)


def prompt(seed: int) -> np.ndarray:
    """Prompts of few kinds, so that long common beginnings are frequent."""
    length = 2 + seed % 50
    cut = (seed // 7) % (length + 1)
    tokens = np.full(length, 5, dtype=np.int32)
    tokens[cut:] = 10 + seed % 5
    return tokens


@settings(max_examples=200, deadline=None)
@given(operations)
def test_reuse_is_a_true_computed_prefix_and_owners_are_left_alone(steps: list[tuple[str, int]]) -> None:
    table = SlotTable(4, CONTEXT)
    cache: dict[int, list[int]] = {slot: [] for slot in range(4)}  # what a real cache would hold
    owners: dict[int, np.ndarray] = {}
    for kind, number in steps:
        if kind == "invalidate":
            table.invalidate()
            cache = {slot: [] for slot in cache}
        elif kind == "finish" and owners:
            slot = sorted(owners)[number % len(owners)]
            tokens = owners.pop(slot)
            computed = max(table.computed(slot), number % len(tokens))
            cache[slot] = tokens[:computed].tolist()
            table.advance(slot, computed)
            table.release(slot)
        elif kind == "place":
            tokens = prompt(number)
            placement = table.place(tokens)
            assert (placement is None) == (len(owners) == 4)
            if placement is None:
                continue
            assert placement.slot not in owners
            assert placement.reused < len(tokens)
            assert cache[placement.source][: placement.reused] == tokens[: placement.reused].tolist()
            if placement.wait_for >= 0:
                known = owners[placement.wait_for]
                assert known[: placement.wait_until].tolist() == tokens[: placement.wait_until].tolist()
                assert placement.wait_until - placement.reused >= SHARE_MINIMUM
            owners[placement.slot] = tokens
            cache[placement.slot] = tokens[: placement.reused].tolist()


def test_the_next_turn_continues_in_place() -> None:
    table = SlotTable(3, CONTEXT)
    first = table.place(np.arange(30, dtype=np.int32))
    assert first is not None
    table.advance(first.slot, 30)
    table.release(first.slot)
    second = table.place(np.arange(40, dtype=np.int32))
    assert second is not None
    assert (second.slot, second.source, second.reused) == (first.slot, first.slot, 30)


def test_another_conversation_copies_the_common_beginning_and_keeps_the_first() -> None:
    table = SlotTable(2, CONTEXT)
    long = np.arange(80, dtype=np.int32)
    first = table.place(long)
    assert first is not None
    table.advance(first.slot, 80)
    table.release(first.slot)
    other = np.concatenate([long[:40], np.full(9, 90, dtype=np.int32)])
    second = table.place(other)
    assert second is not None
    assert (second.source, second.reused) == (first.slot, 40)
    assert second.slot != first.slot
    assert table.common(first.slot, np.arange(90, dtype=np.int32)) == 80


def test_the_least_recently_used_slot_is_given_away_first() -> None:
    table = SlotTable(3, CONTEXT)
    placed = [table.place(np.full(20, kind, dtype=np.int32)) for kind in range(3)]
    slots = [placement.slot for placement in placed if placement is not None]
    for slot in (slots[1], slots[0], slots[2]):
        table.advance(slot, 20)
        table.release(slot)
    again = table.place(np.full(20, 9, dtype=np.int32))
    assert again is not None
    assert again.slot == slots[1]


def test_equal_prompts_that_arrive_together_wait_for_the_first() -> None:
    table = SlotTable(4, CONTEXT)
    tokens = np.arange(50, dtype=np.int32)
    first, second, third = (table.place(tokens) for _ in range(3))
    assert first is not None and second is not None and third is not None
    assert first.wait_for == -1
    assert (second.wait_for, second.wait_until) == (first.slot, 49)
    assert third.wait_for in (first.slot, second.slot)


def test_nothing_is_reused_where_the_caller_wants_every_token_computed() -> None:
    table = SlotTable(2, CONTEXT)
    tokens = np.arange(50, dtype=np.int32)
    first = table.place(tokens)
    assert first is not None
    table.advance(first.slot, 50)
    second = table.place(tokens, reuse=False)
    assert second is not None
    assert (second.reused, second.wait_for) == (0, -1)


def test_after_invalidation_later_owners_wait_for_earlier_ones_only() -> None:
    table = SlotTable(2, CONTEXT)
    tokens = np.arange(50, dtype=np.int32)
    first, second = table.place(tokens), table.place(tokens)
    assert first is not None and second is not None
    table.invalidate()
    assert table.replan(first.slot, tokens) is None
    assert table.replan(second.slot, tokens) == (first.slot, 49)


def test_shared_is_the_computed_beginning_of_all() -> None:
    table = SlotTable(3, CONTEXT)
    slots: list[int] = []
    for index, cut in enumerate((50, 20, 30)):
        tokens = np.arange(60, dtype=np.int32)
        tokens[cut:] = 90 + index
        placement = table.place(tokens, reuse=False)
        assert placement is not None
        table.advance(placement.slot, 55)
        slots.append(placement.slot)
    assert slots == [0, 1, 2]
    assert table.shared(np.array(slots)) == 20
    assert table.shared(np.array([0, 2])) == 30
    assert table.shared(np.array([1])) == 55
