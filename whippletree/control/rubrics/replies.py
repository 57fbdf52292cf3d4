"""What judges answered, in one SQLite file beside the run: nothing is asked twice, and every answer can be read again.

    key = digest of (model, rubric, messages, temperature, number of the vote)

Invariants (tests/control/test_rubric_replies.py):
- an answer that was kept is found again by its key, by any process, also after a kill; an unusable one is never found;
- the tokens of every answer count, whether it was usable or not.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Self

from whippletree.errors import StoreError

FILE = "rubrics.sqlite"  # in the run's directory
BUSY_SECONDS = 30.0

_TABLE = """CREATE TABLE IF NOT EXISTS replies (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    rubric TEXT NOT NULL,
    model TEXT NOT NULL,
    time REAL NOT NULL,
    tokens INTEGER NOT NULL,
    problem TEXT NOT NULL,
    reply TEXT NOT NULL
)"""
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS replies_by_key ON replies (key) WHERE problem = ''",
    "CREATE INDEX IF NOT EXISTS replies_by_rubric ON replies (rubric, tokens)",
)


class Replies:
    """The file, from any thread. Its methods block for a moment, and raise StoreError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._raw.execute("PRAGMA journal_mode=WAL")
                self._raw.execute("PRAGMA synchronous=FULL")
                for statement in (_TABLE, *_INDEXES):
                    self._raw.execute(statement)
            except sqlite3.Error:
                self._raw.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def find(self, key: str) -> str | None:
        """The usable answer under a key, if there is one."""
        found = self._run("SELECT reply FROM replies WHERE key = ? AND problem = '' ORDER BY number LIMIT 1", key)
        return str(found[0][0]) if found else None

    def keep(self, key: str, reply: str, *, rubric: str, model: str, tokens: int, problem: str = "") -> None:
        """Keep an answer, durably. `problem`: why it is unusable."""
        self._run(
            "INSERT INTO replies (key, rubric, model, time, tokens, problem, reply) VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(key, rubric, model, time.time(), tokens, problem, reply),
        )

    def tokens(self, rubric: str) -> int:
        """Tokens that this rubric has used so far."""
        return int(self._run("SELECT coalesce(sum(tokens), 0) FROM replies WHERE rubric = ?", rubric)[0][0])

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            self._raw.close()

    def _run(self, query: str, *values: str | float) -> list[tuple[str | float, ...]]:
        try:
            with self._turn:
                return self._raw.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(f"{self._path}: {error}", "check the disk; the file may be deleted, answers are then asked for anew")
