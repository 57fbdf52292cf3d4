"""The rollout's state machine, as pure functions over plain values.

    queuing ──claim──► running ──finish──► succeeded (a reward, from a verifier) | failed (a cause)
       ▲     begin        │
       │                  │ hand_over: still running, sealed, another worker's to finish
       └──────────────────┘ finish(requeue), release_worker, or a lease that ran out (which also ends it as failed)
    queuing, running ──cancel──► failed (cause "cancelled")

Invariants (tests/store/test_store_transitions.py):
- these are the only transitions; any other is a ConflictError; a transition to the same state is a no-op;
- only the attempt that is running now may finish a rollout: any other is fenced off and changes nothing, and so is what the
  last attempt of a cancelled rollout still reports, or one whose lease ran out;
- a reward is finite and comes from a verifier's result; an infrastructure failure has a cause and no reward.
"""

from __future__ import annotations

import math
from typing import Literal

from whippletree.errors import ConflictError, StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.types import Cause, CauseClass, Rollout, RolloutState, Struct, VerifierResult

TRANSITIONS: frozenset[tuple[RolloutState, RolloutState]] = frozenset(
    {
        ("queuing", "running"),
        ("queuing", "failed"),
        ("running", "queuing"),
        ("running", "succeeded"),
        ("running", "failed"),
    }
)


class Ending(Struct):
    """What an attempt's outcome makes of its rollout. Exactly one of `reward` and `cause` is set.

    Example: Ending(state="succeeded", reward=1.0)
    """

    state: RolloutState
    reward: float | None = None
    cause: Cause | None = None


def ending(outcome: AttemptOutcome) -> Ending:
    """The state that an outcome asks for. Raises StoreError when it is not exactly one of a reward and a cause."""
    attempt = outcome.attempt
    result = attempt.result or VerifierResult(reward=None)
    name = f"the outcome of {attempt.rollout_id} attempt {attempt.attempt}"
    values = [*result.scores.values(), *([] if result.reward is None else [result.reward])]
    if not all(math.isfinite(value) for value in values):
        raise StoreError(f"{name} has a reward or score that is not finite", "report a verifier failure instead")
    cause = attempt.cause or result.cause
    if (result.reward is None) == (cause is None):
        both = "neither a reward nor a cause" if cause is None else "both a reward and a cause"
        raise StoreError(f"{name} has {both}", "give a verifier's reward, or the cause of the failure")
    if not outcome.requeue:
        return Ending(state="failed" if cause else "succeeded", reward=result.reward, cause=cause)
    if cause is None:
        raise StoreError(f"{name} has a reward and asks for another try", "finish it, or give the cause of the failure")
    return Ending(state="queuing", cause=cause)


def cancelled(rollout: Rollout) -> bool:
    """True where somebody has called it off."""
    return rollout.state == "failed" and rollout.cause is not None and rollout.cause.cause is CauseClass.CANCELLED


LEASE = "lease"  # in causes: the phase of an attempt that ended because nobody renewed its lease


def ran_out(cause: Cause | None) -> bool:
    """True for the cause of an attempt whose lease ran out."""
    return cause is not None and cause.cause is CauseClass.HOST_LOST and cause.phase == LEASE


def judge(rollout: Rollout, attempt: int, wanted: Ending) -> Literal["apply", "no-op", "fenced"]:
    """What to do with attempt number `attempt`'s report on this rollout. Raises ConflictError."""
    if attempt != rollout.attempt or rollout.state == "queuing" or cancelled(rollout) or ran_out(rollout.cause):
        return "fenced"
    name = f"rollout {rollout.spec.rollout_id}"
    if rollout.terminal and rollout.state == wanted.state:
        if rollout.reward == wanted.reward:
            return "no-op"
        raise ConflictError(
            f"{name} has reward {rollout.reward}, not {wanted.reward}",
            "a verified reward does not change; create another rollout",
        )
    if (rollout.state, wanted.state) not in TRANSITIONS:
        raise ConflictError(f"{name} cannot go from {rollout.state} to {wanted.state}", "a finished rollout stays as it is")
    return "apply"
