"""What the tests wrote, as named scores; and what a task's scores are, given those of its steps. Pure.

Invariants (tests/tasks/test_scores.py):
- scores are finite numbers with names, at least one; anything else is a problem in words, never a number; so are rewards of
  single calls, each of which is named once;
- a step whose verifier failed makes the task's result a failure: no mean is taken over what is missing;
- a reward that waits for rubrics is None until they have said what they will; one that gave no score is a failure where the
  reward needs it, never a 0;
- a step's least scores are reached only by scores that are there; a step that was not reached counts as 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec

from whippletree.errors import ConfigurationError, VerifierError
from whippletree.tasks.reward import RewardExpression, reward_of
from whippletree.tasks.task import Step, Task
from whippletree.types import CallReward, Cause, CauseClass, RubricScore, StepResult, VerifierResult

REWARD_LIMIT = 65_536  # bytes of a reward file
MOST_CALLS = 1_000_000  # a call's number is below


class ScoreError(ValueError):
    """What the tests wrote is no score; the text says why."""


def scores_of_text(data: bytes, name: str) -> dict[str, float]:
    """The score of reward.txt: one number. Raises ScoreError."""
    _check_size(data, name)
    try:
        value = float(data.decode("ascii").strip())
    except ValueError as error:
        raise ScoreError(f"{name} holds {data[:80]!r}, which is no number") from error
    return _finite({"reward": value}, name)


def scores_of_json(data: bytes, name: str) -> dict[str, float]:
    """The scores of reward.json: an object of numbers. Raises ScoreError."""
    _check_size(data, name)
    try:
        scores = json.loads(data)
    except (ValueError, RecursionError):
        scores = None
    if not isinstance(scores, dict) or not scores or any(type(value) not in (int, float) for value in scores.values()):
        raise ScoreError(f'{name} holds {data[:80]!r}, which is not of the form {{"name": number, ...}}')
    try:
        return _finite({key: float(value) for key, value in scores.items()}, name)
    except OverflowError as error:
        raise ScoreError(f"{name} holds a number that is too large") from error


def rewards_of_calls(data: bytes, name: str) -> tuple[CallReward, ...]:
    """Rewards of single calls: {"turns": {"0": 0.1}}, {"calls": {...}} or both, by number from 0. Raises ScoreError."""
    _check_size(data, name)
    wrong = f'{name} holds {data[:80]!r}, which is not of the form {{"turns": {{"0": number, ...}}}}'
    try:
        told = msgspec.json.decode(data, type=_CallRewards)
        found = [CallReward(of="turn", number=_number(key), reward=value) for key, value in told.turns.items()]
        found += [CallReward(of="call", number=_number(key), reward=value) for key, value in told.calls.items()]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ScoreError(wrong) from error
    if len({(one.of, one.number) for one in found}) < len(found):
        raise ScoreError(f"{name} names a call twice")
    _finite({f"{one.of} {one.number}": one.reward for one in found}, name)
    return tuple(sorted(found, key=lambda one: (one.of, one.number)))


class _CallRewards(msgspec.Struct, forbid_unknown_fields=True):
    """What is in the file of rewards of single calls."""

    turns: dict[str, float] = {}
    calls: dict[str, float] = {}


def _number(text: str) -> int:
    """Raises ValueError where a text is no number of a call."""
    if not (text.isascii() and text.isdecimal() and int(text[:9]) < MOST_CALLS and len(text) < 9):
        raise ValueError(f"{text[:20]!r} is no number of a call")
    return int(text)


def _check_size(data: bytes, name: str) -> None:
    if len(data) > REWARD_LIMIT:
        raise ScoreError(f"{name} is larger than {REWARD_LIMIT} bytes")


def _finite(scores: dict[str, float], name: str) -> dict[str, float]:
    odd = [f"{key} = {value}" for key, value in scores.items() if not math.isfinite(value)]
    if odd:
        raise ScoreError(f"{name}: {', '.join(odd)} is not finite")
    return scores


def rewarded(result: VerifierResult, rule: RewardExpression | None) -> VerifierResult:
    """A result that has scores, with its reward by the rule; a failure where the rule gives none."""
    try:
        reward = reward_of(result.scores, rule)
    except (ConfigurationError, VerifierError) as error:
        kind = CauseClass.CONFIGURATION if isinstance(error, ConfigurationError) else CauseClass.VERIFIER
        cause = Cause(cause=kind, phase="verify", message=error.cause, next_step=error.next_step)
        return msgspec.structs.replace(result, cause=cause)
    return msgspec.structs.replace(result, reward=reward, expression=rule.text if rule else "")


def step_result(step: Step, judged: VerifierResult, *, exit_status: str = "", cut_short: Cause | None = None) -> StepResult:
    """The record of one step. `judged` has scores or a cause."""
    plain = judged.scores.get("reward", next(iter(judged.scores.values())) if len(judged.scores) == 1 else None)
    return StepResult(
        name=step.name,
        reward=None if judged.cause else plain,
        scores=judged.scores,
        exit_status=exit_status,
        cause=judged.cause or cut_short,
    )


def goes_on(step: Step, judged: VerifierResult) -> bool:
    """Whether the scores of a step let the next one run."""
    return all(judged.scores.get(name, -math.inf) >= least for name, least in step.min_scores.items())


def awaiting(result: VerifierResult, rule: RewardExpression | None, later: Sequence[str]) -> VerifierResult:
    """A result that has scores and waits for those named `later`; a failure where no reward can come of them."""
    taken = sorted(result.scores.keys() & set(later))
    if taken:
        told = f"the tests gave a score {taken[0]!r}, and a rubric has that name too"
        return _misconfigured(result, told, "give the rubric another name")
    try:
        if rule is not None:
            rule.check([*result.scores, *later])
        else:
            reward_of({**result.scores, "reward": 0.0} if "reward" in later else result.scores, None)
    except (ConfigurationError, VerifierError) as error:
        return _misconfigured(result, error.cause, error.next_step)
    return msgspec.structs.replace(result, pending=tuple(later), expression=rule.text if rule else "")


def settled(result: VerifierResult, given: Sequence[RubricScore]) -> VerifierResult:
    """What was awaiting, with what its rubrics gave; a failure where the reward needs a score that one did not give."""
    rule = RewardExpression(result.expression) if result.expression else None
    found = {one.name: one.score for one in given if one.score is not None}
    needed = rule.names if rule is not None else {"reward"}
    whole = msgspec.structs.replace(result, scores={**result.scores, **found}, pending=(), rubrics=tuple(given))
    missing = [one for one in given if one.score is None and one.name in needed]
    if missing:
        told = "; ".join(f"{one.name}: {one.problem}" for one in missing)
        step = "read the rubric events of the rollout; mend the judge or its settings"
        return msgspec.structs.replace(
            whole, cause=Cause(cause=CauseClass.RUBRIC, phase="rubric", message=told, next_step=step)
        )
    if rule is None and "reward" not in found:  # what rubrics said is on record, and counts for nothing
        alone = rewarded(result, None)
        return msgspec.structs.replace(whole, reward=alone.reward, cause=alone.cause)
    return rewarded(whole, rule)


def _misconfigured(result: VerifierResult, message: str, next_step: str) -> VerifierResult:
    cause = Cause(cause=CauseClass.CONFIGURATION, phase="verify", message=message, next_step=next_step)
    return msgspec.structs.replace(result, cause=cause)


def total(
    task: Task, judged: Sequence[VerifierResult], rule: RewardExpression | None, later: Sequence[str] = ()
) -> VerifierResult:
    """A task's result from those of the steps that were run, in order; each has scores, but the last may have a cause.

    Rewards of single calls are those of all steps. "mean": for each name the mean over all of the task's steps. "final":
    the last step's. A missing score, and every score of a step that was not reached, counts 0: an agent gains nothing by
    not reaching it. `later`: scores that rubrics give afterwards, for which the reward waits.
    """
    last = judged[-1]
    tampering = tuple(dict.fromkeys(found for result in judged for found in result.tampering))
    calls = {(one.of, one.number): one for result in judged for one in result.call_rewards}
    whole = msgspec.structs.replace(last, tampering=tampering, call_rewards=tuple(calls[key] for key in sorted(calls)))
    if last.cause is not None:
        return whole
    several = len(task.steps)
    if task.strategy == "mean" and several > 1:
        names = dict.fromkeys(name for result in judged for name in result.scores)
        scores = {name: sum(result.scores.get(name, 0.0) for result in judged) / several for name in names}
        whole = msgspec.structs.replace(whole, scores=scores)
    elif len(judged) < several:
        whole = msgspec.structs.replace(whole, scores=dict.fromkeys(last.scores, 0.0))
    return awaiting(whole, rule, later) if later else rewarded(whole, rule)
