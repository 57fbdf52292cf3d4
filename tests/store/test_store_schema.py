from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whippletree.errors import StoreError
from whippletree.store import open_store, schema


def version(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_new_store_has_every_migration(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    assert version(tmp_path / "store.sqlite") == len(schema.MIGRATIONS)


def test_missing_migrations_are_applied_and_data_stays(tmp_path: Path, make: Any) -> None:
    with open_store(tmp_path) as store:
        store.create_rollouts([make.spec()]).result()
    path = tmp_path / "store.sqlite"
    connection = schema.connect(path, 5.0)
    later = (*schema.MIGRATIONS, ("CREATE TABLE extra (x)", "INSERT INTO extra VALUES (1)"))
    schema.migrate(connection, path, later)
    schema.migrate(connection, path, later)  # nothing left to do
    assert connection.execute("SELECT count(*) FROM extra").fetchone()[0] == 1
    assert connection.execute("SELECT count(*) FROM rollouts").fetchone()[0] == 1
    connection.close()


def test_a_failing_migration_changes_nothing(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    path = tmp_path / "store.sqlite"
    connection = schema.connect(path, 5.0)
    with pytest.raises(StoreError, match="cannot prepare"):
        schema.migrate(connection, path, (*schema.MIGRATIONS, ("CREATE TABLE extra (x)", "NOT SQL")))
    connection.close()
    assert version(path) == len(schema.MIGRATIONS)
    with sqlite3.connect(path) as plain:
        assert plain.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone()[0] == 0


def test_a_store_of_a_newer_version_is_refused_unchanged(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    path = tmp_path / "store.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="schema 99"):
        open_store(tmp_path)
    assert version(path) == 99


def test_every_connection_waits_and_syncs(tmp_path: Path) -> None:
    connection = schema.connect(tmp_path / "x.sqlite", 5.0)
    pragma = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "busy_timeout")
    }
    connection.close()
    assert pragma == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5000}


def test_many_may_create_the_store_at_once(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def open_it() -> None:
        try:
            open_store(tmp_path).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        open_store(tmp_path)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create"):
        open_store(tmp_path / "file" / "store")


def test_a_store_of_the_first_schema_is_brought_up_with_its_rollouts(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "store.sqlite"
    connection = schema.connect(path, 5.0)
    schema.migrate(connection, path, schema.MIGRATIONS[:1])
    specs = [make.spec("a", source="s1"), make.spec("b", source="s2", task_path="")]
    for spec in specs:
        connection.execute(
            "INSERT INTO rollouts (rollout_id, group_id, purpose, step, state, created, updated, spec)"
            " VALUES (?, ?, 'train', 0, 'queuing', 1.0, 1.0, ?)",
            (spec.rollout_id, spec.group_id, msgspec.json.encode(spec).decode()),
        )
    connection.close()
    with open_store(tmp_path) as store:
        assert [rollout.spec for rollout in store.page().rollouts] == specs
        assert [rollout.spec.rollout_id for rollout in store.page(source="s2").rollouts] == ["b"]
        assert [attempt.rollout_id for attempt in store.claim("w", 5).result()] == ["a"]  # the other one is external
