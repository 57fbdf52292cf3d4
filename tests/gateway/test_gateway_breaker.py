"""When calls are kept away from a replica. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway import breaker as b
from whippletree.gateway.breaker import Breaker, admits, answered, failed, healthy, left, taken

EVENTS = st.lists(st.sampled_from(["fail", "answer", "check", "take", "leave"]), max_size=60)


def after(events: list[str], state: Breaker | None = None) -> Breaker:
    """The breaker after these events, one second apart."""
    state = state or Breaker()
    for now, event in enumerate(events):
        match event:
            case "fail":
                state = failed(state, float(now))
            case "answer":
                state = answered(state)
            case "check":
                state = healthy(state)
            case "take":
                state = taken(state)
            case "leave":
                state = left(state)
    return state


@given(EVENTS)
def test_an_answer_closes_it_from_any_state_and_a_failure_never_does(events: list[str]) -> None:
    state = after(events)
    closed = answered(state)
    assert closed.fine
    assert admits(closed, 0.0)
    again = failed(state, 100.0)
    assert not again.fine
    assert not admits(again, 100.0)
    assert again.state == "closed" or not admits(again, 1e9)


@given(EVENTS)
def test_while_open_or_under_trial_nothing_is_admitted_however_late_it_is(events: list[str]) -> None:
    state = after(events)
    expected = state.state == "closed" or (state.state == "half_open" and not state.trial)
    assert admits(state, 1e9) is expected
    assert len(state.outcomes) <= b.REMEMBERED


def test_it_opens_after_failures_in_a_row_and_lets_one_trial_through_once_a_check_passes() -> None:
    state = after(["fail"] * (b.OPEN_AFTER - 1))
    assert state.state == "closed"
    state = failed(state, 10.0)
    assert (state.state, state.until) == ("open", 10.0 + b.FIRST_TRIAL_DELAY)
    state = healthy(state)
    assert admits(state, 10.0)
    trial = taken(state)
    assert not admits(trial, 1e9)
    assert admits(left(trial), 10.0)  # it was cancelled: another may try
    assert failed(trial, 20.0).until == 20.0 + 2 * b.FIRST_TRIAL_DELAY
    assert answered(trial).fine


def test_it_opens_when_half_of_the_last_calls_failed_though_never_in_a_row() -> None:
    assert after(["answer", "fail"] * 4).state == "closed"  # too few to tell
    assert after(["answer", "fail"] * 5).state == "open"
    assert after(["answer", "answer", "fail"] * 10).state == "closed"


def test_what_the_engine_asked_for_counts_where_it_is_longer() -> None:
    assert failed(Breaker(), 10.0, retry_after=7.0).until == 17.0
    assert failed(Breaker(), 10.0, retry_after=0.001).until == 10.0 + b.FIRST_DELAY
    assert failed(after(["fail"] * 5), 10.0, retry_after=7.0).until == 17.0


def test_delays_grow_and_are_bounded() -> None:
    for delay, first, longest in (
        (b.retry_delay, b.FIRST_DELAY, b.LONGEST_DELAY),
        (b.trial_delay, b.FIRST_TRIAL_DELAY, b.LONGEST_TRIAL_DELAY),
    ):
        delays = [delay(count) for count in range(1, 2000)]
        assert delays == sorted(delays)
        assert (delays[0], delays[-1]) == (first, longest)
        assert delays[0] < delays[1]
