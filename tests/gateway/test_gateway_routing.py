"""Which replica a call goes to."""

from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.routing import LONGEST_DELAY, ReplicaView, choose, retry_delay

REPLICAS = st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10)), max_size=5)


@given(REPLICAS, st.integers(-1, 5), st.floats(0, 10))
def test_a_replica_that_is_down_is_never_chosen_and_one_that_is_up_always_found(states, preferred, now):
    views = [ReplicaView(place=place, in_flight=busy, down_until=until) for place, (busy, until) in enumerate(states)]
    up = [view for view in views if view.down_until <= now]
    chosen = choose(views, preferred, now)
    if not up:
        assert chosen is None
    elif any(view.place == preferred for view in up):
        assert chosen == preferred
    else:
        assert next(view for view in up if view.place == chosen).in_flight == min(view.in_flight for view in up)


def test_the_delay_grows_and_is_bounded():
    delays = [retry_delay(failures) for failures in range(1, 2000)]
    assert delays == sorted(delays)
    assert delays[0] < delays[1]
    assert delays[-1] == LONGEST_DELAY
