"""Tables of the store, numbered migrations, and connections.

Invariants (tests/store/test_store_schema.py):
- `PRAGMA user_version` counts the migrations applied; opening an older store applies the missing ones, in one transaction;
- a store of a newer version is refused, unchanged;
- every connection has WAL and a busy timeout, so an acknowledged commit survives a kill; with `power_safe` synchronous=FULL, so
  it survives a power cut too.

Columns hold what is searched or updated; `record` and `spec` hold the rest of the struct as JSON. Where a column repeats a
field of the struct, the column is the truth. Lists are ordered by `seq`, the order in which rows were written.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from whippletree.errors import StoreError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE rollouts (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            rollout_id TEXT NOT NULL UNIQUE,
            group_id TEXT NOT NULL,
            purpose TEXT NOT NULL,
            step INTEGER NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('queuing', 'running', 'succeeded', 'failed')),
            attempt INTEGER NOT NULL DEFAULT 0,
            reward REAL CHECK ((reward IS NOT NULL) = (state = 'succeeded')),
            cause TEXT CHECK ((cause IS NOT NULL) = (state = 'failed')),
            created REAL NOT NULL,
            updated REAL NOT NULL,
            spec TEXT NOT NULL
        )""",
        "CREATE INDEX rollouts_by_group ON rollouts (group_id, state)",
        "CREATE INDEX rollouts_by_state ON rollouts (state, purpose, seq)",
        "CREATE INDEX rollouts_by_step ON rollouts (step)",
        "CREATE INDEX rollouts_by_updated ON rollouts (updated)",
        """CREATE TABLE attempts (
            rollout_id TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            worker TEXT NOT NULL,
            sealed INTEGER NOT NULL DEFAULT 0,
            record TEXT NOT NULL,
            PRIMARY KEY (rollout_id, attempt)
        ) WITHOUT ROWID""",
        """CREATE TABLE calls (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            call_id TEXT NOT NULL UNIQUE,
            rollout_id TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            call_index INTEGER NOT NULL,
            delivered INTEGER NOT NULL DEFAULT 0,
            released INTEGER NOT NULL DEFAULT 0,
            segment TEXT NOT NULL,
            record TEXT NOT NULL
        )""",
        "CREATE INDEX calls_by_attempt ON calls (rollout_id, attempt, call_index)",
        "CREATE TABLE segments (segment TEXT PRIMARY KEY, live INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX segments_by_live ON segments (live)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            event_id TEXT NOT NULL UNIQUE,
            rollout_id TEXT NOT NULL,
            time REAL NOT NULL,
            record TEXT NOT NULL
        )""",
        "CREATE INDEX events_by_rollout ON events (rollout_id, time, seq)",
        """CREATE TABLE steps (
            step INTEGER PRIMARY KEY,
            policy_version INTEGER NOT NULL,
            committed INTEGER NOT NULL DEFAULT 0,
            checkpoint TEXT NOT NULL DEFAULT ''
        )""",
        """CREATE TABLE step_rollouts (
            rollout_id TEXT PRIMARY KEY,
            step INTEGER NOT NULL,
            position INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX step_rollouts_by_step ON step_rollouts (step, position)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    ),
    (
        "ALTER TABLE rollouts ADD COLUMN source TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE rollouts ADD COLUMN external INTEGER NOT NULL DEFAULT 0",
        "UPDATE rollouts SET source = json_extract(spec, '$.source'), external = json_extract(spec, '$.task_path') = ''",
        "DROP INDEX rollouts_by_state",
        "CREATE INDEX rollouts_by_state ON rollouts (state, seq)",
        "CREATE INDEX rollouts_by_queue ON rollouts (state, purpose, external, source, seq)",
        "CREATE INDEX rollouts_by_source ON rollouts (source, state)",
        "DROP INDEX rollouts_by_updated",
        "CREATE INDEX rollouts_by_updated ON rollouts (updated, seq)",
        "CREATE INDEX events_in_order ON events (rollout_id, seq)",
    ),
)


def connect(path: Path, busy_seconds: float, *, power_safe: bool = True) -> sqlite3.Connection:
    """A connection in autocommit mode that may be handed from thread to thread. Raises StoreError."""
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        _enable_wal(connection, busy_seconds)
        connection.execute(f"PRAGMA synchronous={'FULL' if power_safe else 'NORMAL'}")
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise StoreError(
            f"cannot open {path}: {error}", "check that the directory exists and that its disk is local"
        ) from error
    return connection


def _enable_wal(connection: sqlite3.Connection, seconds: float) -> None:
    """Turning WAL on needs the file alone for a moment, and SQLite does not wait for that by itself."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode == "wal":
                return
            raise StoreError(f"the journal mode is {mode}, not wal", "put the run directory on a local file system")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def migrate(connection: sqlite3.Connection, path: Path, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
    """Bring the tables up to date, once, whoever comes first. Raises StoreError for a store of a newer version."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > len(migrations):
                raise StoreError(
                    f"{path} has schema {version}, this version of whippletree knows {len(migrations)}",
                    "open it with the version that wrote it, or a newer one",
                )
            for statements in migrations[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise StoreError(f"cannot prepare {path}: {error}", "is it a store written by whippletree?") from error
