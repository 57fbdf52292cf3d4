"""The tree of ids against plain lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces.prefixes import Place, longest_earlier, make_root

IDS = st.lists(st.integers(0, 2), max_size=6)


def column(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int32)


@given(sequences=st.lists(IDS, max_size=12))
def test_equal_sequences_and_no_others_end_at_one_place(sequences: list[list[int]]) -> None:
    root = make_root()
    places = [root.extend(column(ids)) for ids in sequences]
    for ids, place in zip(sequences, places, strict=True):
        assert place.ids().tolist() == ids
        assert place.depth == len(ids)
        assert [other is place for other in places] == [other == ids for other in sequences]


@given(data=st.data())
def test_a_sequence_may_be_added_from_any_earlier_one(data: st.DataObject) -> None:
    known: list[tuple[list[int], Place]] = [([], make_root())]
    for _ in range(data.draw(st.integers(0, 12))):
        start, place = data.draw(st.sampled_from(known))
        more = data.draw(IDS)
        known.append((start + more, place.extend(column(more))))
        for ids, other in known:
            assert other.ids().tolist() == ids
        rest = known[-1][1].ids(after=place)
        assert rest.tolist() == more


@given(data=st.data())
def test_the_longest_earlier_end_is_found(data: st.DataObject) -> None:
    root = make_root()
    sequences = data.draw(st.lists(st.none() | IDS, max_size=12))
    ends = [data.draw(st.none() | IDS) for _ in sequences]
    found = longest_earlier(
        [None if ids is None else root.extend(column(ids)) for ids in sequences],
        [None if ids is None else root.extend(column(ids)) for ids in ends],
    )
    for number, (ids, place) in enumerate(zip(sequences, found, strict=True)):
        fits = [end for end in ends[:number] if end is not None and ids is not None and ids[: len(end)] == end]
        assert (None if place is None else place.ids().tolist()) == max(fits, key=len, default=None)


def test_adding_a_sequence_looks_at_its_own_ids_only() -> None:
    """Counted, not timed: a conversation of 300 turns compares each id at most once more than it is stored."""
    looked = 0

    class Counting(np.ndarray):
        def __ne__(self, other: object) -> np.ndarray:
            nonlocal looked
            looked += len(self)
            return np.ndarray.__ne__(self, other)

    place = make_root()
    stored = 0
    for turn in range(300):
        delta = np.arange(turn, turn + 40, dtype=np.int32).view(Counting)
        stored += len(delta)
        once = place.extend(delta)
        assert place.extend(delta.copy().view(Counting)) is once
        place = once
    assert place.depth == stored
    assert looked <= 2 * stored
