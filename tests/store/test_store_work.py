"""How much a claim or a listing reads, counted by the database, not timed: no more when much has ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from whippletree.protocols import AttemptOutcome
from whippletree.store import RecordStore, SegmentPayloadStore, StoreConfig
from whippletree.store.database import Connection, Cursor, Database, Value
from whippletree.store.sqlite import SqliteConnection
from whippletree.types import Event

Asked = list[tuple[str, tuple[Value, ...]]]


class Noted:
    """A connection that notes what it is asked to read."""

    def __init__(self, connection: Connection, asked: Asked) -> None:
        self._connection = connection
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: str, values: Sequence[Value] = ()) -> Cursor:
        if query.startswith("SELECT"):
            self._asked.append((query, tuple(values)))
        return self._connection.execute(query, values)


class Watched:
    """A database whose connections note what they are asked."""

    def __init__(self, database: Database) -> None:
        self.place = database.place
        self.asked: Asked = []
        self.database = database

    def writer(self) -> Connection:
        return Noted(self.database.writer(), self.asked)

    def reader(self) -> Connection:
        return Noted(self.database.reader(), self.asked)


def cost(connection: Connection, query: str, values: Sequence[Value]) -> int:
    """Steps of SQLite's machine, or rows that PostgreSQL looked at."""
    if isinstance(connection, SqliteConnection):
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        connection._raw.set_progress_handler(step, 1)
        connection.execute(query, values).fetchall()
        connection._raw.set_progress_handler(None, 1)
        return steps
    connection.begin(ordered=False)
    found = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).fetchall()[0][0]
    connection.roll_back()
    return rows_seen((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])


def rows_seen(node: dict[str, Any]) -> int:
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return own + sum(rows_seen(inner) for inner in node.get("Plans", []))


def finish(store: RecordStore, make: Any, names: list[str]) -> None:
    store.create_rollouts([make.spec(name, group_id=name) for name in names]).result()
    store.append_events(
        [Event(event_id=f"e-{name}", rollout_id=name, attempt=1, time=1.0, kind="phase") for name in names]
    ).result()
    half = len(names) // 2
    begun = [begin.result() for begin in [store.begin(name, "node-1", 60.0) for name in names[:half]]]  # leases that are over
    claimed = store.claim("host-1", len(names)).result()
    assert len(begun) + len(claimed) == len(names)
    for done in [store.finish(AttemptOutcome(attempt=make.rewarded(name))) for name in names]:
        done.result()


def use(store: RecordStore, make: Any, number: int) -> dict[str, Callable[[], object]]:
    """What is asked all the time, by name."""
    store.create_rollouts([make.spec(f"w{number}-{n}", group_id=f"g{number}") for n in range(6)]).result()
    cursor = store.page(order="updated", limit=100_000).next
    return {
        "begin": lambda: store.begin(f"w{number}-5", "w", 60.0).result(),
        "renew": lambda: store.renew(f"w{number}-5", 1).result(),
        "lapsed": store.end_lapsed,
        "claim": lambda: store.claim("w", 3).result(),
        "running": lambda: store.rollouts(states=["running"]),
        "queuing page": lambda: store.page(states=["queuing"], limit=5),
        "first page": lambda: store.page(limit=5),
        "page of the latest changes": lambda: store.page(order="updated", after=cursor, limit=5),
        "group": lambda: store.rollouts(group_id=f"g{number}"),
        "changes": lambda: store.rollouts(updated_after=store.rollout(f"w{number}-5").updated - 1e-7),
        "events": lambda: store.event_page(f"w{number}-0"),
        "release": lambda: store.release_worker("w").result(),
    }


@pytest.mark.parametrize("many", [1500])
def test_what_has_ended_costs_nothing(database: Database, tmp_path: Path, make: Any, many: int) -> None:
    watched = Watched(database)
    payloads = SegmentPayloadStore(tmp_path / "payloads")
    costs: list[dict[str, int]] = []
    with RecordStore(watched, payloads, StoreConfig()) as store:
        for number, ended in enumerate((10, many)):
            finish(store, make, [f"e{number}-{n}" for n in range(ended)])
            connection = database.reader()
            connection.execute("ANALYZE")  # what autovacuum does now and then
            costs.append({})
            for name, ask in use(store, make, number).items():
                watched.asked.clear()
                ask()
                costs[-1][name] = sum(cost(connection, query, values) for query, values in watched.asked)
            for one in store.rollouts(states=["queuing", "running"]):
                store.cancel([one.spec.rollout_id], "done").result()
            connection.close()
    few, more = costs
    for name, spent in more.items():
        assert spent <= 3 * few[name] + 60, (name, few, more)
