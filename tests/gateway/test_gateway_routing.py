"""Which replica a call goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import ConfigurationError
from whippletree.gateway.routing import StickyRouter, load_router
from whippletree.protocols import ReplicaView, RoutedCall, Router

REPLICAS = st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10), st.booleans()), max_size=5)


def views(states: Sequence[tuple[int, float, bool]]) -> list[ReplicaView]:
    return [ReplicaView(place=n, in_flight=a, down_until=b, open=c) for n, (a, b, c) in enumerate(states)]


@given(REPLICAS, st.integers(-1, 5), st.floats(0, 10), st.sampled_from(["", "r1", "r2"]))
def test_a_replica_that_is_down_or_open_is_never_chosen_and_one_that_is_up_always_found(
    states: list[tuple[int, float, bool]], preferred: int, now: float, rollout: str
) -> None:
    up = [view for view in views(states) if view.open and view.down_until <= now]
    chosen = StickyRouter().choose(views(states), RoutedCall(rollout_id=rollout, preferred=preferred), now)
    if not up:
        assert chosen is None
    elif any(view.place == preferred for view in up):
        assert chosen == preferred
    else:
        assert next(view for view in up if view.place == chosen).in_flight == min(view.in_flight for view in up)


def test_workers_that_do_not_see_each_other_agree_on_a_rollouts_replica_and_spread_rollouts() -> None:
    idle = views([(0, 0.0, True)] * 4)
    first = [StickyRouter().choose(idle, RoutedCall(rollout_id=f"s1-m{n}"), 1.0) for n in range(400)]
    assert first == [StickyRouter().choose(idle, RoutedCall(rollout_id=f"s1-m{n}"), 1.0) for n in range(400)]
    assert min(Counter(first).values()) > 60


def test_a_router_is_named_by_module_and_name_and_a_wrong_one_is_refused() -> None:
    assert isinstance(load_router(""), StickyRouter)
    assert isinstance(load_router("whippletree.gateway.routing:StickyRouter"), Router)
    for wrong in ("nowhere:Last", "whippletree.gateway.routing:Nothing", "Last", "collections:OrderedDict", ":"):
        with pytest.raises(ConfigurationError, match=r"gateway\.router"):
            load_router(wrong)
