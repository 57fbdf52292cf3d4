"""A real store in a temporary directory, on each database, and makers of valid records."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from postgres_cluster import Cluster, running_cluster

from whippletree.store import RecordStore, StoreConfig, open_store
from whippletree.store.database import Database
from whippletree.store.place import Place
from whippletree.store.sqlite import SqliteDatabase
from whippletree.types import Attempt, Call, CallPayload, CallTimes, RolloutSpec, Sampling, VerifierResult


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A throw-away PostgreSQL server; skips where there is none."""
    with running_cluster() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Where the record lies (StoreConfig.url): each database in turn."""
    return request.getfixturevalue("cluster").url if request.param == "postgres" else ""


@pytest.fixture
def busy_seconds() -> float:
    """How long `database` waits for a lock; PostgreSQL ends a transaction that stands still for half of it."""
    return 30.0


@pytest.fixture
def database(url: str, tmp_path: Path, busy_seconds: float) -> Database:
    """An empty database of each kind, still without tables."""
    if not url:
        return SqliteDatabase(tmp_path / "x.sqlite", busy_seconds, power_safe=True)
    from whippletree.store import postgres

    place = Place(url=url, schema=f"bare_{secrets.token_hex(6)}")
    postgres.create_schema(place, 10.0)
    return postgres.PostgresDatabase(place, connect_seconds=10.0, busy_seconds=busy_seconds)


@pytest.fixture
def opened(url: str) -> Callable[..., RecordStore]:
    """Opens the store of a directory on the database in turn; further arguments are settings."""

    def open_it(directory: Path, **settings: Any) -> RecordStore:
        return open_store(directory, config=StoreConfig(url=url, **settings))

    return open_it


@pytest.fixture
def store(tmp_path: Path, opened: Callable[..., RecordStore]) -> Iterator[RecordStore]:
    with opened(tmp_path / "store") as one:
        yield one


def spec(rollout_id: str = "r-1", **fields: Any) -> RolloutSpec:
    given = {"group_id": "g-1", "source": "trail", "task_id": "t-1", "task_path": "/tasks/t-1", "harness": "mini", **fields}
    return RolloutSpec(rollout_id=rollout_id, **given)


def payload(prompt: int = 3, sampled: int = 2) -> CallPayload:
    return CallPayload(
        prompt_delta=np.arange(prompt, dtype=np.int32),
        sampled_ids=np.arange(100, 100 + sampled, dtype=np.int32),
        logprobs=np.linspace(-1.5, -0.1, sampled, dtype=np.float32),
        request_json=b'{"messages": []}',
        reply_json=b'{"choices": []}',
    )


def call(call_id: str = "c-1", **fields: Any) -> Call:
    given: dict[str, Any] = {
        "rollout_id": "r-1",
        "attempt": 1,
        "index": 0,
        "digest": "d",
        "prompt_tokens": 3,
        "sampled_tokens": 2,
        "finish_reason": "stop",
        "times": CallTimes(received=1.0),
        "sampling": Sampling(),
        **fields,
    }
    return Call(call_id=call_id, **given)


def rewarded(rollout_id: str = "r-1", attempt: int = 1, reward: float = 1.0) -> Attempt:
    return Attempt(rollout_id=rollout_id, attempt=attempt, started=0.0, result=VerifierResult(reward=reward))


class Make:
    """Makers of valid records, for tests to vary."""

    spec = staticmethod(spec)
    payload = staticmethod(payload)
    call = staticmethod(call)
    rewarded = staticmethod(rewarded)


@pytest.fixture
def make() -> type[Make]:
    return Make


@pytest.fixture
def running(store: RecordStore) -> Callable[..., list[Attempt]]:
    """Create and claim rollouts by id."""

    def start(*rollout_ids: str, worker: str = "w", **fields: Any) -> list[Attempt]:
        store.create_rollouts([spec(name, **fields) for name in rollout_ids]).result()
        return store.claim(worker, len(rollout_ids)).result()

    return start
