"""Tables of the store, as numbered migrations for every database.

Invariants (tests/store/test_store_schema.py):
- the store's schema version counts the migrations applied; opening an older store applies the missing ones, in one transaction,
  once, whoever comes first;
- a store of a newer version is refused, unchanged.

Columns hold what is searched or updated; `record` and `spec` hold the rest of the struct as JSON. Where a column repeats a
field of the struct, the column is the truth. Lists are ordered by `seq`, the order in which rows were written.

A migration is a list of steps: a statement, whose {words} the dialect fills in, or a function where records are computed on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice

from whippletree.errors import StoreError
from whippletree.store import rows
from whippletree.store.database import Connection
from whippletree.types import Event, RolloutSpec

Step = str | Callable[[Connection], None]
Migrations = tuple[tuple[Step, ...], ...]

BATCH = 1000  # rows that a computed step holds in memory


def _fill_sources(connection: Connection) -> None:
    """`source` and `external` of rollouts that were written before there were such columns."""
    _compute(connection, "rollouts", "spec", "source = ?, external = ?", _source_of)


def _source_of(text: str) -> tuple[str, int]:
    spec = rows.decode(RolloutSpec, text)
    return spec.source, int(spec.external)


def _fill_kinds(connection: Connection) -> None:
    """`kind` of events that were written before there was such a column."""
    _compute(connection, "events", "record", "kind = ?", lambda text: (rows.decode(Event, text).kind,))


def _compute(
    connection: Connection, table: str, column: str, assign: str, values: Callable[[str], tuple[str | int, ...]]
) -> None:
    last = 0
    while True:
        query = f"SELECT seq, {column} FROM {table} WHERE seq > ? ORDER BY seq LIMIT ?"
        batch = connection.execute(query, (last, BATCH)).fetchall()
        if not batch:
            return
        connection.execute_many(f"UPDATE {table} SET {assign} WHERE seq = ?", [(*values(text), seq) for seq, text in batch])
        last = batch[-1][0]


MIGRATIONS: Migrations = (
    (
        """CREATE TABLE rollouts (
            seq {serial},
            rollout_id {text} NOT NULL UNIQUE,
            group_id {text} NOT NULL,
            purpose {text} NOT NULL,
            step {integer} NOT NULL,
            state {text} NOT NULL CHECK (state IN ('queuing', 'running', 'succeeded', 'failed')),
            attempt {integer} NOT NULL DEFAULT 0,
            reward {real} CHECK ((reward IS NOT NULL) = (state = 'succeeded')),
            cause {text} CHECK ((cause IS NOT NULL) = (state = 'failed')),
            created {real} NOT NULL,
            updated {real} NOT NULL,
            spec {text} NOT NULL
        )""",
        "CREATE INDEX rollouts_by_group ON rollouts (group_id, state)",
        "CREATE INDEX rollouts_by_state ON rollouts (state, purpose, seq)",
        "CREATE INDEX rollouts_by_step ON rollouts (step)",
        "CREATE INDEX rollouts_by_updated ON rollouts (updated)",
        """CREATE TABLE attempts (
            rollout_id {text} NOT NULL,
            attempt {integer} NOT NULL,
            worker {text} NOT NULL,
            sealed {integer} NOT NULL DEFAULT 0,
            record {text} NOT NULL,
            PRIMARY KEY (rollout_id, attempt)
        ){clustered}""",
        """CREATE TABLE calls (
            seq {serial},
            call_id {text} NOT NULL UNIQUE,
            rollout_id {text} NOT NULL,
            attempt {integer} NOT NULL,
            call_index {integer} NOT NULL,
            delivered {integer} NOT NULL DEFAULT 0,
            released {integer} NOT NULL DEFAULT 0,
            segment {text} NOT NULL,
            record {text} NOT NULL
        )""",
        "CREATE INDEX calls_by_attempt ON calls (rollout_id, attempt, call_index)",
        "CREATE TABLE segments (segment {text} PRIMARY KEY, live {integer} NOT NULL){clustered}",
        "CREATE INDEX segments_by_live ON segments (live)",
        """CREATE TABLE events (
            seq {serial},
            event_id {text} NOT NULL UNIQUE,
            rollout_id {text} NOT NULL,
            time {real} NOT NULL,
            record {text} NOT NULL
        )""",
        "CREATE INDEX events_by_rollout ON events (rollout_id, time, seq)",
        """CREATE TABLE steps (
            step {integer} PRIMARY KEY,
            policy_version {integer} NOT NULL,
            committed {integer} NOT NULL DEFAULT 0,
            checkpoint {text} NOT NULL DEFAULT ''
        )""",
        """CREATE TABLE step_rollouts (
            rollout_id {text} PRIMARY KEY,
            step {integer} NOT NULL,
            position {integer} NOT NULL
        ){clustered}""",
        "CREATE UNIQUE INDEX step_rollouts_by_step ON step_rollouts (step, position)",
        "CREATE TABLE meta (key {text} PRIMARY KEY, value {text} NOT NULL){clustered}",
    ),
    (
        "ALTER TABLE rollouts ADD COLUMN source {text} NOT NULL DEFAULT ''",
        "ALTER TABLE rollouts ADD COLUMN external {integer} NOT NULL DEFAULT 0",
        _fill_sources,
        "DROP INDEX rollouts_by_state",
        "CREATE INDEX rollouts_by_state ON rollouts (state, seq)",
        "CREATE INDEX rollouts_by_queue ON rollouts (state, purpose, external, source, seq)",
        "CREATE INDEX rollouts_by_source ON rollouts (source, state)",
        "DROP INDEX rollouts_by_updated",
        "CREATE INDEX rollouts_by_updated ON rollouts (updated, seq)",
        "CREATE INDEX events_in_order ON events (rollout_id, seq)",
    ),
    (
        "ALTER TABLE events ADD COLUMN kind {text} NOT NULL DEFAULT ''",
        _fill_kinds,
        "CREATE INDEX calls_by_segment ON calls (segment) WHERE released = 0",
        "DROP TABLE segments",
    ),
    (
        "ALTER TABLE attempts ADD COLUMN lease {real} NOT NULL DEFAULT 0",
        "ALTER TABLE attempts ADD COLUMN expires {real}",
        "CREATE INDEX attempts_by_expiry ON attempts (expires) WHERE expires IS NOT NULL",
    ),
    (
        """CREATE TABLE call_columns (
            call_id {text} NOT NULL,
            name {text} NOT NULL,
            rollout_id {text} NOT NULL,
            attempt {integer} NOT NULL,
            released {integer} NOT NULL DEFAULT 0,
            segment {text} NOT NULL,
            record {text} NOT NULL,
            PRIMARY KEY (call_id, name)
        ){clustered}""",
        "CREATE INDEX call_columns_by_attempt ON call_columns (rollout_id, attempt, name)",
        "CREATE INDEX call_columns_by_segment ON call_columns (segment) WHERE released = 0",
    ),
)


def migrate(connection: Connection, place: str, migrations: Migrations = MIGRATIONS) -> None:
    """Bring the tables up to date, once, whoever comes first. Raises StoreError for a store of a newer version."""
    try:
        connection.begin(ordered=True)
        version = connection.schema_version()
        if version > len(migrations):
            raise StoreError(
                f"{place} has schema {version}, this version of whippletree knows {len(migrations)}",
                "open it with the version that wrote it, or a newer one",
            )
        for step in chain.from_iterable(islice(migrations, version, None)):
            if callable(step):
                step(connection)
            else:
                connection.execute(step.format_map(connection.dialect.types))
        connection.set_schema_version(len(migrations))
        if not connection.commit():
            raise StoreError(f"the connection to {place} was lost", "open the store again")
    finally:
        connection.roll_back()
