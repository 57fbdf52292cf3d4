"""SQLite: the database of one machine, a file in the store's directory.

Invariants (tests/store/test_store_sqlite.py):
- every connection has WAL and a busy timeout, so an acknowledged commit survives a kill; with `power_safe` synchronous=FULL, so
  it survives a power cut too.

Every transaction takes the file's write lock at its beginning, so all of them are ordered.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from whippletree.errors import StoreError
from whippletree.protocols import PayloadStore
from whippletree.store.config import StoreConfig
from whippletree.store.database import Cursor, Dialect, Value
from whippletree.store.record import RecordStore

FILE = "store.sqlite"

DIALECT = Dialect(
    types={
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "text": "TEXT",
        "integer": "INTEGER",
        "real": "REAL",
        "clustered": " WITHOUT ROWID",
    },
    clock="((julianday('now') - 2440587.5) * 86400.0)",
)


class SqliteConnection:
    """database.Connection on one file; it may be handed from thread to thread."""

    dialect = DIALECT

    def __init__(self, path: Path, busy_seconds: float, *, power_safe: bool = True) -> None:
        """Raises StoreError."""
        self._path = path
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
        self._raw = connection

    @property
    def in_transaction(self) -> bool:
        """False too once SQLite has rolled back by itself (disk full, I/O error)."""
        return self._raw.in_transaction

    def execute(self, query: str, values: Sequence[Value] = ()) -> Cursor:
        """Run one statement."""
        try:
            return self._raw.execute(query, values)
        except sqlite3.Error as error:
            raise self._refused(error) from error

    def execute_many(self, query: str, rows: Iterable[Sequence[Value]]) -> None:
        """Run one statement for each row of values."""
        try:
            self._raw.executemany(query, rows)
        except sqlite3.Error as error:
            raise self._refused(error) from error

    def begin(self, *, ordered: bool) -> None:
        """Take the write lock. Raises StoreError when another process holds it for longer than the busy timeout."""
        self.execute("BEGIN IMMEDIATE")

    def commit(self) -> bool:
        """Raises StoreError; then nothing of it is stored."""
        self.execute("COMMIT")
        return True

    def roll_back(self) -> None:
        """End a transaction that may be open."""
        if self._raw.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite has ended the transaction itself
                self._raw.execute("ROLLBACK")

    def schema_version(self) -> int:
        """How many migrations were applied."""
        row = self.execute("PRAGMA user_version").fetchone()
        return int(row[0]) if row else 0

    def set_schema_version(self, version: int) -> None:
        """Part of the transaction."""
        self.execute(f"PRAGMA user_version = {version}")

    def close(self) -> None:
        """Let go of the file."""
        self._raw.close()

    def _refused(self, error: sqlite3.Error) -> StoreError:
        return StoreError(f"{self._path}: {error}", "check the disk, and that whippletree wrote this file")


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


class SqliteDatabase:
    """database.Database: the file `store.sqlite` of a directory."""

    def __init__(self, path: Path, busy_seconds: float, *, power_safe: bool) -> None:
        self.place = str(path)
        self._path = path
        self._busy_seconds = busy_seconds
        self._power_safe = power_safe

    def writer(self) -> SqliteConnection:
        """Raises StoreError."""
        return SqliteConnection(self._path, self._busy_seconds, power_safe=self._power_safe)

    def reader(self) -> SqliteConnection:
        """Raises StoreError."""
        return SqliteConnection(self._path, self._busy_seconds)


class SqliteStore(RecordStore):
    """The record in `store.sqlite` of the run's store directory."""

    def __init__(self, directory: Path, payloads: PayloadStore, config: StoreConfig) -> None:
        """Raises StoreError."""
        power_safe = config.durability == "power"
        super().__init__(
            SqliteDatabase(directory / FILE, config.busy_seconds, power_safe=power_safe),
            payloads,
            config,
            flush_seconds=0.0 if power_safe else config.flush_seconds,
        )
