"""whippletree/loop/watch.py, over a real store"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from whippletree.errors import ProcessError, StoreError
from whippletree.loop.watch import Absence, Watch
from whippletree.protocols import AttemptOutcome
from whippletree.store import open_store
from whippletree.types import Attempt, RolloutSpec, VerifierResult


def spec(number: int) -> RolloutSpec:
    return RolloutSpec(rollout_id=f"r{number}", group_id="g", source="s", task_id="t", task_path="/t", harness="h")


def test_a_change_is_seen_also_by_a_later_watch(tmp_path: Path):
    store = open_store(tmp_path)
    store.create_rollouts([spec(0), spec(1)]).result()
    watch = Watch(store, "train", stall_limit=20.0)

    def finish() -> None:
        for attempt in store.claim("w", 2).result():
            done = Attempt(
                rollout_id=attempt.rollout_id, attempt=attempt.attempt, started=attempt.started, finished=time.time(),
                result=VerifierResult(reward=1.0),
            )  # fmt: skip
            store.finish(AttemptOutcome(attempt=done)).result()

    thread = threading.Thread(target=finish)
    thread.start()
    watch.until(lambda: sum(rollout.terminal for rollout in watch.rollouts.values()) == 2)
    thread.join()
    later = Watch(store, "train", stall_limit=20.0)
    later.refresh()
    assert {rollout.reward for rollout in later.rollouts.values()} == {1.0}
    assert not later.refresh()
    store.close()


def test_a_stalled_wait_names_what_did_not_move(tmp_path: Path):
    store = open_store(tmp_path)
    store.create_rollouts([spec(0)]).result()
    with pytest.raises(StoreError, match=r"r0 \(queuing\)"):
        Watch(store, "train", stall_limit=0.2).until(lambda: False)
    store.close()


def test_a_wait_with_an_end_says_whether_it_was_worth_it(tmp_path: Path):
    with open_store(tmp_path) as store:
        store.create_rollouts([spec(0)]).result()
        watch = Watch(store, "train", stall_limit=20.0)
        assert watch.until(lambda: False, seconds=0.2) is False
        assert watch.until(lambda: "r0" in watch.rollouts, seconds=0.0) is True


def test_what_moves_beside_is_no_stall_and_its_end_is(tmp_path: Path):
    """Evaluation rollouts are claimed first: while they move, training rollouts that wait for their places have not stalled."""
    moves = iter([True] * 8 + [False] * 1000)
    with open_store(tmp_path) as store:
        store.create_rollouts([spec(0)]).result()
        watch = Watch(store, "train", stall_limit=0.2)
        with pytest.raises(StoreError, match="no train rollout changed"):
            watch.until(lambda: False, beside=lambda: next(moves))
        assert True not in list(moves)  # longer than the limit without a change, and no error before the last move


def test_a_peer_that_is_missing_all_the_time_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with open_store(tmp_path) as store:
        store.create_rollouts([spec(0)]).result()
        watch = Watch(store, "train", stall_limit=60.0, missing=lambda: "no controller works on it", peer_limit=0.4)
        with pytest.raises(ProcessError, match=r"waited \d+ s for train rollouts, but no controller.*r0 \(queuing\)") as raised:
            watch.until(lambda: False)
        assert "--resume" in raised.value.next_step
    said = [record.message for record in caplog.records if record.name == "whippletree.loop.watch"]
    assert said == ["waiting for train rollouts, but no controller works on it"]


def test_a_peer_that_comes_back_in_time_is_no_error(tmp_path: Path):
    said = iter(["gone", "", "gone", ""] * 100)
    with open_store(tmp_path) as store:
        store.create_rollouts([spec(0)]).result()
        watch = Watch(store, "train", stall_limit=60.0, missing=lambda: next(said), peer_limit=0.4)
        assert watch.until(lambda: False, seconds=2.0) is False


def test_absence_counts_from_the_first_look_that_missed_somebody():
    absence = Absence(10.0)
    looks = ((1.0, ""), (2.0, "x"), (5.0, "y"), (6.0, ""), (9.0, "x"), (20.0, "x"))
    assert [absence.look(now, said) for now, said in looks] == [0.0, 0.0, 3.0, 0.0, 0.0, 11.0]
