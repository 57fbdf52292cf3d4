"""From what the tests wrote to scores, and from the scores of steps to those of a task."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.tasks.reward import RewardExpression
from whippletree.tasks.scores import (
    REWARD_LIMIT,
    ScoreError,
    goes_on,
    rewarded,
    rewards_of_calls,
    scores_of_json,
    scores_of_text,
    settled,
    step_result,
    total,
)
from whippletree.tasks.task import Judging, Place, Step, Task
from whippletree.types import CallReward, Cause, CauseClass, RubricScore, VerifierResult


def step(name: str, **least: float) -> Step:
    return Step(name=name, instruction="x", judging=Judging(tests=("/t",)), min_scores=least)


def task(*steps: Step, strategy: str = "mean") -> Task:
    return Task(task_id="t", path="/t", place=Place(workdir="/app"), steps=steps or (step(""),), strategy=strategy)


def judged(**scores: float) -> VerifierResult:
    return VerifierResult(reward=None, scores=scores)


BROKEN = VerifierResult(reward=None, cause=Cause(cause=CauseClass.VERIFIER, phase="verify", message="crashed"))
THREE = (step("a"), step("b"), step("c"))


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_finite_number_is_a_score(value: float) -> None:
    assert scores_of_text(f" {value!r}\n".encode(), "f") == {"reward": value}
    assert scores_of_json(json.dumps({"a": value}).encode(), "f") == {"a": value}


@given(data=st.binary(max_size=60))
def test_any_bytes_are_scores_that_are_finite_or_a_problem_in_words(data: bytes) -> None:
    for read in (scores_of_text, scores_of_json):
        try:
            scores = read(data, "reward")
        except ScoreError as error:
            assert "reward" in str(error)
        else:
            assert scores and all(math.isfinite(value) for value in scores.values())


@pytest.mark.parametrize("data", [b"1" + b" " * REWARD_LIMIT, b"nan", b"inf", b"", b"0x1", "１".encode()])
def test_no_score_of_text(data: bytes) -> None:
    with pytest.raises(ScoreError):
        scores_of_text(data, "reward.txt")


@pytest.mark.parametrize(
    "data", [b"{}", b"[1]", b'{"a": true}', b'{"a": 1e999}', b'{"a": "1"}', b"[" * 9_999, b'{"a": 1' + b"0" * 400 + b"}"]
)
def test_no_scores_of_json(data: bytes) -> None:
    with pytest.raises(ScoreError):
        scores_of_json(data, "reward.json")


def test_the_expression_is_recorded_with_the_value() -> None:
    result = rewarded(judged(correct=1.0, style=0.5), RewardExpression("0.8 * correct + 0.2 * style"))
    assert (result.reward, result.expression, result.cause) == (0.9, "0.8 * correct + 0.2 * style", None)
    assert rewarded(judged(reward=1.0), None).expression == ""


@pytest.mark.parametrize(
    ("rule", "kind", "says"),
    [
        ("corect", CauseClass.CONFIGURATION, "corect"),
        ("1 / (correct - 1)", CauseClass.VERIFIER, "division"),
        (None, CauseClass.VERIFIER, "correct, style"),
    ],
)
def test_a_rule_that_gives_no_number_is_a_failure_with_its_scores(rule: str | None, kind: CauseClass, says: str) -> None:
    result = rewarded(judged(correct=1.0, style=0.5), RewardExpression(rule) if rule else None)
    assert result.reward is None and result.scores
    assert result.cause is not None and result.cause.cause is kind
    assert result.cause.phase == "verify" and says in result.cause.message and result.cause.next_step


def test_the_mean_is_over_all_steps_and_what_is_missing_counts_nothing() -> None:
    results = [judged(reward=1.0), judged(reward=0.5, style=0.75), judged(reward=0.0)]
    whole = total(task(*THREE), results, None)
    assert (whole.scores, whole.reward) == ({"reward": 0.5, "style": 0.25}, 0.5)
    assert total(task(*THREE), results[:2], None).scores == {"reward": 0.5, "style": 0.25}


def test_the_final_step_counts_alone_and_nothing_where_it_was_not_reached() -> None:
    results = [judged(reward=0.0), judged(reward=0.0), judged(reward=0.75)]
    assert total(task(*THREE, strategy="final"), results, None).reward == 0.75
    assert total(task(*THREE, strategy="final"), [judged(reward=1.0)], None).reward == 0.0


def test_a_step_whose_verifier_failed_leaves_the_task_without_a_reward() -> None:
    for strategy in ("mean", "final"):
        whole = total(task(*THREE, strategy=strategy), [judged(reward=1.0), BROKEN], None)
        assert whole.reward is None and whole.cause == BROKEN.cause


def test_tampering_in_any_step_stays_visible() -> None:
    first = VerifierResult(reward=None, scores={"reward": 1.0}, tampering=("/tests was there already",))
    assert total(task(*THREE), [first, judged(reward=1.0)], None).tampering == first.tampering


def test_a_task_without_steps_is_its_only_step() -> None:
    assert total(task(), [judged(correct=1.0)], None).reward == 1.0


def test_least_scores_are_reached_only_by_scores_that_are_there() -> None:
    assert goes_on(step("a"), judged(style=0.0))
    assert goes_on(step("a", reward=0.5), judged(reward=0.5))
    assert not goes_on(step("a", reward=0.5), judged(reward=0.4))
    assert not goes_on(step("a", reward=0.5), judged(style=1.0))
    assert not goes_on(step("a", reward=0.5, style=0.5), judged(reward=1.0, style=0.0))


def test_the_record_of_a_step() -> None:
    timeout = Cause(cause=CauseClass.AGENT_TIMEOUT, phase="agent", message="stopped")
    record = step_result(step("a"), judged(reward=0.0), exit_status="deadline", cut_short=timeout)
    assert (record.name, record.reward, record.exit_status, record.cause) == ("a", 0.0, "deadline", timeout)
    assert step_result(step("a"), judged(x=1.0, y=0.0)).reward is None
    assert step_result(step("a"), BROKEN, cut_short=timeout).cause == BROKEN.cause


def test_rewards_of_single_calls_are_read_by_number() -> None:
    found = rewards_of_calls(b'{"turns": {"2": 0.5, "0": -1}, "calls": {"10": 0.25}}', "call_rewards.json")
    assert found == (
        CallReward(of="call", number=10, reward=0.25),
        CallReward(of="turn", number=0, reward=-1.0),
        CallReward(of="turn", number=2, reward=0.5),
    )
    assert rewards_of_calls(b"{}", "call_rewards.json") == ()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"turn": {"0": 1}}', b'{"turns": {"-1": 1}}', b'{"turns": {"0": "1"}}', b'{"turns": {"0": null}}',
     b'{"turns": {"0": 1e999}}', b'{"turns": {"0": 1, "00": 2}}', b'{"turns": {"1.0": 1}}', b'{"calls": {"99999999999": 1}}',
     b'{"turns": {"\xc2\xb2": 1}}', b" " * 70_000],
)  # fmt: skip
def test_what_is_no_reward_of_a_call_is_a_problem_in_words(data: bytes) -> None:
    with pytest.raises(ScoreError, match=r"call_rewards\.json"):
        rewards_of_calls(data, "call_rewards.json")


def test_rewards_of_calls_of_all_steps_stay_and_a_later_step_corrects_an_earlier() -> None:
    first, second = (CallReward(of="turn", number=0, reward=reward) for reward in (0.1, 0.2))
    third = CallReward(of="turn", number=1, reward=0.3)
    results = [
        msgspec.structs.replace(judged(reward=1.0), call_rewards=(first,)),
        msgspec.structs.replace(judged(reward=1.0), call_rewards=(second, third)),
        judged(reward=1.0),
    ]
    assert total(task(*THREE), results, None).call_rewards == (second, third)


STYLE = RubricScore(name="style", score=0.5)
MUTE = RubricScore(name="style", problem="the judge is silent")


def test_a_reward_waits_for_its_rubrics_and_comes_with_them() -> None:
    waits = total(task(), [judged(correct=1.0)], RewardExpression("0.8 * correct + 0.2 * style"), ("style",))
    assert (waits.reward, waits.cause, waits.pending) == (None, None, ("style",))
    done = settled(waits, (STYLE,))
    assert (done.reward, done.scores, done.pending, done.rubrics) == (0.9, {"correct": 1.0, "style": 0.5}, (), (STYLE,))
    assert done.expression == "0.8 * correct + 0.2 * style"


def test_a_rubric_that_gave_no_score_is_a_cause_where_it_is_needed_and_never_a_zero() -> None:
    needs = settled(total(task(), [judged(correct=1.0)], RewardExpression("correct * style"), ("style",)), (MUTE,))
    assert (needs.reward, needs.cause and needs.cause.cause) == (None, CauseClass.RUBRIC)
    assert needs.cause is not None and needs.cause.message == "style: the judge is silent"
    other = settled(total(task(), [judged(correct=1.0)], RewardExpression("correct"), ("style",)), (MUTE,))
    assert (other.reward, other.cause, other.rubrics) == (1.0, None, (MUTE,))


def test_without_a_rule_a_rubric_only_counts_where_it_is_called_reward() -> None:
    seen = settled(total(task(), [judged(correct=0.25)], None, ("style",)), (STYLE,))
    assert (seen.reward, seen.scores) == (0.25, {"correct": 0.25, "style": 0.5})
    own = msgspec.structs.replace(STYLE, name="reward")
    assert settled(total(task(), [judged(correct=0.25)], None, ("reward",)), (own,)).reward == 0.5
    silent = settled(total(task(), [judged(correct=0.25)], None, ("reward",)), (msgspec.structs.replace(MUTE, name="reward"),))
    assert silent.cause is not None and silent.cause.cause is CauseClass.RUBRIC


def test_what_can_come_to_no_reward_is_refused_before_anybody_is_asked() -> None:
    taken = total(task(), [judged(style=1.0)], None, ("style",))
    assert taken.cause is not None and "a rubric has that name too" in taken.cause.message
    unknown = total(task(), [judged(correct=1.0)], RewardExpression("correct + stile"), ("style",))
    assert unknown.cause is not None and unknown.cause.next_step == "did you mean style?"
    several = total(task(), [judged(a=1.0, b=1.0)], None, ("style",))
    assert several.cause is not None and several.cause.cause is CauseClass.CONFIGURATION
    assert {result.pending for result in (taken, unknown, several)} == {()}
    assert total(task(), [BROKEN], None, ("style",)).cause == BROKEN.cause
