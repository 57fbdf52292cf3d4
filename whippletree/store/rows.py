"""Rows to structs and back. Columns are the truth where they repeat a field of the stored record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from whippletree.errors import StoreError
from whippletree.store.cursors import Order, cursor_of
from whippletree.store.database import Connection, Row
from whippletree.types import Attempt, Call, Cause, Event, EventPage, PayloadKey, Rollout, RolloutPage, RolloutSpec, StepRecord

T = TypeVar("T", bound=msgspec.Struct)

ROLLOUT = "spec, state, created, updated, attempt, reward, cause"
ATTEMPT = "record, sealed"
CALL = "record, delivered"

_DECODERS: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Attempt, Call, Cause, Event, PayloadKey, RolloutSpec)
}


def encode(record: msgspec.Struct) -> str:
    """The struct as JSON text."""
    return msgspec.json.encode(record).decode()


def decode(kind: type[T], text: str) -> T:
    """The struct of a stored JSON text. Raises StoreError when it does not fit."""
    try:
        return _DECODERS[kind].decode(text)  # type: ignore[no-any-return]
    except msgspec.DecodeError as error:
        raise StoreError(f"a stored {kind.__name__} cannot be read: {error}", "was the store edited by hand?") from error


def rollout(row: Row) -> Rollout:
    """From the columns ROLLOUT."""
    spec, state, created, updated, attempt, reward, cause = row
    return Rollout(
        spec=decode(RolloutSpec, spec),
        state=state,
        created=created,
        updated=updated,
        attempt=attempt,
        reward=reward,
        cause=None if cause is None else decode(Cause, cause),
    )


def page(rows: Sequence[Row], order: Order, after: str, limit: int) -> RolloutPage:
    """From the columns ROLLOUT and seq, of one row more than `limit` where there is one."""
    kept = rows[:limit]
    last = after if not kept else cursor_of(order, (kept[-1][3], kept[-1][-1]))
    return RolloutPage(rollouts=tuple(rollout(row[:-1]) for row in kept), next=last, more=len(rows) > limit)


def event_page(rows: Sequence[Row], after: int, limit: int) -> EventPage:
    """From rows (record, seq), of one row more than `limit` where there is one."""
    kept = rows[:limit]
    events = tuple(decode(Event, record) for record, _ in kept)
    return EventPage(events=events, next=kept[-1][1] if kept else after, more=len(rows) > limit)


def attempt(row: Row) -> Attempt:
    """From the columns ATTEMPT."""
    return msgspec.structs.replace(decode(Attempt, row[0]), sealed=bool(row[1]))


def call(row: Row) -> Call:
    """From the columns CALL."""
    return msgspec.structs.replace(decode(Call, row[0]), delivered=bool(row[1]))


def steps(rows: Sequence[Row]) -> list[StepRecord]:
    """From rows (step, policy_version, committed, checkpoint, rollout_id or None), ordered by step and position."""
    members: dict[int, list[str]] = {}
    heads: dict[int, Row] = {}
    for step, version, committed, checkpoint, rollout_id in rows:
        heads[step] = (version, committed, checkpoint)
        if rollout_id is not None:
            members.setdefault(step, []).append(rollout_id)
    return [
        StepRecord(
            step=step,
            rollout_ids=tuple(members.get(step, ())),
            policy_version=version,
            committed=bool(committed),
            checkpoint=checkpoint,
        )
        for step, (version, committed, checkpoint) in heads.items()
    ]


def find_rollout(connection: Connection, rollout_id: str) -> Rollout:
    """Raises StoreError when unknown."""
    row = connection.execute(f"SELECT {ROLLOUT} FROM rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone()
    if row is None:
        raise StoreError(f"no rollout {rollout_id!r}", "create it first; `whippletree rollouts list` names those of a run")
    return rollout(row)


def wanted(connection: Connection, segment: str) -> bool:
    """Whether a payload in this segment, or a column beside one, has not been released."""
    query = "SELECT 1 FROM {} WHERE segment = ? AND released = 0 LIMIT 1"
    return any(connection.execute(query.format(table), (segment,)).fetchone() for table in ("calls", "call_columns"))
