from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whippletree.errors import ConflictError, StoreError
from whippletree.protocols import AttemptOutcome, Store
from whippletree.store import RecordStore
from whippletree.types import Attempt, Cause, CauseClass, Event, Phase, VerifierResult

CAUSE = Cause(cause=CauseClass.SANDBOX, phase="boot", message="bwrap exited 1")
Running = Callable[..., list[Attempt]]
Opened = Callable[..., RecordStore]


def failed(attempt: Attempt, requeue: bool = False) -> AttemptOutcome:
    report = Attempt(rollout_id=attempt.rollout_id, attempt=attempt.attempt, started=0.0, cause=CAUSE)
    return AttemptOutcome(attempt=report, requeue=requeue)


def ids(rollouts: list[Any]) -> list[str]:
    return [rollout.spec.rollout_id for rollout in rollouts]


def test_it_is_a_store(store: RecordStore) -> None:
    assert isinstance(store, Store)


def test_creation_is_idempotent_and_specs_do_not_change(store: RecordStore, make: Any) -> None:
    store.create_rollouts([make.spec("a"), make.spec("b")]).result()
    store.create_rollouts([make.spec("b"), make.spec("c")]).result()
    assert ids(store.rollouts()) == ["a", "b", "c"]
    with pytest.raises(ConflictError, match="another spec"):
        store.create_rollouts([make.spec("d"), make.spec("a", harness="other")]).result()
    assert ids(store.rollouts()) == ["a", "b", "c"]  # all or none
    assert store.rollout("a").spec == make.spec("a")


def test_an_unknown_rollout_is_an_error(store: RecordStore) -> None:
    with pytest.raises(StoreError, match="no rollout 'x'"):
        store.rollout("x")
    with pytest.raises(StoreError, match="no rollout 'x'"):
        store.seal("x", 1).result()


def test_odd_ids_are_plain_values(store: RecordStore, make: Any) -> None:
    odd = "a'; DROP TABLE rollouts; --\u2028/../é"
    store.create_rollouts([make.spec(odd, group_id=odd)]).result()
    assert ids(store.rollouts(group_id=odd)) == [odd]


def test_filters_are_combined(store: RecordStore, make: Any) -> None:
    store.create_rollouts(
        [
            make.spec(f"{purpose}-{step}", purpose=purpose, step=step, group_id=f"g{step}")
            for step in (1, 2)
            for purpose in ("train", "eval")
        ]
    ).result()
    store.claim("w", 1).result()
    assert ids(store.rollouts(purpose="eval")) == ["eval-1", "eval-2"]
    assert ids(store.rollouts(states=["running"])) == ["eval-1"]
    assert ids(store.rollouts(states=["queuing", "running"], step=1)) == ["train-1", "eval-1"]
    assert ids(store.rollouts(group_id="g2", purpose="train")) == ["train-2"]
    assert ids(store.rollouts(step=0)) == []
    assert ids(store.rollouts(limit=3)) == ["train-1", "eval-1", "train-2"]


def test_a_reader_that_polls_by_update_time_misses_nothing(store: RecordStore, running: Running) -> None:
    names = [f"r{number}" for number in range(30)]
    attempts = running(*names)
    since = max(rollout.updated for rollout in store.rollouts())
    seen: list[str] = []
    workers = [
        threading.Thread(target=lambda a=a: store.finish(AttemptOutcome(attempt=_rewarded(a))).result()) for a in attempts
    ]
    for worker in workers:
        worker.start()
    while len(seen) < len(names) and (any(worker.is_alive() for worker in workers) or store.rollouts(updated_after=since)):
        for rollout in store.rollouts(updated_after=since):
            seen.append(rollout.spec.rollout_id)
            since = max(since, rollout.updated)
    assert sorted(seen) == sorted(names)


def _rewarded(attempt: Attempt) -> Attempt:
    return Attempt(rollout_id=attempt.rollout_id, attempt=attempt.attempt, started=0.0, result=VerifierResult(reward=0.5))


def test_claim_takes_eval_first_then_the_oldest(store: RecordStore, make: Any) -> None:
    store.create_rollouts([make.spec("t1"), make.spec("t2"), make.spec("e1", purpose="eval"), make.spec("t3")]).result()
    first = store.claim("w-1", 2).result()
    assert [(a.rollout_id, a.attempt, a.worker, a.sealed) for a in first] == [("e1", 1, "w-1", False), ("t1", 1, "w-1", False)]
    assert [a.rollout_id for a in store.claim("w-2", 10).result()] == ["t2", "t3"]
    assert store.claim("w-2", 10).result() == []
    assert store.rollout("e1").state == "running"
    assert store.attempts("e1") == [first[0]]


@pytest.mark.parametrize("limit", [0, -1])
def test_claim_of_nothing_claims_nothing(store: RecordStore, make: Any, limit: int) -> None:
    store.create_rollouts([make.spec()]).result()
    assert store.claim("w", limit).result() == []


