"""kill -9 of the whole server in the middle of writes."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from postgres_cluster import Cluster

from whippletree.errors import StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.store import RecordStore, StoreConfig, open_store
from whippletree.types import Event

WRITERS = 6


class Work:
    """Threads that write through two stores and note what was acknowledged and what was refused."""

    def __init__(self, directory: Path, url: str, make: Any) -> None:
        config = StoreConfig(url=url)
        self.stores = [open_store(directory, config=config) for _ in range(2)]
        self._make = make
        self._lock = threading.Lock()
        self._enough = threading.Condition(self._lock)
        self.stop = threading.Event()
        self.acknowledged: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.bugs: list[BaseException] = []
        self.threads = [threading.Thread(target=self._work, args=(number,)) for number in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        """Until so many writes were acknowledged."""
        with self._enough:
            assert self._enough.wait_for(lambda: len(self.acknowledged) >= count or self.bugs, 60)

    def _work(self, number: int) -> None:
        try:
            round_ = 0
            while not self.stop.is_set():
                self._round(number, f"r-{number}-{round_}")
                round_ += 1
        except BaseException as error:
            with self._enough:
                self.bugs.append(error)
                self._enough.notify_all()

    def _round(self, number: int, name: str) -> None:
        """One rollout created by name and whichever is claimed; only what may be repeated is repeated."""
        store, make = self.stores[number % 2], self._make
        self._until("created", name, lambda: store.create_rollouts([make.spec(name)]).result())
        try:
            attempts = store.claim(f"w-{number}", 1).result()
        except StoreError as error:
            self.refused.append(str(error))
            return
        for attempt in attempts:
            self._note("claimed", attempt.rollout_id)
            self._run(store, attempt.rollout_id)

    def _run(self, store: RecordStore, claimed: str) -> None:
        make = self._make
        call = make.call(f"c-{claimed}", rollout_id=claimed)
        self._until("called", claimed, lambda: store.record_call(call, make.payload()).result())
        event = Event(event_id=f"e-{claimed}", rollout_id=claimed, attempt=1, time=1.0, kind="phase")
        self._until("told", claimed, lambda: store.append_events([event]).result())
        report = AttemptOutcome(attempt=make.rewarded(claimed, reward=0.25))
        self._until("finished", claimed, lambda: store.finish(report).result())

    def _until(self, kind: str, name: str, write: Any) -> None:
        while True:
            try:
                write()
            except StoreError as error:
                self.refused.append(str(error))
                if self.stop.wait(0.01):
                    return
            else:
                self._note(kind, name)
                return

    def _note(self, kind: str, name: str) -> None:
        with self._enough:
            self.acknowledged.append((kind, name))
            self._enough.notify_all()


def test_every_acknowledged_write_survives_kill_9_of_the_server(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    work = Work(tmp_path / "store", cluster.url, make)
    for kill in range(3):
        work.wait_for(len(work.acknowledged) + 150 + 37 * kill)
        cluster.kill()
        cluster.start()
    work.wait_for(len(work.acknowledged) + 100)
    work.stop.set()
    for thread in work.threads:
        thread.join()
    assert work.bugs == []
    assert work.refused == []  # the server came back in time, and of every commit that was cut off the truth was found
    for store in work.stores:
        store.close()
    assert max(Counter(work.acknowledged).values()) == 1  # nothing was claimed or created twice
    said = {kind: {name for other, name in work.acknowledged if other == kind} for kind, _ in work.acknowledged}
    with open_store(tmp_path / "store") as store:
        rollouts = {rollout.spec.rollout_id: rollout for rollout in store.rollouts()}
        assert len(rollouts) == len(store.rollouts())
        assert said["created"] <= rollouts.keys()
        # What was refused is not there: not one rollout is running that nobody was told of.
        assert {name for name, rollout in rollouts.items() if rollout.attempt} == said["claimed"]
        for name in said["called"]:
            (call,) = store.calls(name, 1)
            assert store.payload(call).sampled_ids.tolist() == [100, 101]
        for name in said["told"]:
            assert [event.event_id for event in store.events(name)] == [f"e-{name}"]
        for name in said["finished"]:
            assert (rollouts[name].state, rollouts[name].reward) == ("succeeded", 0.25)
        assert all(len(store.attempts(name)) == 1 for name in said["claimed"])
