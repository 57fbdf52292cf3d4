"""Leases: an attempt that is run from outside ends once nothing was heard of it for as long as its lease.

    begin(lease) ─► running ── renew (heartbeat, model call, event, update) ─► running ... ─► finish
                       └── nobody for `lease` seconds ─► end_lapsed, whoever asks first ─► queuing again | failed (host_lost)

Invariants (tests/store/test_store_leases.py, on SQLite and on PostgreSQL):
- the database's clock decides, so processes and nodes need not agree on the time;
- a lease that was renewed does not run out, also where somebody ends the others at that moment;
- each lapsed attempt is ended once, whoever asks; the failure table decides what becomes of its rollout;
- what the lost attempt still reports is fenced off.
"""

from __future__ import annotations

import msgspec

from whippletree.store import rows
from whippletree.store.failures import decide, row_of
from whippletree.store.transitions import LEASE, Ending
from whippletree.store.writer import Transaction
from whippletree.store.writes import close_attempt, find_attempt
from whippletree.types import Attempt, Cause, CauseClass

BATCH = 500  # attempts that one transaction ends


def renew(tx: Transaction, rollout_id: str, attempt: int, at_least: float) -> Attempt | None:
    """Begin a lease anew; None where that attempt is not under way. Raises StoreError when the rollout is unknown."""
    rollout = rows.find_rollout(tx.connection, rollout_id)
    if rollout.state != "running" or rollout.attempt != attempt:
        return None
    current = find_attempt(tx, rollout_id, attempt)
    if current.lease_seconds:
        tx.connection.execute(
            f"UPDATE attempts SET expires = {tx.connection.dialect.clock} + ? WHERE rollout_id = ? AND attempt = ?",
            (max(current.lease_seconds, at_least), rollout_id, attempt),
        )
    return current


def lapsed(clock: str) -> str:
    """The condition on attempts whose lease has run out; its value is the longest lease that is looked at."""
    return f"expires <= {clock} AND lease <= ?"


def end_lapsed(tx: Transaction, longest: float) -> list[Attempt]:
    """End attempts whose lease has run out, at most BATCH. One that somebody holds at this moment (a call of it is being
    recorded) is left for the next time."""
    dialect = tx.connection.dialect
    found = tx.connection.execute(
        f"SELECT rollout_id, attempt FROM attempts WHERE {lapsed(dialect.clock)} ORDER BY expires LIMIT {BATCH}"
        f" {dialect.skip_locked}",
        (longest,),
    ).fetchall()
    return [_end(tx, rollout_id, attempt) for rollout_id, attempt in found]


def _end(tx: Transaction, rollout_id: str, number: int) -> Attempt:
    """A lease is that of the attempt under way: every other end of an attempt takes it away."""
    attempt = find_attempt(tx, rollout_id, number)
    cause = Cause(
        cause=CauseClass.HOST_LOST,
        phase=LEASE,
        message=f"nothing was heard of worker {attempt.worker!r} for {attempt.lease_seconds:g} s: the attempt's lease ran out",
        next_step="look whether that worker is alive; let it send heartbeats, or ask for a longer lease",
    )
    spec = rows.find_rollout(tx.connection, rollout_id).spec
    again = decide(row_of(cause.cause), number, spec.max_attempts).requeue
    end = Ending(state="queuing" if again else "failed", cause=cause)
    return close_attempt(tx, attempt, msgspec.structs.replace(attempt, cause=cause), end)
