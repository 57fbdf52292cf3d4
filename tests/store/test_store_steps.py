from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whippletree.errors import ConflictError, StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.store import RecordStore, open_store
from whippletree.types import StepRecord


@pytest.fixture
def finished(store: RecordStore, make: Any) -> RecordStore:
    """A store with the finished training rollouts a to e, a running one, and a finished one for evaluation."""
    specs = [make.spec(name) for name in ("a", "b", "c", "d", "e", "running")]
    store.create_rollouts([*specs, make.spec("eval", purpose="eval")]).result()
    store.claim("w", 10).result()
    for name in ("a", "b", "c", "d", "e", "eval"):
        store.finish(AttemptOutcome(attempt=make.rewarded(name))).result()
    return store


def plan(step: int, *rollout_ids: str) -> StepRecord:
    return StepRecord(step=step, rollout_ids=rollout_ids, policy_version=step + 1)


def test_plan_then_commit(finished: RecordStore) -> None:
    finished.plan_step(plan(1, "c")).result()
    finished.plan_step(plan(0, "b", "a")).result()
    finished.commit_step(0, "checkpoints/step-0000").result()
    assert finished.steps() == [
        StepRecord(step=0, rollout_ids=("b", "a"), policy_version=1, committed=True, checkpoint="checkpoints/step-0000"),
        plan(1, "c"),
    ]


def test_the_identical_plan_again_is_a_no_op(finished: RecordStore) -> None:
    finished.plan_step(plan(0, "a", "b")).result()
    finished.commit_step(0, "x").result()
    finished.plan_step(plan(0, "a", "b")).result()
    assert finished.steps()[0].committed is True
    for other in (plan(0, "a"), plan(0, "b", "a"), StepRecord(step=0, rollout_ids=("a", "b"), policy_version=9)):
        with pytest.raises(ConflictError, match="step 0 is planned"):
            finished.plan_step(other).result()


def test_a_rollout_belongs_to_one_step(finished: RecordStore) -> None:
    finished.plan_step(plan(0, "a", "b")).result()
    with pytest.raises(ConflictError, match="b already belongs to step 0"):
        finished.plan_step(plan(1, "c", "b")).result()
    with pytest.raises(ConflictError, match="d already belongs to step 2"):
        finished.plan_step(plan(2, "d", "d")).result()
    assert finished.steps() == [plan(0, "a", "b")]  # nothing of a refused plan is left
    finished.plan_step(plan(1, "c")).result()


@pytest.mark.parametrize(("name", "error"), [("running", ConflictError), ("eval", ConflictError), ("nobody", StoreError)])
def test_only_finished_training_rollouts_are_planned(finished: RecordStore, name: str, error: type[StoreError]) -> None:
    with pytest.raises(error, match=name):
        finished.plan_step(plan(0, "a", name)).result()
    assert finished.steps() == []


def test_a_step_is_planned_before_it_is_committed(finished: RecordStore) -> None:
    with pytest.raises(ConflictError, match="never planned"):
        finished.commit_step(3, "x").result()


def test_a_replayed_step_may_name_another_checkpoint(finished: RecordStore) -> None:
    finished.plan_step(plan(0, "a")).result()
    for checkpoint in ("one", "one", "two"):
        finished.commit_step(0, checkpoint).result()
    assert finished.steps()[0].checkpoint == "two"


def test_a_step_may_be_empty(finished: RecordStore) -> None:
    finished.plan_step(plan(0)).result()
    assert finished.steps() == [plan(0)]


def test_steps_outlive_the_process(finished: RecordStore, tmp_path: Path) -> None:
    finished.plan_step(plan(0, "a", "e")).result()
    with open_store(tmp_path / "store") as other:
        assert other.steps() == [plan(0, "a", "e")]
