"""Rollouts of programs that are captured from outside."""

from __future__ import annotations

from typing import Any

import pytest

from whippletree.errors import ConflictError
from whippletree.store import RecordStore


def test_a_session_runs_from_the_start_and_nobody_claims_or_releases_it(store: RecordStore, make: Any):
    attempt = store.open_session(make.spec("s-1")).result()
    assert (attempt.rollout_id, attempt.attempt, store.rollout("s-1").state) == ("s-1", 1, "running")
    assert store.claim("worker-1", 5).result() == []
    assert store.release_worker("worker").result() == []
    assert store.record_call(make.call(rollout_id="s-1"), make.payload()).result().call_id == "c-1"


def test_opening_it_again_gives_the_same_attempt_and_another_spec_is_refused(store: RecordStore, make: Any):
    first = store.open_session(make.spec("s-1")).result()
    assert store.open_session(make.spec("s-1")).result() == first
    with pytest.raises(ConflictError, match="another spec"):
        store.open_session(make.spec("s-1", harness="other")).result()
    assert len(store.attempts("s-1")) == 1
