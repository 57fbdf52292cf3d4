"""Which payloads may go, and that they go."""

from __future__ import annotations

from typing import Any

import pytest

from whippletree.errors import StoreError
from whippletree.store import RecordStore, StoreConfig
from whippletree.store.retention import releasable
from whippletree.types import Rollout, RolloutState


def rollout(make: Any, name: str, step: int, state: RolloutState = "succeeded") -> Rollout:
    return Rollout(spec=make.spec(name, step=step), state=state, created=1.0, updated=1.0, attempt=1)


def test_only_finished_rollouts_of_committed_steps_go(make: Any):
    found = [rollout(make, "a", 0), rollout(make, "b", 3), rollout(make, "c", 4), rollout(make, "d", 0, "running")]
    assert releasable(found, 5, StoreConfig(retain="trained", retain_steps=2)) == ["a", "b"]
    assert releasable(found, -1, StoreConfig(retain="trained", retain_steps=0)) == []
    assert releasable(found, 5, StoreConfig()) == []


def test_a_released_payload_is_gone_and_its_record_stays(store: RecordStore, make: Any, running: Any):
    running("r-1")
    call = store.record_call(make.call(), make.payload()).result()
    from whippletree.protocols import AttemptOutcome

    store.finish(AttemptOutcome(attempt=make.rewarded())).result()
    ids = releasable(store.rollouts(), 0, StoreConfig(retain="trained", retain_steps=0))
    assert store.release(ids) == 1
    with pytest.raises(StoreError, match="released"):
        store.payload(call)
    assert [one.call_id for one in store.calls("r-1", 1)] == ["c-1"]
