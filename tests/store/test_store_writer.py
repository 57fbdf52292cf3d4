from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whippletree.errors import ConflictError, StoreError
from whippletree.store import SegmentPayloadStore, schema
from whippletree.store.database import Database
from whippletree.store.writer import GroupWriter, Transaction
from whippletree.types import PayloadKey


class Bench:
    """A writer on a table of its own, and a second connection that sees only what was committed."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        connection = database.writer()
        numbers = ("CREATE TABLE numbers (place {serial}, number {integer} UNIQUE)",)
        schema.migrate(connection, database.place, (*schema.MIGRATIONS, numbers))
        self.payloads = SegmentPayloadStore(directory / "payloads")
        self.writer = GroupWriter(connection, self.payloads)
        self.other = database.writer()

    def committed(self) -> list[int]:
        return [number for (number,) in self.other.execute("SELECT number FROM numbers ORDER BY place")]

    def hold(self) -> threading.Event:
        """Keep the writer busy in a group of its own until the event is set, so that what follows forms one group."""
        started, release = threading.Event(), threading.Event()
        self.writer.submit(lambda tx: (started.set(), release.wait(30)))
        assert started.wait(30)
        return release


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(database, tmp_path)
    yield made
    made.writer.close()
    made.payloads.close()
    made.other.close()


def insert(number: int) -> Any:
    return lambda tx: tx.connection.execute("INSERT INTO numbers (number) VALUES (?)", (number,)) and number


def refuse_after(number: int, error: Exception) -> Any:
    def operation(tx: Transaction) -> None:
        tx.connection.execute("INSERT INTO numbers (number) VALUES (?)", (number,))
        raise error

    return operation


def test_a_resolved_write_is_committed(bench: Bench) -> None:
    seen: list[list[int]] = []
    future = bench.writer.submit(insert(7))
    future.add_done_callback(lambda _: seen.append(bench.committed()))
    assert future.result() == 7
    bench.writer.close()
    assert seen == [[7]]


def test_an_error_of_one_write_leaves_its_neighbours_alone(bench: Bench) -> None:
    release = bench.hold()
    futures = [
        bench.writer.submit(insert(1)),
        bench.writer.submit(refuse_after(2, ConflictError("no"))),
        bench.writer.submit(insert(1)),  # the database refuses it
        bench.writer.submit(refuse_after(3, KeyError("a bug"))),
        bench.writer.submit(insert(4)),
    ]
    release.set()
    errors = [type(future.exception()) for future in futures]
    assert errors == [type(None), ConflictError, StoreError, KeyError, type(None)]
    assert bench.committed() == [1, 4]
    assert "UNIQUE" in str(futures[2].exception()).upper()


def test_writes_of_a_thread_are_applied_in_order(bench: Bench) -> None:
    last = [bench.writer.submit(insert(number)) for number in (5, 3, 9, 1)][-1]
    last.result()
    order: list[int] = []
    futures = [bench.writer.submit(lambda tx, n=n: order.append(n)) for n in range(200)]
    futures[-1].result()
    assert order == list(range(200))
    assert bench.committed() == [5, 3, 9, 1]


def test_writes_that_wait_share_one_transaction(bench: Bench) -> None:
    release = bench.hold()
    futures = [bench.writer.submit(lambda tx: tx.now) for _ in range(20)]
    release.set()
    assert len({future.result() for future in futures}) == 1


@pytest.mark.parametrize("busy_seconds", [0.5])
def test_a_failed_commit_fails_the_whole_group_and_the_writer_lives_on(
    bench: Bench, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, writing, go = bench.payloads.put, threading.Event(), threading.Event()

    def slow(payloads: Any) -> list[PayloadKey]:
        writing.set()
        assert go.wait(30)
        return put(payloads)

    monkeypatch.setattr(bench.payloads, "put", slow)
    bench.writer.submit_with_payload(make.payload(), lambda tx, key: key)  # meanwhile the others gather to one group
    assert writing.wait(30)
    if bench.other.dialect.hold:
        bench.other.execute("SET idle_in_transaction_session_timeout TO 0")  # PostgreSQL would end it as soon
    bench.other.begin(ordered=True)  # another process holds the write lock for longer than the busy timeout
    futures = [bench.writer.submit(insert(number)) for number in (1, 2)]
    go.set()
    for future in futures:
        with pytest.raises(StoreError, match=r"2 writes was not committed.*lock"):
            future.result()
    bench.other.roll_back()
    assert bench.writer.submit(insert(3)).result() == 3
    assert bench.committed() == [3]


def test_a_transaction_that_the_database_rolled_back_fails_the_group(bench: Bench) -> None:
    def lose(tx: Transaction) -> None:
        tx.connection.execute("ROLLBACK")  # what SQLite does by itself on a full disk
        raise StoreError("database or disk is full")

    release = bench.hold()
    futures = [bench.writer.submit(insert(1)), bench.writer.submit(lose), bench.writer.submit(insert(2))]
    release.set()
    assert all(isinstance(future.exception(), StoreError) for future in futures)
    assert bench.writer.submit(insert(3)).result() == 3
    assert bench.committed() == [3]


def test_failing_payloads_fail_only_the_writes_that_carry_one(bench: Bench, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(payloads: object) -> list[PayloadKey]:
        raise StoreError("disk full")

    monkeypatch.setattr(bench.payloads, "put", broken)
    release = bench.hold()
    carrier = bench.writer.submit_with_payload(make.payload(), lambda tx, key: key)
    plain = bench.writer.submit(insert(1))
    release.set()
    assert isinstance(carrier.exception(), StoreError)
    assert plain.result() == 1


def test_a_payload_is_durable_before_its_metadata_is_written(bench: Bench, make: Any) -> None:
    future = bench.writer.submit_with_payload(make.payload(), lambda tx, key: bench.payloads.get(key).sampled_ids.tolist())
    assert future.result() == [100, 101]


def test_a_cancelled_write_is_not_done(bench: Bench) -> None:
    release = bench.hold()
    future = bench.writer.submit(insert(1))
    assert future.cancel()
    release.set()
    bench.writer.submit(insert(2)).result()
    assert bench.committed() == [2]


def test_close_settles_what_was_accepted_and_refuses_more(bench: Bench) -> None:
    release = bench.hold()
    futures = [bench.writer.submit(insert(number)) for number in range(5)]
    closer = threading.Thread(target=bench.writer.close)
    closer.start()
    release.set()
    closer.join()
    assert all(future.done() for future in futures)
    assert bench.committed() == [0, 1, 2, 3, 4]
    with pytest.raises(StoreError, match="closed"):
        bench.writer.submit(insert(9))


def test_time_grows_from_group_to_group_even_if_the_clock_does_not(bench: Bench) -> None:
    far = 4e9  # another process with a clock ahead of ours wrote this
    bench.writer.submit(
        lambda tx: tx.connection.execute(
            "INSERT INTO rollouts (rollout_id, group_id, purpose, step, state, created, updated, spec)"
            " VALUES ('r', 'g', 'train', 0, 'queuing', 1, ?, '{}')",
            (far,),
        )
    ).result()
    assert bench.writer.submit(lambda tx: tx.now).result() > far


def test_payloads_are_flushed_soon_after_they_were_written_also_when_nothing_follows(
    database: Database, tmp_path: Path, make: Any
) -> None:
    flushed = threading.Event()

    class Payloads(SegmentPayloadStore):
        def flush(self) -> None:
            super().flush()
            flushed.set()

    connection = database.writer()
    schema.migrate(connection, database.place)
    payloads = Payloads(tmp_path / "payloads", sync=False)
    writer = GroupWriter(connection, payloads, flush_seconds=0.01)
    assert isinstance(writer.submit_with_payload(make.payload(), lambda tx, key: key).result(), PayloadKey)
    assert flushed.wait(30)
    writer.close()
    payloads.close()
