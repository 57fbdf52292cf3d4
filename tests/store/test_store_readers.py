"""The pool of reading connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from whippletree.errors import StoreError
from whippletree.store.database import Connection, Database
from whippletree.store.readers import Readers


class Counted:
    """A database that counts the connections which are open."""

    def __init__(self, database: Database) -> None:
        self.place = database.place
        self.writer = database.writer
        self._database = database
        self._lock = threading.Lock()
        self.open = self.most = 0

    def reader(self) -> Connection:
        made = self._database.reader()
        close = made.close
        with self._lock:
            self.open += 1
            self.most = max(self.most, self.open)

        def closing() -> None:
            close()
            with self._lock:
                self.open -= 1

        made.close = closing
        return made


@pytest.fixture
def counted(database: Database, tmp_path: Path) -> Iterator[Counted]:
    made = Counted(database)
    yield made
    assert made.open == 0


def test_no_more_connections_than_allowed_and_none_shared(counted: Counted) -> None:
    readers = Readers(counted, limit=3)
    used: list[int] = []
    shared: list[int] = []

    def work() -> None:
        for _ in range(20):
            with readers.connection() as connection:
                if id(connection) in used:
                    shared.append(id(connection))
                used.append(id(connection))
                assert connection.execute("SELECT 1").fetchall() == [(1,)]
                used.remove(id(connection))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (shared, used) == ([], [])
    assert 1 <= counted.most <= 3
    readers.close()


def test_a_read_that_goes_on_while_the_pool_is_closed_is_the_last_one(counted: Counted) -> None:
    readers = Readers(counted, limit=2)
    with readers.connection() as connection:
        readers.close()
        assert connection.execute("SELECT 2").fetchall() == [(2,)]
        assert counted.open == 1
    assert counted.open == 0
    with pytest.raises(StoreError, match="the store is closed"):
        readers.read("SELECT 1")


def test_a_read_that_fails_gives_its_place_back(counted: Counted) -> None:
    readers = Readers(counted, limit=1)
    for _ in range(3):
        with pytest.raises(StoreError, match="nothing_like_it"):
            readers.read("SELECT * FROM nothing_like_it")
    assert readers.read("SELECT 1") == [(1,)]
    readers.close()
