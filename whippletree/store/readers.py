"""Connections for reading: at most so many of one process at once.

    caller ──read──► free place? ──► connection (an idle one, or a new one) ──► rows
              waits for the place of another read, which every read gives back

Invariants (tests/store/test_store_readers.py):
- no more than `limit` connections are open at once, and none is used by two threads;
- after `close` no connection is left open, not even that of a read that was going on, and reads are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from whippletree.errors import StoreError
from whippletree.store.database import Connection, Database, Row, Value


class Readers:
    """A pool of reading connections. Safe from any thread."""

    def __init__(self, database: Database, limit: int) -> None:
        self._database = database
        self._places = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def read(self, query: str, *values: Value) -> list[Row]:
        """All rows of a query. Raises StoreError."""
        with self.connection() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection that no other thread uses meanwhile. Raises StoreError."""
        with self._places:
            with self._lock:
                if self._closed:
                    raise StoreError("the store is closed", "open it again, or read before closing it")
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._database.reader()
            try:
                yield connection
            finally:
                with self._lock:
                    keep = not self._closed
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when its read ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
