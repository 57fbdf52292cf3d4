"""What each write does inside the group's transaction. Runs on the writer thread; nothing here commits.

Invariants (tests/store/test_store_rollouts.py, test_store_calls.py, test_store_steps.py): those of protocols.Store. Each
function either does all of its write or raises, and whoever calls it rolls back to before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whippletree.errors import ConflictError, FencedError, StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.store import rows
from whippletree.store.fairness import Waiting, fair
from whippletree.store.transitions import Ending, ending, judge
from whippletree.store.writer import Transaction
from whippletree.types import Attempt, Call, Cause, CauseClass, Event, PayloadKey, Rollout, RolloutSpec, StepRecord

# --- rollouts and attempts -------------------------------------------------------------------------------------------


def create_rollouts(tx: Transaction, specs: Sequence[RolloutSpec]) -> None:
    """Insert those that are new; an id that exists must have the same spec."""
    for spec in specs:
        columns = (spec.rollout_id, spec.group_id, spec.source, int(spec.external), spec.purpose, spec.step)
        known = tx.connection.execute("SELECT spec FROM rollouts WHERE rollout_id = ?", (spec.rollout_id,)).fetchone()
        if known is None:
            tx.connection.execute(
                "INSERT INTO rollouts (rollout_id, group_id, source, external, purpose, step, state, created, updated, spec)"
                " VALUES (?, ?, ?, ?, ?, ?, 'queuing', ?, ?, ?)",
                (*columns, tx.now, tx.now, rows.encode(spec)),
            )
        elif rows.decode(RolloutSpec, known[0]) != spec:
            raise ConflictError(f"rollout {spec.rollout_id} exists with another spec", "choose another id; specs do not change")


SESSION_WORKER = "session"
QUEUE_PAUSED = "queue_paused"  # key of the small value that is not "" while nothing is to be claimed


def open_session(tx: Transaction, spec: RolloutSpec) -> Attempt:
    """Insert a rollout that is running already, with its first attempt; the same again gives that attempt."""
    known = tx.connection.execute("SELECT attempt FROM rollouts WHERE rollout_id = ?", (spec.rollout_id,)).fetchone()
    create_rollouts(tx, (spec,))  # refuses another spec under this id
    if known is not None and known[0] > 0:
        return find_attempt(tx, spec.rollout_id, known[0])
    return _begin(tx, Attempt(rollout_id=spec.rollout_id, attempt=1, started=tx.now, worker=SESSION_WORKER))


def claim(tx: Transaction, worker: str, limit: int) -> list[Attempt]:
    """Queuing to running: evaluation before training, sources by turns (fairness.py); none while the queue is paused."""
    if limit <= 0 or _paused(tx):
        return []
    running: dict[str, int] = dict(
        tx.connection.execute("SELECT source, count(*) FROM rollouts WHERE state = 'running' GROUP BY source").fetchall()
    )
    chosen: list[Waiting] = []
    for purpose in ("eval", "train"):
        room = limit - len(chosen)
        if room > 0:
            queues = {source: _waiting(tx, purpose, source, room) for source in _sources(tx, purpose)}
            picked = fair(queues, running, room)
            names = {waiting.rollout_id for waiting in picked}
            for source, queue in queues.items():
                running[source] = running.get(source, 0) + sum(waiting.rollout_id in names for waiting in queue)
            chosen += picked
    attempts = [
        Attempt(rollout_id=waiting.rollout_id, attempt=waiting.attempt + 1, started=tx.now, worker=worker) for waiting in chosen
    ]
    return [_begin(tx, attempt) for attempt in attempts]


def _paused(tx: Transaction) -> bool:
    return tx.connection.execute("SELECT 1 FROM meta WHERE key = ? AND value != ''", (QUEUE_PAUSED,)).fetchone() is not None


def _sources(tx: Transaction, purpose: str) -> list[str]:
    """Sources that have something waiting: one step in the index for each of them, however much waits."""
    found: list[str] = []
    query = (
        "SELECT source FROM rollouts WHERE state = 'queuing' AND purpose = ? AND external = 0 AND source > ?"
        " ORDER BY source LIMIT 1"
    )
    last = ""
    first = tx.connection.execute(query.replace("source > ?", "source >= ?"), (purpose, last)).fetchone()
    while first is not None:
        last = str(first[0])
        found.append(last)
        first = tx.connection.execute(query, (purpose, last)).fetchone()
    return found


def _waiting(tx: Transaction, purpose: str, source: str, limit: int) -> list[Waiting]:
    rows_ = tx.connection.execute(
        "SELECT seq, rollout_id, attempt FROM rollouts"
        " WHERE state = 'queuing' AND purpose = ? AND external = 0 AND source = ? ORDER BY seq LIMIT ?"
        f" {tx.connection.dialect.skip_locked}",
        (purpose, source, limit),
    )
    return [Waiting(seq=seq, rollout_id=name, attempt=attempt) for seq, name, attempt in rows_]


def begin(tx: Transaction, rollout_id: str, worker: str, lease_seconds: float) -> Attempt:
    """One queuing rollout to running; the same worker again gives the attempt that it began. Raises ConflictError."""
    rollout = rows.find_rollout(tx.connection, rollout_id)
    if rollout.state == "queuing":
        number = rollout.attempt + 1
        new = Attempt(rollout_id=rollout_id, attempt=number, started=tx.now, worker=worker, lease_seconds=lease_seconds)
        return _begin(tx, new)
    if rollout.state != "running":
        raise ConflictError(
            f"rollout {rollout_id} cannot go from {rollout.state} to running", "a finished rollout stays as it is"
        )
    current = find_attempt(tx, rollout_id, rollout.attempt)
    if current.worker != worker:
        raise ConflictError(
            f"rollout {rollout_id} is run by {current.worker!r} already, as attempt {current.attempt}", "leave it to that one"
        )
    return current


def find_attempt(tx: Transaction, rollout_id: str, attempt: int) -> Attempt:
    """Raises StoreError when it is not there."""
    stored = tx.connection.execute(
        f"SELECT {rows.ATTEMPT} FROM attempts WHERE rollout_id = ? AND attempt = ?", (rollout_id, attempt)
    ).fetchone()
    if stored is None:
        raise StoreError(f"rollout {rollout_id} has no attempt {attempt}", "was the store edited by hand?")
    return rows.attempt(stored)


def cancel(tx: Transaction, rollout_ids: Sequence[str], reason: str) -> list[Rollout]:
    """Queuing and running rollouts to failed, with the cause "cancelled"; those that have ended stay as they are."""
    found = []
    for rollout_id in rollout_ids:
        rollout = rows.find_rollout(tx.connection, rollout_id)
        if not rollout.terminal:
            phase = "queue" if rollout.state == "queuing" else ""
            cause = Cause(cause=CauseClass.CANCELLED, phase=phase, message=reason, next_step="none: somebody called it off")
            end = Ending(state="failed", cause=cause)
            if rollout.state == "running":
                current = find_attempt(tx, rollout_id, rollout.attempt)
                close_attempt(tx, current, msgspec.structs.replace(current, cause=cause), end)
            else:
                _end(tx, rollout_id, end)
            rollout = rows.find_rollout(tx.connection, rollout_id)
        found.append(rollout)
    return found


def _begin(tx: Transaction, attempt: Attempt) -> Attempt:
    """Move a queuing rollout to running, with this attempt."""
    tx.connection.execute(
        "UPDATE rollouts SET state = 'running', attempt = ?, updated = ? WHERE rollout_id = ?",
        (attempt.attempt, tx.now, attempt.rollout_id),
    )
    expires = f"{tx.connection.dialect.clock} + ?" if attempt.lease_seconds else "NULL"
    tx.connection.execute(
        f"INSERT INTO attempts (rollout_id, attempt, worker, record, lease, expires) VALUES (?, ?, ?, ?, ?, {expires})",
        (
            *(attempt.rollout_id, attempt.attempt, attempt.worker, rows.encode(attempt), attempt.lease_seconds),
            *((attempt.lease_seconds,) if attempt.lease_seconds else ()),
        ),
    )
    return attempt


def release_worker(tx: Transaction, worker_prefix: str) -> list[Attempt]:
    """Running to queuing for every rollout whose attempt belongs to these workers."""
    running = tx.connection.execute(
        "SELECT a.record, a.sealed FROM rollouts r JOIN attempts a ON a.rollout_id = r.rollout_id AND a.attempt = r.attempt"
        " WHERE r.state = 'running' AND substr(a.worker, 1, ?) = ? ORDER BY r.seq",
        (len(worker_prefix), worker_prefix),
    ).fetchall()
    lost = []
    for row in running:
        attempt = rows.attempt(row)
        cause = Cause(
            cause=CauseClass.HOST_LOST, phase="", message=f"worker {attempt.worker} went away", next_step="none: it is retried"
        )
        lost.append(close_attempt(tx, attempt, msgspec.structs.replace(attempt, cause=cause), Ending(state="queuing")))
    return lost


def seal(tx: Transaction, rollout_id: str, attempt: int) -> bool:
    """Seal the attempt if it is the rollout's current one."""
    rollout = rows.find_rollout(tx.connection, rollout_id)
    if rollout.attempt != attempt or rollout.state == "queuing":
        return False
    tx.connection.execute("UPDATE attempts SET sealed = 1 WHERE rollout_id = ? AND attempt = ?", (rollout_id, attempt))
    return True


