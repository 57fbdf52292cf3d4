from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whippletree.errors import StoreError
from whippletree.store import RecordStore, SegmentPayloadStore, StoreConfig, schema
from whippletree.store.database import Connection, Database
from whippletree.types import Event, PayloadKey

Opened = Callable[..., RecordStore]
EXTRA = ("CREATE TABLE extra (x {integer})", "INSERT INTO extra VALUES (1)")


@pytest.fixture
def connection(database: Database) -> Any:
    made = database.writer()
    yield made
    made.close()


def count(connection: Connection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def test_a_new_store_has_every_migration(database: Database, tmp_path: Path) -> None:
    RecordStore(database, SegmentPayloadStore(tmp_path / "payloads"), StoreConfig()).close()
    assert database.reader().schema_version() == len(schema.MIGRATIONS)


def test_missing_migrations_are_applied_once(database: Database, connection: Connection) -> None:
    schema.migrate(connection, database.place)
    later = (*schema.MIGRATIONS, EXTRA)
    schema.migrate(connection, database.place, later)
    schema.migrate(connection, database.place, later)  # nothing left to do
    assert count(connection, "extra") == 1
    assert connection.schema_version() == len(later)


def test_a_failing_migration_changes_nothing(database: Database, connection: Connection) -> None:
    schema.migrate(connection, database.place)
    with pytest.raises(StoreError, match="syntax error"):
        schema.migrate(connection, database.place, (*schema.MIGRATIONS, (*EXTRA, "NOT SQL")))
    assert connection.schema_version() == len(schema.MIGRATIONS)
    with pytest.raises(StoreError, match="extra"):
        count(connection, "extra")


def test_a_store_of_a_newer_version_is_refused_unchanged(database: Database, connection: Connection, tmp_path: Path) -> None:
    later = (*schema.MIGRATIONS, EXTRA)
    schema.migrate(connection, database.place, later)
    with pytest.raises(StoreError, match=f"has schema {len(later)}, this version of whippletree knows {len(later) - 1}"):
        RecordStore(database, SegmentPayloadStore(tmp_path / "payloads"), StoreConfig())
    assert connection.schema_version() == len(later)
    assert count(connection, "extra") == 1


def test_many_may_create_the_store_at_once(opened: Opened, tmp_path: Path) -> None:
    errors: list[Exception] = []

    def open_it(number: int) -> None:
        try:
            with opened(tmp_path / "run" / "store") as store:
                store.set_meta(str(number), "here").result()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with opened(tmp_path / "run" / "store") as store:
        assert [store.meta(str(number)) for number in range(8)] == ["here"] * 8  # all of them opened the same one


def test_a_directory_that_cannot_be_made_is_refused(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot create"):
        opened(tmp_path / "file" / "store")


def test_a_store_of_the_first_schema_is_brought_up_with_everything_in_it(
    database: Database, connection: Connection, tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written with the first migration's tables, in more rows than a computed step takes at once."""
    monkeypatch.setattr(schema, "BATCH", 2)
    schema.migrate(connection, database.place, schema.MIGRATIONS[:1])
    payloads = SegmentPayloadStore(tmp_path / "payloads")
    key = payloads.put([make.payload()])[0]
    specs = [make.spec(name, source=f"s-{name}", task_path="" if name == "e" else "/tasks/t") for name in "abcde"]
    for spec in specs:
        connection.execute(
            "INSERT INTO rollouts (rollout_id, group_id, purpose, step, state, attempt, created, updated, spec)"
            " VALUES (?, ?, 'train', 0, ?, ?, 1.0, 1.0, ?)",
            (spec.rollout_id, spec.group_id, *(("running", 1) if spec is specs[0] else ("queuing", 0)), encoded(spec)),
        )
    attempt = make.rewarded("a")
    connection.execute(
        "INSERT INTO attempts (rollout_id, attempt, worker, record) VALUES ('a', 1, 'w', ?)",
        (encoded(msgspec.structs.replace(attempt, result=None)),),
    )
    call = make.call("c", rollout_id="a", payload=key)
    connection.execute(
        "INSERT INTO calls (call_id, rollout_id, attempt, call_index, segment, record) VALUES ('c', 'a', 1, 0, ?, ?)",
        (key.segment, encoded(call)),
    )
    connection.execute("INSERT INTO segments (segment, live) VALUES (?, 1)", (key.segment,))
    events = [Event(event_id=f"e{n}", rollout_id="a", attempt=1, time=float(n), kind=f"k{n % 2}") for n in range(5)]
    for event in events:
        connection.execute(
            "INSERT INTO events (event_id, rollout_id, time, record) VALUES (?, 'a', ?, ?)",
            (event.event_id, event.time, encoded(event)),
        )
    with RecordStore(database, payloads, StoreConfig()) as store:
        assert [rollout.spec for rollout in store.page().rollouts] == specs
        assert [rollout.spec.rollout_id for rollout in store.page(source="s-c").rollouts] == ["c"]
        assert store.calls("a", 1) == [call]
        assert store.payload(call).sampled_ids.tolist() == [100, 101]
        assert store.event_page("a", kind="k1").events == (events[1], events[3])
        assert [one.rollout_id for one in store.claim("w", 9).result()] == ["b", "c", "d"]  # the last one is external
        assert store.attempts("a")[0].sealed is False
        assert isinstance(store.record_call(make.call("d", rollout_id="a"), make.payload()).result().payload, PayloadKey)
        assert store.release(["a"]) == 2


def encoded(record: msgspec.Struct) -> str:
    return msgspec.json.encode(record).decode()
