"""The store on a SQL database: typed reads and writes of protocols.Store.

Invariants (tests/store/, on SQLite and on PostgreSQL):
- every write is durable when its Future resolves, and survives kill -9 of any process (test_store_crash.py);
- two processes never claim the same rollout (test_store_crash.py);
- a read sees every write whose Future was resolved, in whichever process;
- a call's ids and logprobs line up with its counts, or the call says that it has none (test_store_calls.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import numpy as np

from whippletree.errors import AlignmentError, StoreError
from whippletree.protocols import AttemptOutcome, PayloadStore
from whippletree.store import leases, rows, schema, writes
from whippletree.store.config import StoreConfig
from whippletree.store.cursors import Order, place_of
from whippletree.store.database import Database, Value
from whippletree.store.readers import Readers
from whippletree.store.writer import GroupWriter
from whippletree.types import (
    Attempt,
    Call,
    CallPayload,
    Event,
    EventPage,
    Float32,
    PayloadKey,
    QueueCount,
    QueueReport,
    Rollout,
    RolloutPage,
    RolloutSpec,
    RolloutState,
    StepRecord,
)

LONGEST = 1e15  # seconds; a lease of infinity is no number for a database


class RecordStore:
    """The durable record of one run. Safe from any thread; each process opens its own."""

    def __init__(self, database: Database, payloads: PayloadStore, config: StoreConfig, *, flush_seconds: float = 0.0) -> None:
        """Brings the tables up to date. `flush_seconds`: see GroupWriter. Raises StoreError."""
        self._payloads = payloads
        connection = database.writer()
        try:
            schema.migrate(connection, database.place)
        except BaseException:
            connection.close()
            raise
        self._readers = Readers(database, config.read_connections)
        self._read = self._readers.read
        self._writer = GroupWriter(
            connection,
            payloads,
            gather_seconds=config.gather_seconds,
            group_limit=config.group_limit,
            flush_seconds=flush_seconds,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- rollouts and attempts ---------------------------------------------------------------------------------------

    def create_rollouts(self, specs: Sequence[RolloutSpec]) -> Future[None]:
        """Idempotent by rollout_id; all or none. Raises ConflictError if an id exists with another spec."""
        specs = tuple(specs)
        return self._writer.submit(lambda tx: writes.create_rollouts(tx, specs))

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises StoreError when unknown."""
        with self._readers.connection() as connection:
            return rows.find_rollout(connection, rollout_id)

    def rollouts(
        self,
        *,
        states: Iterable[RolloutState] = (),
        purpose: str = "",
        group_id: str = "",
        step: int | None = None,
        updated_after: float = 0.0,
        limit: int = 0,
    ) -> list[Rollout]:
        """Rollouts that match every given filter, oldest first. Whoever asks again with the newest `updated` misses none."""
        wanted = tuple(dict.fromkeys(states))
        filters: list[tuple[str, tuple[str | int | float, ...]]] = []
        if wanted:
            filters.append((f"state IN ({', '.join('?' * len(wanted))})", wanted))
        if purpose:
            filters.append(("purpose = ?", (purpose,)))
        if group_id:
            filters.append(("group_id = ?", (group_id,)))
        if step is not None:
            filters.append(("step = ?", (step,)))
        if updated_after:
            filters.append(("updated > ?", (updated_after,)))
        where = "WHERE " + " AND ".join(text for text, _ in filters) if filters else ""
        values: list[Value] = [value for _, given in filters for value in given]
        # As a sum it can only be sorted by: the few that changed are looked up and sorted, where all were read in this order.
        by = "seq + 0" if updated_after else "seq"
        query = f"SELECT {rows.ROLLOUT} FROM rollouts {where} ORDER BY {by}"
        if limit > 0:
            query, values = f"{query} LIMIT ?", [*values, limit]
        return [rows.rollout(row) for row in self._read(query, *values)]

    def page(
        self,
        *,
        states: Iterable[RolloutState] = (),
        source: str = "",
        group_id: str = "",
        purpose: str = "",
        order: Order = "created",
        after: str = "",
        limit: int = 100,
    ) -> RolloutPage:
        """Rollouts that match every given filter, by creation or by their last change, behind a cursor. Raises StoreError."""
        wanted = tuple(dict.fromkeys(states))
        named = {"source": source, "group_id": group_id, "purpose": purpose}
        filters = [f"{name} = ?" for name, value in named.items() if value]
        values: list[Value] = [value for value in named.values() if value]
        if wanted:
            filters.append(f"state IN ({', '.join('?' * len(wanted))})")
            values += wanted
        updated, seq = place_of(order, after)
        if order == "created":
            filters.append("seq > ?")
            values.append(seq)
        else:
            filters.append("(updated, seq) > (?, ?)")
            values += (updated, seq)
        by = "seq" if order == "created" else "updated, seq"
        query = f"SELECT {rows.ROLLOUT}, seq FROM rollouts WHERE {' AND '.join(filters)} ORDER BY {by} LIMIT ?"
        return rows.page(self._read(query, *values, limit + 1), order, after, limit)

    def begin(self, rollout_id: str, worker: str, lease_seconds: float = 0.0) -> Future[Attempt]:
        """One queuing rollout to running, for whoever runs rollouts of its own choice. The same worker again gets the attempt
        that it began, with the lease that it has. Raises ConflictError where another one runs it, or it has ended."""
        return self._writer.submit(lambda tx: writes.begin(tx, rollout_id, worker, lease_seconds))

    def renew(self, rollout_id: str, attempt: int, *, at_least: float = 0.0) -> Future[Attempt | None]:
        """Begin the attempt's lease anew, if it has one; None where that attempt is not under way. Raises StoreError when the
        rollout is unknown."""
        return self._writer.submit(lambda tx: leases.renew(tx, rollout_id, attempt, at_least))

    def end_lapsed(self, longest: float = math.inf) -> list[Attempt]:
        """End attempts whose lease (of at most `longest` seconds) has run out; those that this call ended. Blocks.

        Where there is none, which is nearly always, it is one look into an index.
        """
        longest = min(longest, LONGEST)
        with self._readers.connection() as connection:
            query = f"SELECT 1 FROM attempts WHERE {leases.lapsed(connection.dialect.clock)} LIMIT 1"
            if connection.execute(query, (longest,)).fetchone() is None:
                return []
        return self._writer.submit(lambda tx: leases.end_lapsed(tx, longest)).result()

    def cancel(self, rollout_ids: Sequence[str], reason: str) -> Future[list[Rollout]]:
        """Call rollouts off: failed, with the cause "cancelled", their attempts sealed. Those that have ended stay so."""
        ids = tuple(dict.fromkeys(rollout_ids))
        return self._writer.submit(lambda tx: writes.cancel(tx, ids, reason))

    def pause_queue(self, paused: bool) -> Future[None]:
        """Nothing is claimed while the queue is paused. What runs goes on."""
        return self.set_meta(writes.QUEUE_PAUSED, "1" if paused else "")

    def queue(self) -> QueueReport:
        """Every source's rollouts by state."""
        query = "SELECT source, state, count(*) FROM rollouts GROUP BY source, state ORDER BY source, state"
        counts = tuple(QueueCount(source=source, state=state, count=count) for source, state, count in self._read(query))
        return QueueReport(paused=bool(self.meta(writes.QUEUE_PAUSED)), counts=counts)

    def open_session(self, spec: RolloutSpec) -> Future[Attempt]:
        """A rollout that is running from the start, for a program that is captured from outside; nobody claims it.

        Idempotent by rollout_id. Raises ConflictError if the id exists with another spec.
        """
        return self._writer.submit(lambda tx: writes.open_session(tx, spec))

    def claim(self, worker: str, limit: int) -> Future[list[Attempt]]:
        """Move up to `limit` queuing rollouts to running, each with a new attempt: evaluation before training, the source with
        the least under way before others, then oldest first. External ones are left alone, all while the queue is paused."""
        return self._writer.submit(lambda tx: writes.claim(tx, worker, limit))

    def release_worker(self, worker_prefix: str) -> Future[list[Attempt]]:
        """Put the running rollouts of these workers back to queuing. Returns the attempts, sealed, with cause HOST_LOST."""
        return self._writer.submit(lambda tx: writes.release_worker(tx, worker_prefix))

    def seal(self, rollout_id: str, attempt: int) -> Future[bool]:
        """No further call of this attempt is accepted. False if that attempt is not the current one."""
        return self._writer.submit(lambda tx: writes.seal(tx, rollout_id, attempt))

    def finish(self, outcome: AttemptOutcome) -> Future[bool]:
        """Close an attempt: succeeded with a reward, failed with a cause, or back to queuing. False if it was fenced off.

        The same report again is a no-op (True). Raises ConflictError when the rollout ended otherwise, and StoreError when
        the outcome is not exactly one of a finite reward and a cause.
        """
        return self._writer.submit(lambda tx: writes.finish(tx, outcome))

    def hand_over(self, attempt: Attempt, worker: str) -> Future[bool]:
        """Give an attempt that is under way, with all that is known of it, to another worker, which will finish it; it is
        sealed. False if it was fenced off."""
        return self._writer.submit(lambda tx: writes.hand_over(tx, attempt, worker))

    def held_by(self, worker: str) -> list[Attempt]:
        """The attempts under way that this worker owns, oldest rollout first."""
        query = (
            "SELECT a.record, a.sealed FROM rollouts r"
            " JOIN attempts a ON a.rollout_id = r.rollout_id AND a.attempt = r.attempt"
            " WHERE r.state = 'running' AND a.worker = ? ORDER BY r.seq"
        )
        return [rows.attempt(row) for row in self._read(query, worker)]

    def attempts(self, rollout_id: str) -> list[Attempt]:
        """All attempts, oldest first."""
        query = f"SELECT {rows.ATTEMPT} FROM attempts WHERE rollout_id = ? ORDER BY attempt"
        return [rows.attempt(row) for row in self._read(query, rollout_id)]

    def append_events(self, events: Sequence[Event]) -> Future[None]:
        """Idempotent by event_id."""
        encoded = [(event, rows.encode(event)) for event in events]
        return self._writer.submit(lambda tx: writes.append_events(tx, encoded))

    def events(self, rollout_id: str) -> list[Event]:
        """Events of one rollout, oldest first."""
        query = "SELECT record FROM events WHERE rollout_id = ? ORDER BY time, seq"
        return [rows.decode(Event, record) for (record,) in self._read(query, rollout_id)]

    def event_page(self, rollout_id: str, *, kind: str = "", after: int = 0, limit: int = 100) -> EventPage:
        """Events of one rollout in the order in which they were written, behind the place `after`."""
        query = "SELECT record, seq FROM events WHERE rollout_id = ? AND seq > ?"
        values: list[Value] = [rollout_id, after]
        if kind:
            query += " AND kind = ?"
            values.append(kind)
        return rows.event_page(self._read(f"{query} ORDER BY seq LIMIT ?", *values, limit + 1), after, limit)

    # --- calls -------------------------------------------------------------------------------------------------------

    def record_call(self, call: Call, payload: CallPayload) -> Future[Call]:
        """Durable when resolved; the returned call carries its payload key. The same call again gives the first record back.

        Raises (through the Future) FencedError if the attempt is sealed or over, ConflictError if the id is taken; and at
        once AlignmentError if ids, logprobs and counts do not line up.
        """
        _check_alignment(call, payload)
        return self._writer.submit_with_payload(payload, lambda tx, key: writes.record_call(tx, call, key))

    def mark_delivered(self, call_id: str) -> Future[None]:
        """The harness has the whole reply. Accepted after the seal too. Raises StoreError when the call is unknown."""
        return self._writer.submit(lambda tx: writes.mark_delivered(tx, call_id), ordered=False)

    def calls(self, rollout_id: str, attempt: int) -> list[Call]:
        """Calls of one attempt by index."""
        query = f"SELECT {rows.CALL} FROM calls WHERE rollout_id = ? AND attempt = ? ORDER BY call_index, seq"
        return [rows.call(row) for row in self._read(query, rollout_id, attempt)]

    def payload(self, call: Call) -> CallPayload:
        """Token columns of a recorded call. Raises StoreError when they were released or are damaged."""
        if call.payload is None:
            raise StoreError(f"call {call.call_id} has no payload key", "use the call that record_call or calls returned")
        released = self._read("SELECT released FROM calls WHERE call_id = ?", call.call_id)
        if released and released[0][0]:
            raise StoreError(
                f"the payload of call {call.call_id} was released", "its rollout was trained; only metadata is kept"
            )
        return self._payloads.get(call.payload)

    def record_column(self, call: Call, name: str, values: Float32) -> Future[None]:
        """Keep one more column of a recorded call, one number for each sampled token, durable when resolved. The first column
        of a name stays. Raises (through the Future) StoreError when the call is unknown, and at once AlignmentError."""
        if len(values) != call.sampled_tokens:
            raise AlignmentError(
                f"call {call.call_id}: {call.sampled_tokens} sampled tokens, and {len(values)} numbers of {name!r}",
                "give one for each sampled token",
            )
        none = np.zeros(0, np.int32)
        payload = CallPayload(prompt_delta=none, sampled_ids=none, logprobs=np.asarray(values, np.float32), messages_json=b"")
        return self._writer.submit_with_payload(payload, lambda tx, key: writes.record_column(tx, call, name, key))

    def columns(self, rollout_id: str, attempt: int, name: str) -> dict[str, Float32]:
        """The columns of that name, by call_id, of an attempt's calls that have one. Raises StoreError when released."""
        query = "SELECT call_id, released, record FROM call_columns WHERE rollout_id = ? AND attempt = ? AND name = ?"
        found = self._read(query, rollout_id, attempt, name)
        if any(released for _, released, _ in found):
            raise StoreError(f"columns {name!r} of {rollout_id} were released", "its rollout was trained")
        return {call_id: self._payloads.get(rows.decode(PayloadKey, record)).logprobs for call_id, _, record in found}

    def release(self, rollout_ids: Sequence[str]) -> int:
        """Give up the payloads of these rollouts (trained, or never to be), and delete segments that hold nothing else.

        Records stay. Blocks until it is done; returns how many payloads were given up. A segment that a process still
        writes is deleted by a later release.
        """
        ids = tuple(dict.fromkeys(rollout_ids))
        count = self._writer.submit(lambda tx: writes.release(tx, ids)).result()
        # In this order: whoever wrote a segment that is idle now has committed all that it will ever commit of it.
        idle = self._payloads.segments()
        with self._readers.connection() as connection:
            unwanted = [segment for segment in idle if not rows.wanted(connection, segment)]
        self._payloads.remove(unwanted)
        return count

    # --- steps and small values --------------------------------------------------------------------------------------

    def plan_step(self, record: StepRecord) -> Future[None]:
        """Assign finished training rollouts to an update; the identical plan again is a no-op.

        Raises ConflictError when the step is planned otherwise, or one of the rollouts belongs to another step, is not
        finished, or is for evaluation.
        """
        return self._writer.submit(lambda tx: writes.plan_step(tx, record))

    def commit_step(self, step: int, checkpoint: str) -> Future[None]:
        """The update's checkpoint is on disk. Raises ConflictError when the step was never planned."""
        return self._writer.submit(lambda tx: writes.commit_step(tx, step, checkpoint))

    def steps(self) -> list[StepRecord]:
        """All steps in order."""
        return rows.steps(self._read(f"{writes.STEPS} {writes.STEPS_ORDER}"))

    def set_meta(self, key: str, value: str) -> Future[None]:
        """Keep one small value of the run, overwriting an earlier one."""
        return self._writer.submit(lambda tx: writes.set_meta(tx, key, value))

    def meta(self, key: str) -> str | None:
        """The value of `key`, or None."""
        found = self._read("SELECT value FROM meta WHERE key = ?", key)
        return str(found[0][0]) if found else None

    def close(self) -> None:
        """Settle every accepted write, then close. Called again, it does nothing."""
        self._writer.close()
        self._readers.close()
        self._payloads.close()


def _check_alignment(call: Call, payload: CallPayload) -> None:
    """Raises AlignmentError unless sampled ids = logprobs = the call's count, or the call says that it has no logprobs."""
    ids, logprobs = len(payload.sampled_ids), len(payload.logprobs)
    if call.logprob_source != "none" and not ids == logprobs == call.sampled_tokens:
        raise AlignmentError(
            f"call {call.call_id}: {ids} sampled ids, {logprobs} logprobs, {call.sampled_tokens} sampled tokens",
            "record all of them, or logprob_source='none' for a call that is only context",
        )
