"""Group commit: one thread per store instance turns queued writes into few transactions.

Who blocks whom:

    callers ──submit──► queue ──► writer thread: payloads.put (fsync?) ─► BEGIN ─► write … write ─► COMMIT (fsync?)
       ▲                                         all of the group         waits for other processes      │
       └──────────────── Future ◄─────────────── resolved after ◄──────── ≤ busy, where it is ordered ◄──┘

While one group is being committed the next one gathers, so more callers make larger groups, not longer queues. The two fsyncs
happen where a store is to survive a power cut; else payloads are flushed every `flush_seconds`, after the group's answers.

Invariants (tests/store/test_store_writer.py):
- a Future is resolved only after the commit that holds its write; with an error, nothing of that write is in the store;
- one write's error (ConflictError, FencedError, ...) does not touch its neighbours in the group;
- writes of one thread are applied in the order they were submitted;
- the writer thread outlives any error; after `close` every accepted write is settled and further ones are refused.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from whippletree.errors import StoreError
from whippletree.protocols import PayloadStore
from whippletree.store.database import Connection
from whippletree.types import CallPayload, PayloadKey

R = TypeVar("R")
logger = logging.getLogger(__name__)


@dataclass
class Transaction:
    """What a write sees: the connection, inside the group's transaction, and the group's time."""

    connection: Connection
    ordered: bool
    _now: float = field(default=0.0, init=False)

    @property
    def now(self) -> float:
        """The group's time, in seconds since the epoch. It grows from group to group, also across processes, so that a reader
        who asks for rows updated after the newest one that it has seen misses none."""
        assert self.ordered, "a write that is not ordered has no time"
        if not self._now:
            newest = self.connection.execute("SELECT max(updated) FROM rollouts").fetchone()
            self._now = max(time.time(), ((newest and newest[0]) or 0.0) + 1e-6)
        return self._now


@dataclass
class _Write(Generic[R]):
    operation: Callable[[Transaction, PayloadKey | None], R]
    payload: CallPayload | None
    future: Future[R]
    ordered: bool
    key: PayloadKey | None = None
    result: R | None = None


class GroupWriter:
    """The only writer of its process. Owns `connection`; `payloads` stays the caller's to close, after `close`."""

    def __init__(
        self,
        connection: Connection,
        payloads: PayloadStore,
        *,
        gather_seconds: float = 0.0,
        group_limit: int = 512,
        flush_seconds: float = 0.0,
    ) -> None:
        """`flush_seconds`: flush payloads this long after they were written; 0.0: `payloads.put` does so itself."""
        self._connection = connection
        self._payloads = payloads
        self._gather_seconds = gather_seconds
        self._group_limit = group_limit
        self._flush_seconds = flush_seconds
        self._flush_due = math.inf
        self._queue: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[Transaction], R], *, ordered: bool = True) -> Future[R]:
        """Queue a write. `operation` runs on the writer thread inside the group's transaction, which is ordered (database.py)
        if one of its writes is."""
        return self._enqueue(_Write(lambda transaction, _: operation(transaction), None, Future(), ordered))

    def submit_with_payload(self, payload: CallPayload, operation: Callable[[Transaction, PayloadKey], R]) -> Future[R]:
        """Queue a write whose payload is made durable first; `operation` gets its key. It is not ordered."""

        def write(transaction: Transaction, key: PayloadKey | None) -> R:
            assert key is not None  # _store_payloads has settled a write whose payload failed
            return operation(transaction, key)

        return self._enqueue(_Write(write, payload, Future(), ordered=False))

    def close(self) -> None:
        """Settle what was accepted, then stop. Called again, it only waits."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _enqueue(self, write: _Write[R]) -> Future[R]:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed", "open it again, or write before closing it")
            self._queue.put(write)
        return write.future

    def _run(self) -> None:
        closing = False
        while not closing:
            group, closing = self._gather()
            if time.monotonic() >= self._flush_due:
                self._flush()
            group = [write for write in group if write.future.set_running_or_notify_cancel()]
            group = self._store_payloads(group)
            if group:
                self._commit(group)
        self._connection.close()

    def _gather(self) -> tuple[list[_Write[Any]], bool]:
        """The next group, and whether the writer was asked to close after it. Blocks until there is something to do."""
        try:
            idle = None if self._flush_due == math.inf else max(0.001, self._flush_due - time.monotonic())
            first = self._queue.get(timeout=idle)
        except queue.Empty:
            return [], False
        if first is None:
            return [], True
        group = [first]
        deadline = time.monotonic() + self._gather_seconds
        while len(group) < self._group_limit:
            wait = deadline - time.monotonic()
            try:
                write = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if write is None:
                return group, True
            group.append(write)
        return group, False

    def _store_payloads(self, group: Sequence[_Write[Any]]) -> list[_Write[Any]]:
        """Make the group's payloads durable; the writes that are left to do."""
        carriers = [(write, write.payload) for write in group if write.payload is not None]
        try:
            keys = self._payloads.put([payload for _, payload in carriers]) if carriers else []
            if carriers and self._flush_seconds and self._flush_due == math.inf:
                self._flush_due = time.monotonic() + self._flush_seconds
        except Exception as error:  # noqa: BLE001 - handed to every caller concerned; the thread must live on
            for write, _ in carriers:
                write.future.set_exception(error)
            return [write for write in group if write.payload is None]
        for (write, _), key in zip(carriers, keys, strict=True):
            write.key = key
        return list(group)

    def _flush(self) -> None:
        self._flush_due = math.inf
        try:
            self._payloads.flush()
        except StoreError:
            logger.exception("what was written lately would not survive a power cut")

    def _commit(self, group: Sequence[_Write[Any]]) -> None:
        """One transaction for the whole group. Nearly always every write is accepted; else each gets a savepoint of its own."""
        if not self._commit_plainly(group):
            self._commit_singly(group)

    def _commit_plainly(self, group: Sequence[_Write[Any]]) -> bool:
        """All or nothing; False where something was refused or the connection was lost, and nothing is stored yet."""
        connection = self._connection
        try:
            transaction = self._begin(ordered=any(write.ordered for write in group))
        except StoreError as error:
            self._fail(group, error)
            return True
        try:
            for write in group:
                write.result = write.operation(transaction, write.key)
        except Exception:  # noqa: BLE001 - whoever is at fault is found when each write is done by itself
            connection.roll_back()
            return False
        try:
            if not connection.commit():
                return False
        except StoreError as error:
            self._fail(group, error)
            return True
        for write in group:
            write.future.set_result(write.result)
        return True

    def _commit_singly(self, group: Sequence[_Write[Any]]) -> None:
        """One ordered transaction, so that no other process's stands in the way; each write in a savepoint of its own."""
        refused: list[tuple[_Write[Any], Exception]] = []
        done: list[_Write[Any]] = []
        connection = self._connection
        try:
            transaction = self._begin(ordered=True)
            for write in group:
                connection.execute("SAVEPOINT one_write")
                try:
                    write.result = write.operation(transaction, write.key)
                    done.append(write)
                except Exception as error:  # handed to the caller; its neighbours go on
                    if not connection.in_transaction:
                        raise  # the database has rolled everything back (disk full), or is gone
                    connection.execute("ROLLBACK TO one_write")
                    refused.append((write, error))
                connection.execute("RELEASE one_write")
            if not connection.commit():
                raise StoreError("the connection was lost", "nothing of it is stored; repeat it")
        except Exception as error:  # noqa: BLE001 - handed to every caller of the group; the thread must live on
            self._fail(group, error)
            return
        for write in done:
            write.future.set_result(write.result)
        for write, refusal in refused:
            write.future.set_exception(refusal)

    def _begin(self, *, ordered: bool) -> Transaction:
        self._connection.begin(ordered=ordered)
        return Transaction(self._connection, ordered)

    def _fail(self, group: Sequence[_Write[Any]], error: Exception) -> None:
        self._connection.roll_back()
        cause, next_step = (error.cause, error.next_step) if isinstance(error, StoreError) else (str(error), "")
        failure = StoreError(f"a group of {len(group)} writes was not committed: {cause}", next_step or "retry")
        failure.__cause__ = error
        for write in group:
            write.future.set_exception(failure)
