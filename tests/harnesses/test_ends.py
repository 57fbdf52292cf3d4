"""The ends that adapters share."""

from __future__ import annotations

from whippletree.harnesses.ends import MESSAGE_LIMIT, crashed, last_words, out_of_context, timed_out, turn_too_long
from whippletree.protocols import HarnessResult


def test_a_message_is_the_end_of_an_output() -> None:
    assert last_words("short") == "short"
    assert last_words("a" * MESSAGE_LIMIT + "end") == "a" * (MESSAGE_LIMIT - 3) + "end"


def test_limits_are_no_crash() -> None:
    assert timed_out(3) == HarnessResult("TimedOut", steps=3, message="ended at its time limit", ran_out="time")
    assert out_of_context(2, "too long") == HarnessResult(
        "ContextWindowExceeded", steps=2, message="too long", ran_out="budget"
    )
    assert turn_too_long(2, "cut") == HarnessResult("OutputLimit", steps=2, message="cut", ran_out="budget")
    assert crashed("Exit1", 1, "no") == HarnessResult("Exit1", steps=1, message="no", crashed=True)
