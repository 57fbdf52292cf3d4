from __future__ import annotations

import itertools
import math
from typing import Any, get_args

import pytest

from whippletree.errors import ConflictError, StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.store.transitions import Ending, ending, judge
from whippletree.types import Attempt, Cause, CauseClass, Rollout, RolloutState, VerifierResult

CAUSE = Cause(cause=CauseClass.SANDBOX, phase="boot", message="bwrap exited 1")
STATES: tuple[RolloutState, ...] = get_args(RolloutState)


def outcome(*, result: VerifierResult | None = None, cause: Cause | None = None, requeue: bool = False) -> AttemptOutcome:
    return AttemptOutcome(attempt=Attempt(rollout_id="r", attempt=1, started=0.0, result=result, cause=cause), requeue=requeue)


def rollout(make: Any, state: RolloutState, attempt: int = 2, reward: float = 1.0) -> Rollout:
    return Rollout(
        spec=make.spec(),
        state=state,
        created=1.0,
        updated=1.0,
        attempt=attempt,
        reward=reward if state == "succeeded" else None,
        cause=CAUSE if state == "failed" else None,
    )


@pytest.mark.parametrize(("old", "new"), list(itertools.product(STATES, ["queuing", "succeeded", "failed"])))
def test_every_pair_of_states(make: Any, old: RolloutState, new: RolloutState) -> None:
    wanted = Ending(state=new, reward=1.0 if new == "succeeded" else None, cause=None if new == "succeeded" else CAUSE)
    if old == "queuing":
        assert judge(rollout(make, old), 2, wanted) == "fenced"
    elif old == "running":
        assert judge(rollout(make, old), 2, wanted) == "apply"
    elif old == new:
        assert judge(rollout(make, old), 2, wanted) == "no-op"
    else:
        with pytest.raises(ConflictError, match=f"from {old} to {new}"):
            judge(rollout(make, old), 2, wanted)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_any_other_attempt_is_fenced_off(make: Any, state: RolloutState, attempt: int) -> None:
    assert judge(rollout(make, state), attempt, Ending(state="succeeded", reward=0.0)) == "fenced"


def test_a_verified_reward_does_not_change(make: Any) -> None:
    with pytest.raises(ConflictError, match=r"reward 1\.0, not 0\.0"):
        judge(rollout(make, "succeeded"), 2, Ending(state="succeeded", reward=0.0))


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5])
def test_a_verdict_succeeds_whatever_the_reward(reward: float) -> None:
    assert ending(outcome(result=VerifierResult(reward=reward))) == Ending(state="succeeded", reward=reward)


def test_a_failure_has_no_reward() -> None:
    assert ending(outcome(cause=CAUSE)) == Ending(state="failed", cause=CAUSE)
    assert ending(outcome(cause=CAUSE, requeue=True)) == Ending(state="queuing", cause=CAUSE)


def test_a_failed_verifier_names_its_own_cause() -> None:
    cause = Cause(cause=CauseClass.VERIFIER, phase="verify", message="no reward file")
    assert ending(outcome(result=VerifierResult(reward=None, cause=cause))) == Ending(state="failed", cause=cause)


@pytest.mark.parametrize(
    "bad",
    [
        outcome(),
        outcome(result=VerifierResult(reward=None)),
        outcome(result=VerifierResult(reward=1.0), cause=CAUSE),
        outcome(result=VerifierResult(reward=1.0, cause=CAUSE)),
        outcome(result=VerifierResult(reward=1.0), requeue=True),
        outcome(requeue=True),
        outcome(result=VerifierResult(reward=math.nan)),
        outcome(result=VerifierResult(reward=math.inf)),
        outcome(result=VerifierResult(reward=1.0, scores={"style": math.nan})),
    ],
)
def test_an_outcome_is_one_finite_reward_or_one_cause(bad: AttemptOutcome) -> None:
    with pytest.raises(StoreError, match="the outcome of r attempt 1"):
        ending(bad)