def finish(tx: Transaction, outcome: AttemptOutcome) -> bool:
    """Close an attempt; False if it was fenced off."""
    report = outcome.attempt
    wanted = ending(outcome)
    rollout = rows.find_rollout(tx.connection, report.rollout_id)
    verdict = judge(rollout, report.attempt, wanted)
    if verdict == "apply":
        close_attempt(tx, find_attempt(tx, report.rollout_id, report.attempt), report, wanted)
    return verdict != "fenced"


def hand_over(tx: Transaction, report: Attempt, worker: str) -> bool:
    """Make another worker the owner of the running attempt, sealed and without a lease; False if it was fenced off."""
    rollout = rows.find_rollout(tx.connection, report.rollout_id)
    if rollout.attempt != report.attempt or rollout.state != "running":
        return False
    stored = find_attempt(tx, report.rollout_id, report.attempt)
    kept = msgspec.structs.replace(report, worker=worker, started=stored.started, lease_seconds=0.0, sealed=True)
    tx.connection.execute(
        "UPDATE attempts SET worker = ?, sealed = 1, lease = 0, expires = NULL, record = ?"
        " WHERE rollout_id = ? AND attempt = ?",
        (worker, rows.encode(kept), kept.rollout_id, kept.attempt),
    )
    tx.connection.execute("UPDATE rollouts SET updated = ? WHERE rollout_id = ?", (tx.now, kept.rollout_id))
    return True


