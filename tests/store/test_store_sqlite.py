"""SQLite's own: connections, and files that are none of its."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.errors import StoreError
from whippletree.store import open_store
from whippletree.store.sqlite import SqliteConnection


@pytest.mark.parametrize(("power_safe", "synchronous"), [(True, 2), (False, 1)])
def test_every_connection_waits_and_syncs(tmp_path: Path, power_safe: bool, synchronous: int) -> None:
    connection = SqliteConnection(tmp_path / "x.sqlite", 5.0, power_safe=power_safe)
    names = ("journal_mode", "synchronous", "busy_timeout")
    assert [connection.execute(f"PRAGMA {name}").fetchone() for name in names] == [("wal",), (synchronous,), (5000,)]
    connection.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        open_store(tmp_path)
