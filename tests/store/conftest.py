"""A real store in a temporary directory, and makers of valid records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whippletree.store import SqliteStore, open_store
from whippletree.types import Attempt, Call, CallPayload, CallTimes, RolloutSpec, Sampling, VerifierResult


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path / "store") as opened:
        yield opened


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
def running(store: SqliteStore) -> Callable[..., list[Attempt]]:
    """Create and claim rollouts by id."""

    def start(*rollout_ids: str, worker: str = "w", **fields: Any) -> list[Attempt]:
        store.create_rollouts([spec(name, **fields) for name in rollout_ids]).result()
        return store.claim(worker, len(rollout_ids)).result()

    return start
