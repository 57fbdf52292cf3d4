"""PostgreSQL: the database of several nodes.

Each run has a schema of its own (place.py). Ordered transactions hold one advisory lock of it from their beginning to the end
of their commit; the others run side by side, and a call holds its attempt with a row lock until it is committed.

    node 1, writer: BEGIN; lock ─► write … write ─► COMMIT ─┐ lock is free
    node 2, writer:         BEGIN; lock … waits ≤ busy ─────┘► write … write ─► COMMIT

Invariants (tests/store/test_store_postgres.py, test_store_postgres_crash.py):
- an acknowledged commit survives kill -9 of client and server, whatever the server's own synchronous_commit says;
- a server that goes away is waited for as long as for a lock; then that is a StoreError, and the next transaction or read
  connects anew. A transaction that was lost before its commit is done again;
- of a commit that was cut off the truth is told: each writer counts its groups in the transaction itself, in a row of its own,
  and takes that row away on a new connection. That waits for a commit that is under way, says whether it arrived, and makes one
  that the server has not read yet fail;
- locks wait no longer than `busy_seconds`, a transaction whose client stands still is ended by the server after half of it, and
  a connection to a host that is gone is given up.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from whippletree.errors import StoreError
from whippletree.protocols import PayloadStore
from whippletree.store.config import StoreConfig
from whippletree.store.database import Cursor, Dialect, Value
from whippletree.store.place import Place
from whippletree.store.record import RecordStore

try:
    import psycopg
    from psycopg.pq import TransactionStatus
except ImportError as missing:
    raise StoreError(f"PostgreSQL needs psycopg: {missing}", "pip install 'whippletree[postgres]'") from missing

DIALECT = Dialect(
    types={
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "text": 'TEXT COLLATE "C"',  # byte order, as in SQLite
        "integer": "BIGINT",
        "real": "DOUBLE PRECISION",
        "clustered": "",
    },
    clock="CAST(extract(epoch FROM statement_timestamp()) AS DOUBLE PRECISION)",
    skip_locked="FOR UPDATE SKIP LOCKED",
    hold="FOR SHARE NOWAIT",
)
RETRY_SECONDS = 0.1  # between attempts to reach a server that is starting
UNKNOWN = "repeat the write: what is stored already is not stored twice"
LOST = "is the server up? The next read or write connects anew"

Raw = Any  # psycopg.Connection
R = TypeVar("R")


class PostgresConnection:
    """database.Connection that makes itself anew when it was lost outside a transaction."""

    dialect = DIALECT

    def __init__(self, database: PostgresDatabase) -> None:
        """Raises StoreError."""
        self._database = database
        self._inside = False  # between begin and the end of the transaction, as far as we know
        self._writer = 0  # the row of `writers` that only this connection changes; 0: none yet
        self._group = 0
        self._raw = database.open()

    @property
    def in_transaction(self) -> bool:
        """False too once the connection is lost."""
        return self._raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def execute(self, query: str, values: Sequence[Value] = ()) -> Cursor:
        """Run one statement; outside a transaction, that is a read, once more if the connection was lost."""

        def run() -> Cursor:
            cursor: Cursor = self._raw.execute(_placed(query), tuple(values))
            return cursor

        return self._checked(run) if self._inside else self._again(run)

    def execute_many(self, query: str, rows: Iterable[Sequence[Value]]) -> None:
        """Run one statement for each row of values, inside a transaction."""
        given = list(rows)
        if given:
            self._checked(lambda: self._raw.cursor().executemany(_placed(query), given))

    def begin(self, *, ordered: bool) -> None:
        """Begin; an ordered transaction waits for the schema's lock."""
        if not self._writer:
            self._writer = self._again(self._sign_on)
        lock = f"; SELECT pg_advisory_xact_lock({self._database.lock})" if ordered else ""
        self._again(lambda: self._raw.execute(f"BEGIN{lock}", prepare=False))
        self._inside = True
        self._group += 1

    def commit(self) -> bool:
        """Count the group and commit it. Where the connection is lost meanwhile, find out what became of it."""
        self._inside = False
        count = f"WITH mine AS (UPDATE writers SET groups = {self._group} WHERE writer = {self._writer} RETURNING 1)"
        try:
            self._raw.execute(f"{count} SELECT 1 / count(*) FROM mine; COMMIT", prepare=False)  # fails without the row
        except psycopg.Error as error:
            if not self._raw.closed:
                raise self._refused(error) from error
            return self._arrived()
        return True

    def roll_back(self) -> None:
        """End a transaction that may be open."""
        self._inside = False
        if self.in_transaction:
            with contextlib.suppress(psycopg.Error):  # the server ends it itself when the connection is gone
                self._raw.execute("ROLLBACK")

    def schema_version(self) -> int:
        """How many migrations were applied."""
        row = self.execute("SELECT version FROM schema_version").fetchone()
        return int(row[0]) if row else 0

    def set_schema_version(self, version: int) -> None:
        """Part of the transaction."""
        self.execute("UPDATE schema_version SET version = ?", (version,))

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(psycopg.Error):
            if self._writer and not self._raw.closed:
                self._raw.execute(f"DELETE FROM writers WHERE writer = {self._writer}")
        self._raw.close()

    def _sign_on(self) -> int:
        return int(self._raw.execute("INSERT INTO writers (groups) VALUES (0) RETURNING writer").fetchone()[0])

    def _again(self, run: Callable[[], R]) -> R:
        """Run outside a transaction: once more, on a new connection, if the connection was lost. Raises StoreError."""
        if not self._raw.closed:
            try:
                return run()
            except psycopg.Error as error:
                if not self._raw.closed:
                    raise self._refused(error) from error
        self._raw = self._database.open()  # the old one is closed
        return self._checked(run)

    def _checked(self, run: Callable[[], R]) -> R:
        try:
            return run()
        except psycopg.Error as error:
            raise self._refused(error) from error

    def _arrived(self) -> bool:
        """Whether a commit that was cut off is stored; it is settled then. Raises StoreError if the server stays away."""
        deadline = time.monotonic() + self._database.patience
        while True:
            try:
                self._raw.close()
                self._raw = self._database.open(deadline)
                row = self._raw.execute(f"DELETE FROM writers WHERE writer = {self._writer} RETURNING groups").fetchone()
                self._writer = 0
                if row is not None:
                    return bool(row[0] == self._group)
                problem: Exception = StoreError("the answer to that question was lost too")
                deadline = 0.0
            except (StoreError, psycopg.Error) as error:
                problem = error
            if time.monotonic() > deadline:
                self._writer = 0
                cause = f"the connection was lost during a commit, and whether it is stored is not known: {_line(problem)}"
                raise StoreError(cause, UNKNOWN) from problem

    def _refused(self, error: psycopg.Error) -> StoreError:
        next_step = LOST if self._raw.closed else "nothing of it is stored; see the server's log"
        return StoreError(f"{self._database.place}: {_line(error)}", next_step)