def close_attempt(tx: Transaction, stored: Attempt, report: Attempt, end: Ending) -> Attempt:
    """Seal the attempt with what was reported, and move its rollout. Worker, start and lease stay those of the claim."""
    closed = msgspec.structs.replace(
        report,
        worker=stored.worker,
        started=stored.started,
        lease_seconds=stored.lease_seconds,
        sealed=True,
        finished=report.finished or tx.now,
    )
    tx.connection.execute(
        "UPDATE attempts SET sealed = 1, expires = NULL, record = ? WHERE rollout_id = ? AND attempt = ?",
        (rows.encode(closed), closed.rollout_id, closed.attempt),
    )
    _end(tx, closed.rollout_id, end)
    return closed


def _end(tx: Transaction, rollout_id: str, end: Ending) -> None:
    cause = None if end.cause is None or end.state != "failed" else rows.encode(end.cause)
    tx.connection.execute(
        "UPDATE rollouts SET state = ?, reward = ?, cause = ?, updated = ? WHERE rollout_id = ?",
        (end.state, end.reward, cause, tx.now, rollout_id),
    )


def append_events(tx: Transaction, events: Sequence[tuple[Event, str]]) -> None:
    """Insert events (with their JSON); those that are known by event_id are left as they are."""
    tx.connection.execute_many(
        "INSERT INTO events (event_id, rollout_id, time, kind, record) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (event_id) DO NOTHING",
        [(event.event_id, event.rollout_id, event.time, event.kind, text) for event, text in events],
    )


# --- calls -----------------------------------------------------------------------------------------------------------


def record_call(tx: Transaction, call: Call, key: PayloadKey) -> Call:
    """Insert a call of the running, unsealed attempt. The same call again gives back what was recorded first.

    Every way out of "running" seals the attempt, so one that is not sealed is the one that runs; the statement holds it, so
    that nobody seals it before the call is committed.
    """
    recorded = msgspec.structs.replace(call, payload=key)
    inserted = tx.connection.execute(
        "INSERT INTO calls (call_id, rollout_id, attempt, call_index, delivered, segment, record)"
        " SELECT ?, rollout_id, attempt, ?, ?, ?, ? FROM attempts WHERE rollout_id = ? AND attempt = ? AND sealed = 0"
        f" {tx.connection.dialect.hold} ON CONFLICT (call_id) DO NOTHING",
        (
            *(call.call_id, call.index, int(call.delivered), key.segment, rows.encode(recorded)),
            *(call.rollout_id, call.attempt),
        ),
    )
    return recorded if inserted.rowcount else _recorded(tx, call)


