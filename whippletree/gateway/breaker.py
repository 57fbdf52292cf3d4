"""A replica's circuit breaker: a pure state machine over plain values.

    closed ──failures in a row, or too many of the last──► open ──a health check passes──► half-open ──a trial call──► closed
       ▲                                                    ▲                                              │ fails
       └────────────────── an answer ───────────────────────┴──────────────── later ◄──────────────────────┘

Closed: every failure keeps calls away for a moment, longer with each in a row, at most a second. Open: no call at all.
Half-open: one call at a time, until one is answered. Times are seconds of a monotonic clock.

Invariants (tests/gateway/test_gateway_breaker.py):
- while it is open, or half-open with a trial under way, no call is admitted; otherwise it is, once `until` has passed;
- an answer closes it from any state; a failure never does;
- delays grow with failures in a row and are bounded, except where the engine itself asked for more.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from whippletree.types import Struct

FIRST_DELAY = 0.05
LONGEST_DELAY = 1.0
FIRST_TRIAL_DELAY = 0.25
LONGEST_TRIAL_DELAY = 10.0
OPEN_AFTER = 5  # failures in a row
REMEMBERED = 20  # outcomes
LEAST_OUTCOMES = 10  # before the rate counts
OPEN_RATE = 0.5


class Breaker(Struct):
    """`failures`: in a row. `outcomes`: the last ones, true where the call was answered. `openings`: without closing between.

    Example: Breaker(state="closed", failures=1, outcomes=(True, False), until=12.3)
    """

    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    outcomes: tuple[bool, ...] = ()
    openings: int = 0
    until: float = 0.0
    trial: bool = False

    @property
    def open(self) -> bool:
        """Whether calls are kept away, however late it is."""
        return self.state == "open" or (self.state == "half_open" and self.trial)

    @property
    def fine(self) -> bool:
        """Whether nothing is held against the replica."""
        return self.state == "closed" and not self.failures


def retry_delay(failures: int) -> float:
    """Seconds that a replica is left alone after so many failures in a row (1 or more)."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 20))


def trial_delay(openings: int) -> float:
    """Seconds between health checks of a breaker that has opened so often without closing (1 or more)."""
    return min(LONGEST_TRIAL_DELAY, FIRST_TRIAL_DELAY * 2.0 ** min(openings - 1, 20))


def admits(breaker: Breaker, now: float) -> bool:
    """Whether a call may go to the replica."""
    return not breaker.open and breaker.until <= now


def taken(breaker: Breaker) -> Breaker:
    """A call goes to the replica: a trial, where the breaker is half-open."""
    return replace(breaker, trial=True) if breaker.state == "half_open" else breaker


def left(breaker: Breaker) -> Breaker:
    """A call ended without a verdict (it was cancelled): another may be the trial."""
    return replace(breaker, trial=False) if breaker.trial else breaker


def answered(breaker: Breaker) -> Breaker:
    """The replica answered a call."""
    return Breaker(outcomes=_with(breaker, True))


def failed(breaker: Breaker, now: float, retry_after: float = 0.0) -> Breaker:
    """A call failed for the replica's sake; `retry_after`: seconds that the engine asked to be left alone."""
    failures = breaker.failures + 1
    outcomes = _with(breaker, False)
    if breaker.state == "open":  # calls that were under way when it opened
        return replace(breaker, failures=failures, outcomes=outcomes, until=max(breaker.until, now + retry_after))
    often = len(outcomes) >= LEAST_OUTCOMES and outcomes.count(False) >= OPEN_RATE * len(outcomes)
    if breaker.state == "half_open" or failures >= OPEN_AFTER or often:
        openings = breaker.openings + 1
        until = now + max(trial_delay(openings), retry_after)
        return Breaker(state="open", failures=failures, outcomes=outcomes, openings=openings, until=until)
    return replace(breaker, failures=failures, outcomes=outcomes, until=now + max(retry_delay(failures), retry_after))


def healthy(breaker: Breaker) -> Breaker:
    """A health check passed: one call may try."""
    return replace(breaker, state="half_open", trial=False, until=0.0) if breaker.state == "open" else breaker


def _with(breaker: Breaker, outcome: bool) -> tuple[bool, ...]:
    return (*breaker.outcomes[1 - REMEMBERED :], outcome)
