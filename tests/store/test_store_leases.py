"""Leases of attempts, on each database. Where a lease is to have run out, its end is moved in the record: no test sleeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whippletree.errors import FencedError, StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.store import RecordStore
from whippletree.store.database import Row
from whippletree.store.transitions import ran_out
from whippletree.types import Attempt, Cause, CauseClass

Opened = Callable[..., RecordStore]


def begin(store: RecordStore, make: Any, name: str = "r", seconds: float = 60.0, **fields: Any) -> Attempt:
    store.create_rollouts([make.spec(name, task_path="", **fields)]).result()
    return store.begin(name, "node-1", seconds).result()


def expiry(store: RecordStore, name: str = "r") -> float | None:
    """When the newest attempt's lease ends, by the database's clock."""
    rows: list[Row] = store._read("SELECT expires FROM attempts WHERE rollout_id = ? ORDER BY attempt DESC", name)
    return rows[0][0]


def run_out(store: RecordStore, *names: str) -> None:
    """As if these leases had begun a day ago."""
    query = "UPDATE attempts SET expires = expires - 86400 WHERE rollout_id = ? AND expires IS NOT NULL"
    rows = [(name,) for name in names]
    store._writer.submit(lambda tx: tx.connection.execute_many(query, rows)).result()


def test_an_attempt_whose_lease_ran_out_is_lost_and_its_rollout_waits_again(store: RecordStore, make: Any) -> None:
    begin(store, make)
    assert store.end_lapsed() == []
    run_out(store, "r")
    (lost,) = store.end_lapsed()
    assert (lost.rollout_id, lost.attempt, lost.worker, lost.lease_seconds, lost.sealed) == ("r", 1, "node-1", 60.0, True)
    assert lost.cause is not None and lost.cause.cause is CauseClass.HOST_LOST and ran_out(lost.cause)
    assert lost.cause.message == "nothing was heard of worker 'node-1' for 60 s: the attempt's lease ran out"
    assert store.attempts("r") == [lost]
    assert (store.rollout("r").state, store.rollout("r").attempt) == ("queuing", 1)
    assert store.end_lapsed() == []
    assert store.begin("r", "node-2", 60.0).result().attempt == 2


def test_the_failure_table_ends_the_rollout_once_its_attempts_are_used_up(store: RecordStore, make: Any) -> None:
    begin(store, make, max_attempts=2)
    run_out(store, "r")
    store.end_lapsed()
    store.begin("r", "node-1", 60.0).result()
    run_out(store, "r")
    assert len(store.end_lapsed()) == 1
    rollout = store.rollout("r")
    assert (rollout.state, rollout.attempt, rollout.reward) == ("failed", 2, None)
    assert ran_out(rollout.cause)


def test_what_a_lost_attempt_still_reports_changes_nothing(store: RecordStore, make: Any) -> None:
    begin(store, make, max_attempts=1)
    begin(store, make, "again")
    run_out(store, "r", "again")
    assert len(store.end_lapsed()) == 2
    cause = Cause(cause=CauseClass.HARNESS, phase="agent", message="late")
    for name in ("r", "again"):
        before = store.rollout(name)
        late = Attempt(rollout_id=name, attempt=1, started=0.0, cause=cause)
        assert store.finish(AttemptOutcome(attempt=make.rewarded(name))).result() is False
        assert store.finish(AttemptOutcome(attempt=late)).result() is False
        assert store.finish(AttemptOutcome(attempt=late, requeue=True)).result() is False
        assert store.renew(name, 1).result() is None
        with pytest.raises(FencedError):
            store.record_call(make.call(f"c-{name}", rollout_id=name), make.payload()).result()
        assert store.rollout(name) == before


def test_renewing_begins_the_lease_anew_by_the_databases_clock(store: RecordStore, make: Any) -> None:
    begin(store, make)
    first = expiry(store)
    assert first is not None and first == pytest.approx(time.time() + 60.0, abs=30.0)
    run_out(store, "r")
    kept = store.renew("r", 1).result()
    assert kept is not None and kept.lease_seconds == 60.0
    renewed = expiry(store)
    assert renewed is not None and renewed >= first
    assert store.end_lapsed() == []
    store.renew("r", 1, at_least=600.0).result()
    longer = expiry(store)
    assert longer is not None and longer >= renewed + 500.0


def test_other_attempts_and_other_states_are_not_renewed(store: RecordStore, make: Any) -> None:
    with pytest.raises(StoreError, match="no rollout"):
        store.renew("nobody", 1).result()
    store.create_rollouts([make.spec("r", task_path="")]).result()
    assert store.renew("r", 0).result() is None
    store.begin("r", "node-1", 60.0).result()
    assert [store.renew("r", number).result() is None for number in (0, 1, 2)] == [True, False, True]
    store.finish(AttemptOutcome(attempt=make.rewarded("r"))).result()
    assert store.renew("r", 1).result() is None
    assert expiry(store) is None


def test_without_a_lease_nothing_runs_out(store: RecordStore, make: Any) -> None:
    begin(store, make, seconds=0.0)
    store.create_rollouts([make.spec("claimed")]).result()
    store.claim("local/1", 1).result()
    assert (expiry(store), expiry(store, "claimed")) == (None, None)
    kept = store.renew("r", 1).result()
    assert kept is not None and kept.lease_seconds == 0.0 and expiry(store) is None
    assert store.end_lapsed() == []


@pytest.mark.parametrize("end", ["finish", "requeue", "cancel", "release"])
def test_every_other_end_takes_the_lease_away(store: RecordStore, make: Any, end: str) -> None:
    begin(store, make)
    cause = Cause(cause=CauseClass.HARNESS, phase="agent", message="crashed")
    failed = Attempt(rollout_id="r", attempt=1, started=0.0, cause=cause)
    ends: dict[str, Callable[[], Any]] = {
        "finish": lambda: store.finish(AttemptOutcome(attempt=make.rewarded("r"))),
        "requeue": lambda: store.finish(AttemptOutcome(attempt=failed, requeue=True)),
        "cancel": lambda: store.cancel(["r"], "called off"),
        "release": lambda: store.release_worker("node-1"),
    }
    run_out(store, "r")
    ends[end]().result()
    before = store.rollout("r")
    assert store.end_lapsed() == [] and store.rollout("r") == before
    assert store.attempts("r")[0].lease_seconds == 60.0


def test_a_sealed_attempt_that_nobody_finishes_is_lost_too(store: RecordStore, make: Any) -> None:
    begin(store, make)
    store.seal("r", 1).result()
    run_out(store, "r")
    assert len(store.end_lapsed()) == 1


def test_begun_again_by_the_same_worker_it_keeps_its_lease(store: RecordStore, make: Any) -> None:
    first = begin(store, make)
    assert store.begin("r", "node-1", 5.0).result() == first


def test_longer_leases_than_asked_for_are_left_alone(store: RecordStore, make: Any) -> None:
    begin(store, make, "short", 10.0)
    begin(store, make, "long", 100.0)
    run_out(store, "short", "long")
    assert [lost.rollout_id for lost in store.end_lapsed(10.0)] == ["short"]
    assert [lost.rollout_id for lost in store.end_lapsed(100.0)] == ["long"]


def test_leases_survive_their_process(opened: Opened, tmp_path: Path, make: Any) -> None:
    with opened(tmp_path / "store") as store:
        begin(store, make)
        before = expiry(store)
    with opened(tmp_path / "store") as store:
        assert expiry(store) == before and store.attempts("r")[0].lease_seconds == 60.0
        assert store.end_lapsed() == []


def test_however_many_look_each_lost_attempt_is_ended_once(opened: Opened, tmp_path: Path, make: Any) -> None:
    """Eight stores, as of eight gateways; meanwhile the attempts of every other rollout give a sign of life."""
    names = [f"r{number:02d}" for number in range(40)]
    with opened(tmp_path / "store") as store:
        for name in names:
            begin(store, make, name)
        run_out(store, *names[::2])
        ended: list[Attempt] = []
        kept: list[Attempt | None] = []
        start = threading.Barrier(9)

        def look() -> None:
            with opened(tmp_path / "store") as other:
                start.wait()
                for _ in range(5):
                    ended.extend(other.end_lapsed())

        def live() -> None:
            start.wait()
            kept.extend([store.renew(name, 1).result() for name in names[1::2]])

        threads = [threading.Thread(target=work) for work in (*[look] * 8, live)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(lost.rollout_id for lost in ended) == names[::2]
        assert None not in kept and len(kept) == 20
        assert [store.rollout(name).state for name in names] == ["queuing", "running"] * 20
        assert all(len(store.attempts(name)) == 1 for name in names)


def test_a_renewal_and_the_end_of_the_lease_exclude_each_other(opened: Opened, tmp_path: Path, make: Any) -> None:
    """Of each attempt that ran out, either its sign of life came first and it goes on, or it is lost and its worker is told."""
    names = [f"r{number:02d}" for number in range(60)]
    with opened(tmp_path / "store") as store, opened(tmp_path / "store") as other:
        for name in names:
            begin(store, make, name)
        run_out(store, *names)
        ended: list[str] = []
        sweeper = threading.Thread(target=lambda: ended.extend(lost.rollout_id for lost in other.end_lapsed()))
        sweeper.start()
        kept = {name for name in reversed(names) if store.renew(name, 1).result() is not None}
        sweeper.join()
        assert kept | set(ended) == set(names) and not kept & set(ended)
        assert {rollout.spec.rollout_id for rollout in store.rollouts(states=["running"])} == kept