class PostgresDatabase:
    """database.Database: one schema of a PostgreSQL database."""

    def __init__(self, place: Place, *, connect_seconds: float, busy_seconds: float) -> None:
        self.place = f"{place.url} schema {place.schema}"
        self.patience = busy_seconds
        self._seen = False
        self.lock = int.from_bytes(hashlib.sha256(place.schema.encode()).digest()[:8], "big", signed=True)
        self._place = place
        self._connect_seconds = connect_seconds
        self._busy = max(2, round(busy_seconds * 1000))  # milliseconds

    def writer(self) -> PostgresConnection:
        """Raises StoreError."""
        return PostgresConnection(self)

    def reader(self) -> PostgresConnection:
        """Raises StoreError."""
        return PostgresConnection(self)

    def open(self, deadline: float = 0.0) -> Raw:
        """A connection of the driver, set up for this store. A server that was there before is waited for until the deadline
        (of the monotonic clock; by default for as long as for a lock). Raises StoreError."""
        deadline = deadline or time.monotonic() + self.patience
        while True:
            try:
                raw = self._open()
            except StoreError:
                if not self._seen or time.monotonic() > deadline:
                    raise
            else:
                self._seen = True
                return raw
            time.sleep(RETRY_SECONDS)

    def _open(self) -> Raw:
        raw = connect(self._place, self._connect_seconds)
        try:
            raw.execute(
                f"SET search_path TO {self._place.schema}; SET lock_timeout TO {self._busy};"
                f" SET idle_in_transaction_session_timeout TO {self._busy // 2};"  # so that whoever waits gets the lock in time
                " SET default_transaction_isolation TO 'read committed';"
                " SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
                prepare=False,
            )
            if raw.execute("SELECT to_regclass('schema_version')").fetchone() == (None,):
                cause = f"{self.place}: the record of this run is not there"
                raise StoreError(cause, "is it the right database? Restore the schema from a copy, or begin a new run")
        except psycopg.Error as error:
            raw.close()
            raise StoreError(f"cannot use {self.place}: {_line(error)}", LOST) from error
        except StoreError:
            raw.close()
            raise
        return raw