def test_success_keeps_the_verdict_and_the_record(store: RecordStore, running: Running) -> None:
    claimed = running("r-1", worker="host-3")[0]
    report = Attempt(
        rollout_id="r-1",
        attempt=1,
        started=0.0,
        phases=(Phase(name="agent", started=10.0, seconds=1.5),),
        result=VerifierResult(reward=0.0, scores={"reward": 0.0}, exit_code=1, output="no code"),
        exit_status="Submitted",
    )
    assert store.finish(AttemptOutcome(attempt=report)).result() is True
    rollout = store.rollout("r-1")
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 0.0, None)
    kept = store.attempts("r-1")[0]
    assert (kept.worker, kept.started, kept.sealed) == ("host-3", claimed.started, True)
    assert (kept.phases, kept.result, kept.exit_status) == (report.phases, report.result, "Submitted")
    assert kept.finished > 0


def test_an_infrastructure_failure_has_a_cause_and_no_reward(store: RecordStore, running: Running) -> None:
    store.finish(failed(running("r-1")[0])).result()
    rollout = store.rollout("r-1")
    assert (rollout.state, rollout.reward, rollout.cause) == ("failed", None, CAUSE)


def test_requeue_gives_a_new_attempt_and_fences_the_old_one_off(store: RecordStore, running: Running, make: Any) -> None:
    first = running("r-1")[0]
    assert store.finish(failed(first, requeue=True)).result() is True
    assert (store.rollout("r-1").state, store.rollout("r-1").cause) == ("queuing", None)
    assert store.finish(AttemptOutcome(attempt=make.rewarded())).result() is False  # too late: nobody runs it now
    second = store.claim("w-2", 1).result()[0]
    assert second.attempt == 2
    assert store.finish(AttemptOutcome(attempt=make.rewarded(attempt=1))).result() is False
    assert store.seal("r-1", 1).result() is False
    assert store.rollout("r-1").state == "running"
    assert [(a.attempt, a.sealed, a.cause) for a in store.attempts("r-1")] == [(1, True, CAUSE), (2, False, None)]


def test_a_finished_rollout_stays_as_it_is(store: RecordStore, running: Running, make: Any) -> None:
    attempt = running("r-1")[0]
    report = AttemptOutcome(attempt=make.rewarded())
    assert store.finish(report).result() is True
    before = store.rollout("r-1")
    assert store.finish(report).result() is True
    for other in (failed(attempt), failed(attempt, requeue=True), AttemptOutcome(attempt=make.rewarded(reward=0.0))):
        with pytest.raises(ConflictError):
            store.finish(other).result()
    assert store.rollout("r-1") == before
    assert store.claim("w", 1).result() == []


def test_seal_is_of_the_current_attempt_and_idempotent(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    assert store.seal("r-1", 2).result() is False
    assert [store.seal("r-1", 1).result() for _ in range(2)] == [True, True]
    assert store.attempts("r-1")[0].sealed is True
    assert store.finish(AttemptOutcome(attempt=make.rewarded())).result() is True  # sealed, verified, finished


def test_release_worker_requeues_what_those_workers_run(store: RecordStore, make: Any) -> None:
    store.create_rollouts([make.spec(name) for name in ("a", "b", "c", "d")]).result()
    for worker in ("host-1/x", "host-1/y", "host-10", "HOST-1/z"):
        store.claim(worker, 1).result()
    lost = store.release_worker("host-1/").result()
    assert [(attempt.rollout_id, attempt.sealed) for attempt in lost] == [("a", True), ("b", True)]
    assert [attempt.cause.cause for attempt in lost if attempt.cause] == [CauseClass.HOST_LOST] * 2
    assert ids(store.rollouts(states=["queuing"])) == ["a", "b"]
    assert ids(store.rollouts(states=["running"])) == ["c", "d"]
    assert store.attempts("a") == [lost[0]]
    assert store.finish(AttemptOutcome(attempt=make.rewarded("a"))).result() is False
    assert store.release_worker("host-1/").result() == []
    assert store.claim("w", 1).result()[0].attempt == 2


def test_release_worker_takes_a_prefix_literally(store: RecordStore, running: Running) -> None:
    running("a", worker="host-1")
    assert store.release_worker("%").result() == []
    assert store.release_worker("host_1").result() == []
    assert len(store.release_worker("").result()) == 1  # every worker


def test_events_are_idempotent_and_ordered_by_time(store: RecordStore) -> None:
    events = [
        Event(event_id=f"e{time}", rollout_id="r-1", attempt=1, time=float(time), kind="phase", data={"n": time})
        for time in (3, 1, 2)
    ]
    store.append_events(events).result()
    store.append_events([*events, Event(event_id="x", rollout_id="r-2", attempt=1, time=0.0, kind="phase")]).result()
    assert [event.event_id for event in store.events("r-1")] == ["e1", "e2", "e3"]
    assert store.events("r-1")[2] == events[0]


def test_small_values(store: RecordStore) -> None:
    assert store.meta("seed") is None
    store.set_meta("seed", "1").result()
    store.set_meta("seed", "2").result()
    assert store.meta("seed") == "2"


def test_another_instance_sees_resolved_writes(tmp_path: Path, opened: Opened, make: Any) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        for number in range(20):
            one.create_rollouts([make.spec(f"r{number}")]).result()
            assert other.rollout(f"r{number}").state == "queuing"


def test_a_closed_store_refuses_everything(tmp_path: Path, opened: Opened, make: Any) -> None:
    store = opened(tmp_path)
    accepted = store.create_rollouts([make.spec()])
    store.close()
    store.close()
    assert accepted.result() is None
    with pytest.raises(StoreError, match="closed"):
        store.create_rollouts([make.spec("b")])
    with pytest.raises(StoreError, match="closed"):
        store.rollouts()
