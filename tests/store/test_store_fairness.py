"""Whose turn it is when several sources wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippletree.store.fairness import Waiting, fair


def queue(*places: int) -> list[Waiting]:
    return [Waiting(seq=place, rollout_id=f"r{place}", attempt=0) for place in places]


def places(chosen: list[Waiting]) -> list[int]:
    return [waiting.seq for waiting in chosen]


def test_sources_take_turns_however_much_one_of_them_queued_before() -> None:
    queues = {"big": queue(*range(1, 9)), "small": queue(9, 10), "other": queue(11)}
    assert places(fair(queues, {}, 6)) == [1, 9, 11, 2, 10, 3]


def test_the_source_with_the_least_under_way_comes_first() -> None:
    assert places(fair({"a": queue(1, 2, 3), "b": queue(4, 5)}, {"a": 2}, 4)) == [4, 5, 1, 2]


sources = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 1000), max_size=6, unique=True))


@given(sources=sources, running=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5)), limit=st.integers(0, 30))
def test_no_source_gets_ahead_of_one_that_waits(sources: dict[str, list[int]], running: dict[str, int], limit: int) -> None:
    queues = {name: queue(*sorted(seqs)) for name, seqs in sources.items()}
    owner = {id(waiting): name for name, waiting_ones in queues.items() for waiting in waiting_ones}
    chosen = fair(queues, running, limit)
    assert len(chosen) == min(limit, sum(map(len, queues.values())))
    taken = dict.fromkeys(queues, 0)
    for waiting in chosen:
        name = owner[id(waiting)]
        assert queues[name][taken[name]] is waiting  # oldest first
        under_way = {other: running.get(other, 0) + taken[other] for other in queues if taken[other] < len(queues[other])}
        assert under_way[name] == min(under_way.values())
        taken[name] += 1