class PostgresStore(RecordStore):
    """The record in a schema of a PostgreSQL database."""

    def __init__(self, place: Place, payloads: PayloadStore, config: StoreConfig) -> None:
        """Raises StoreError."""
        database = PostgresDatabase(place, connect_seconds=config.connect_seconds, busy_seconds=config.busy_seconds)
        super().__init__(database, payloads, config)


def connect(place: Place, seconds: float) -> Raw:
    """A connection in autocommit mode. Raises StoreError, which names no password."""
    options: dict[str, Any] = {"autocommit": True, "connect_timeout": round(seconds), "tcp_user_timeout": round(seconds * 1000)}
    options |= {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "application_name": "whippletree"}
    if place.password_file:
        try:
            lines = Path(place.password_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            cause = f"store.password_file {place.password_file} cannot be read: {error.__class__.__name__}"
            raise StoreError(cause, "write the password there, as its first line") from error
        options["password"] = lines[0].strip() if lines else ""
    try:
        return psycopg.connect(place.url, **options)
    except psycopg.Error as error:
        raise StoreError(f"cannot connect to {place.url}: {_line(error)}", LOST) from error


def create_schema(place: Place, seconds: float) -> None:
    """Make the run's schema, still without tables. Raises StoreError."""
    with contextlib.closing(connect(place, seconds)) as raw:
        try:
            raw.execute(
                f"BEGIN; CREATE SCHEMA {place.schema}; SET LOCAL search_path TO {place.schema};"
                " CREATE TABLE schema_version (version BIGINT NOT NULL); INSERT INTO schema_version VALUES (0);"
                " CREATE TABLE writers (writer BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
                " groups BIGINT NOT NULL DEFAULT 0); COMMIT",
                prepare=False,
            )
        except psycopg.Error as error:
            cause = f"cannot create schema {place.schema} in {place.url}: {_line(error)}"
            raise StoreError(cause, "GRANT CREATE ON DATABASE … TO the store's user") from error


def drop_schema(place: Place, seconds: float) -> None:
    """Remove the run's schema and everything in it. Raises StoreError."""
    with contextlib.closing(connect(place, seconds)) as raw:
        try:
            raw.execute(f"DROP SCHEMA IF EXISTS {place.schema} CASCADE")
        except psycopg.Error as error:
            raise StoreError(f"cannot drop schema {place.schema} in {place.url}: {_line(error)}", LOST) from error


def _placed(query: str) -> str:
    """The statement with psycopg's marks for values."""
    return query.replace("?", "%s")


def _line(error: Exception) -> str:
    """A driver's message as one line."""
    return " ".join(str(error).split()) or error.__class__.__name__
