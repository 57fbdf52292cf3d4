"""Attempts that one worker begins and another finishes, on each database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from whippletree.errors import FencedError
from whippletree.protocols import AttemptOutcome
from whippletree.store import RecordStore
from whippletree.types import Attempt, RubricScore, VerifierResult

Running = Callable[..., list[Attempt]]


def waiting(attempt: Attempt) -> Attempt:
    result = VerifierResult(reward=None, scores={"correct": 1.0}, pending=("style",), expression="correct * style")
    return msgspec.structs.replace(attempt, result=result, exit_status="Submitted", finished=2.0)


def test_it_runs_on_sealed_under_its_new_owner_with_all_that_is_known(store: RecordStore, running: Running, make: Any) -> None:
    first, second = running("a", "b", worker="local/1")
    before = store.rollout("a").updated
    assert store.hand_over(waiting(first), "rubrics").result()
    (held,) = store.held_by("rubrics")
    assert held == msgspec.structs.replace(waiting(first), worker="rubrics", sealed=True)
    assert (store.rollout("a").state, store.rollout("a").attempt) == ("running", 1)
    assert store.rollout("a").updated >= before
    with pytest.raises(FencedError):
        store.record_call(make.call(rollout_id="a"), make.payload()).result()
    assert [attempt.rollout_id for attempt in store.release_worker("local/").result()] == ["b"]  # "a" is not its any more
    assert store.held_by("local/1") == []
    assert second.rollout_id == "b"


def test_its_new_owner_finishes_it(store: RecordStore, running: Running) -> None:
    (first,) = running("a")
    store.hand_over(waiting(first), "rubrics").result()
    (held,) = store.held_by("rubrics")
    score = RubricScore(name="style", score=0.5)
    result = VerifierResult(reward=0.5, scores={"correct": 1.0, "style": 0.5}, rubrics=(score,))
    assert store.finish(AttemptOutcome(attempt=msgspec.structs.replace(held, result=result))).result()
    assert (store.rollout("a").state, store.rollout("a").reward) == ("succeeded", 0.5)
    assert store.attempts("a")[0].result == result and store.held_by("rubrics") == []


def test_one_that_is_over_or_of_an_older_number_is_fenced_off(store: RecordStore, running: Running, make: Any) -> None:
    first, second = running("a", "b")
    store.finish(AttemptOutcome(attempt=make.rewarded("a"))).result()
    store.release_worker("w").result()
    for attempt in (first, second):
        assert not store.hand_over(waiting(attempt), "rubrics").result()
    assert store.held_by("rubrics") == []
    assert store.attempts("a")[0].result == VerifierResult(reward=1.0)


def test_a_lease_is_over_with_it(store: RecordStore, make: Any) -> None:
    store.create_rollouts([make.spec("a", task_path="")]).result()
    attempt = store.begin("a", "node", 0.001).result()
    assert store.hand_over(waiting(attempt), "rubrics").result()
    assert store.end_lapsed() == [] and len(store.held_by("rubrics")) == 1
