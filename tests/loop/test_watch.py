"""whippletree/loop/watch.py, over a real store"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from whippletree.errors import StoreError
from whippletree.loop.watch import Watch
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
