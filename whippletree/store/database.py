"""What the store needs of a database, and the few words that SQLite and PostgreSQL spell differently.

Statements are written once, with "?" for values, for both. A driver's errors never get past a Connection: each is a StoreError
that says what to do next.

Transactions come in two kinds. Ordered ones (whatever changes a state, or adds to what is listed) become visible one after
another, over all processes of the run: so a reader who goes on behind the newest row that it has seen misses none. The others
(calls and their delivery, the bulk of the writes) only have to be fenced, and commit side by side where the database can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Value = str | int | float | None
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Dialect:
    """Words of one database. `types` fill the places in the migrations (schema.py).

    `skip_locked` ends the selection of rows to claim, `hold` that of an attempt that a call is recorded of: until the end of
    the transaction nobody may seal it, and where somebody is about to, the statement fails at once instead of waiting. `clock`:
    the database's own time, in seconds since the epoch.
    """

    types: Mapping[str, str]
    clock: str
    skip_locked: str = ""
    hold: str = ""


class Cursor(Protocol):
    """The rows of one statement."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Row | None:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Row]:
        """The rest."""
        ...

    def __iter__(self) -> Iterator[Row]: ...


class Connection(Protocol):
    """One connection, of one thread at a time. Every method but `close` raises StoreError; `close` never raises."""

    dialect: Dialect

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open that can be rolled back to a savepoint."""
        ...

    def execute(self, query: str, values: Sequence[Value] = ()) -> Cursor:
        """Run one statement."""
        ...

    def execute_many(self, query: str, rows: Iterable[Sequence[Value]]) -> None:
        """Run one statement for each row of values."""
        ...

    def begin(self, *, ordered: bool) -> None:
        """Begin a transaction; an ordered one waits for the others. A connection that was lost before is made anew, once the
        server is there again."""
        ...

    def commit(self) -> bool:
        """Durable, and visible to every reader, when it returns True. False: the connection was lost and nothing of it is
        stored, so the transaction may be done again. When it raises, nothing of it is stored, unless the error says that this
        is not known."""
        ...

    def roll_back(self) -> None:
        """End a transaction that may be open; nothing of it is stored."""
        ...

    def schema_version(self) -> int:
        """How many migrations were applied; 0 for an empty database."""
        ...

    def set_schema_version(self, version: int) -> None:
        """Part of the transaction."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Database(Protocol):
    """Where the record lies."""

    place: str  # for people: a path, or an address without any secret

    def writer(self) -> Connection:
        """The connection of the process's writer thread. Raises StoreError."""
        ...

    def reader(self) -> Connection:
        """A connection that only reads. Raises StoreError."""
        ...