def _recorded(tx: Transaction, call: Call) -> Call:
    """What is recorded under the call's id already. Raises ConflictError when that is another call, and FencedError when it is
    none: then the call was refused because its attempt is sealed or over."""
    known = tx.connection.execute(f"SELECT {rows.CALL} FROM calls WHERE call_id = ?", (call.call_id,)).fetchone()
    if known is not None:
        earlier = rows.call(known)
        if msgspec.structs.replace(call, payload=earlier.payload, delivered=earlier.delivered) == earlier:
            return earlier
        raise ConflictError(f"call {call.call_id} is recorded with other data", "give each call its own id")
    current = tx.connection.execute("SELECT state, attempt FROM rollouts WHERE rollout_id = ?", (call.rollout_id,)).fetchone()
    if current is None:
        raise StoreError(f"call {call.call_id} is of an unknown rollout {call.rollout_id!r}", "create the rollout first")
    state, attempt = current
    now = "sealed" if state == "running" and attempt == call.attempt else f"over: the rollout is {state}, attempt {attempt}"
    raise FencedError(f"call {call.call_id}: attempt {call.attempt} of {call.rollout_id} is {now}", "drop the call")


def record_column(tx: Transaction, call: Call, name: str, key: PayloadKey) -> None:
    """Keep a column of a recorded call. The first one of a name stays. Raises StoreError when the call is unknown."""
    if tx.connection.execute("SELECT 1 FROM calls WHERE call_id = ?", (call.call_id,)).fetchone() is None:
        raise StoreError(f"no call {call.call_id!r}", "record the call before a column of it")
    tx.connection.execute(
        "INSERT INTO call_columns (call_id, name, rollout_id, attempt, segment, record) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (call_id, name) DO NOTHING",
        (call.call_id, name, call.rollout_id, call.attempt, key.segment, rows.encode(key)),
    )


def mark_delivered(tx: Transaction, call_id: str) -> None:
    """The harness has the whole reply; also after the attempt was sealed."""
    if tx.connection.execute("UPDATE calls SET delivered = 1 WHERE call_id = ?", (call_id,)).rowcount == 0:
        raise StoreError(f"no call {call_id!r}", "record it before its reply is delivered")


def release(tx: Transaction, rollout_ids: Sequence[str]) -> int:
    """Give up the payloads of these rollouts, all attempts, and the columns beside them. Returns how many payloads."""
    query = "UPDATE calls SET released = 1 WHERE rollout_id = ? AND released = 0"
    for rollout_id in rollout_ids:
        columns = "UPDATE call_columns SET released = 1 WHERE rollout_id = ? AND released = 0"
        tx.connection.execute(columns, (rollout_id,))
    return sum(tx.connection.execute(query, (rollout_id,)).rowcount for rollout_id in rollout_ids)


# --- steps and small values ------------------------------------------------------------------------------------------


def plan_step(tx: Transaction, record: StepRecord) -> None:
    """Assign finished training rollouts to an update; the identical plan again is a no-op."""
    known = rows.steps(tx.connection.execute(f"{STEPS} WHERE s.step = ? {STEPS_ORDER}", (record.step,)).fetchall())
    if known:
        if (known[0].rollout_ids, known[0].policy_version) == (record.rollout_ids, record.policy_version):
            return
        raise ConflictError(f"step {record.step} is planned with other rollouts or policy version", "replay the recorded plan")
    tx.connection.execute("INSERT INTO steps (step, policy_version) VALUES (?, ?)", (record.step, record.policy_version))
    for position, rollout_id in enumerate(record.rollout_ids):
        rollout = rows.find_rollout(tx.connection, rollout_id)
        if not rollout.terminal or rollout.spec.purpose != "train":
            kind = f"{rollout.state} {rollout.spec.purpose}"
            raise ConflictError(f"step {record.step}: {rollout_id} is a {kind} rollout", "plan finished training rollouts only")
        taken = tx.connection.execute("SELECT step FROM step_rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone()
        if taken is not None:
            raise ConflictError(
                f"step {record.step}: rollout {rollout_id} already belongs to step {taken[0]}", "a rollout is trained once"
            )
        tx.connection.execute(
            "INSERT INTO step_rollouts (rollout_id, step, position) VALUES (?, ?, ?)", (rollout_id, record.step, position)
        )


def commit_step(tx: Transaction, step: int, checkpoint: str) -> None:
    """Mark a planned step as done. Again, after a replay, it may name another checkpoint."""
    changed = tx.connection.execute("UPDATE steps SET committed = 1, checkpoint = ? WHERE step = ?", (checkpoint, step))
    if changed.rowcount == 0:
        raise ConflictError(f"step {step} was never planned", "call plan_step before computing an update")


def set_meta(tx: Transaction, key: str, value: str) -> None:
    """Write or overwrite one value."""
    tx.connection.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


STEPS = (
    "SELECT s.step, s.policy_version, s.committed, s.checkpoint, m.rollout_id"
    " FROM steps s LEFT JOIN step_rollouts m ON m.step = s.step"
)
STEPS_ORDER = "ORDER BY s.step, m.position"
