"""whippletree/loop/mixer.py"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from whippletree.loop.mixer import CompleteGroup, Demand, accept_rate, dispatch, mix, quotas

SHARES = st.lists(st.integers(1, 9), min_size=1, max_size=4)
DEMANDS = st.lists(
    st.builds(
        Demand,
        quota=st.integers(0, 8),
        owed=st.integers(0, 20),
        kept=st.integers(0, 10),
        open=st.integers(0, 20),
        rate=st.floats(0.0, 1.0),
    ),
    max_size=5,
)


@given(SHARES, st.integers(0, 40), st.integers(0, 40))
def test_each_source_gets_its_share_to_within_one(shares: list[int], start: int, count: int):
    found, before = quotas(0, start + count, shares), quotas(0, start, shares)
    assert quotas(start, start + count, shares) == tuple(b - a for a, b in zip(before, found, strict=True))
    for own, share in zip(found, shares, strict=True):
        assert abs(own - (start + count) * share / sum(shares)) < 1 + 1e-9


@given(DEMANDS)
def test_a_source_is_given_what_it_is_short_of(demands: list[Demand]):
    counts = Counter(dispatch(demands))
    assert [counts[index] for index in range(len(demands))] == [demand.short for demand in demands]
    for demand in demands:
        in_hand = demand.kept + demand.rate * (demand.open + demand.short)
        assert demand.rate < 0.1 or in_hand >= demand.owed - 1e-6  # expected to be enough


def test_what_is_dropped_is_started_beforehand_and_not_without_end():
    assert Demand(quota=6, owed=12, kept=2, open=8, rate=0.5).short == 12  # (12 - 2) / 0.5 in flight, 8 of them already
    assert Demand(quota=6, owed=6, kept=0, open=0, rate=0.0).short == 60
    assert Demand(quota=6, owed=6, kept=9, open=0).short == 0
    assert (accept_rate(0, 0), accept_rate(0, 9), accept_rate(9, 0)) == (1.0, 0.1, 1.0)


def test_the_round_robin_is_smooth_and_favours_whom_the_batch_waits_for():
    even = [Demand(quota=4, owed=4, kept=0, open=0), Demand(quota=2, owed=2, kept=0, open=0)]
    assert dispatch(even) == [0, 1, 0, 0, 1, 0]
    hungry = [Demand(quota=4, owed=8, kept=4, open=0), Demand(quota=4, owed=8, kept=0, open=0)]
    assert Counter(dispatch(hungry)[:6]) == {1: 4, 0: 2}  # half the weight for the quota, half for what is missing of it


def groups(*named: str) -> list[CompleteGroup]:
    """groups("a", "b!"): one of source a, and one of source b that is dropped."""
    return [
        CompleteGroup(group_id=f"g{number}", source=name[0], dropped="equal" if name.endswith("!") else "")
        for number, name in enumerate(named)
    ]


def test_a_batch_waits_for_each_sources_own_groups():
    assert mix(groups("a", "a", "a", "a"), {"a": 2, "b": 1}) is None
    found = mix(groups("a", "a", "a", "b"), {"a": 2, "b": 1})
    assert found is not None
    assert (found.groups, found.short) == (("g0", "g1", "g3"), {})
    assert mix(groups("a", "a"), {"a": 1, "b": 0}) is not None  # a source whose turn it is not holds nobody up


def test_dropped_groups_go_with_the_batch_and_count_for_no_quota():
    complete = groups("a!", "a", "a!", "a!")
    assert mix(complete, {"a": 2}) is None
    found = mix([*complete, *groups("a")], {"a": 2})
    assert found is not None and set(found.groups) == {"g0", "g1", "g2", "g3"}


def test_a_source_that_drops_too_much_goes_without_and_it_is_said():
    found = mix(groups("a!", "a", "a!", "a!", "a!", "b"), {"a": 2, "b": 1}, most_dropped=2)
    assert found is not None
    assert set(found.groups) == {"g0", "g1", "g2", "g3", "g4", "g5"}
    assert found.short["a"].startswith("1 of 2 groups: 4 were dropped by the filters")


@given(st.lists(st.sampled_from(["a", "b", "a!", "b!"]), max_size=20), st.integers(0, 3), st.integers(0, 3))
def test_a_batch_has_its_quotas_and_takes_no_kept_group_too_many(named: list[str], a: int, b: int):
    complete = groups(*named)
    found = mix(complete, {"a": a, "b": b})
    kept = Counter(group.source for group in complete if not group.dropped)
    assert (found is None) == (kept["a"] < a or kept["b"] < b)
    if found is not None:
        by_id = {group.group_id: group for group in complete}
        taken = Counter(by_id[name].source for name in found.groups if not by_id[name].dropped)
        assert (taken["a"], taken["b"]) == (a, b)
