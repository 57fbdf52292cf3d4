"""Loading the trace of a rollout's last attempt from the real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from whippletree.store import open_store
from whippletree.traces import build_samples, load_trace
from whippletree.types import RolloutSpec


def test_the_last_attempts_calls_come_back_as_a_tree(tmp_path: Path, recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1, 2], [3])
    recorder.call([1, 2, 3, 4], [5], parent=0, delivered=False)
    store = open_store(tmp_path)
    store.create_rollouts([spec]).result()
    (attempt,) = store.claim("w", 1).result()
    for call, payload in zip(recorder.calls, recorder.payloads, strict=True):
        store.record_call(msgspec.structs.replace(call, attempt=attempt.attempt), payload).result()
    store.mark_delivered("c1").result()
    trace = load_trace(store, store.rollout("r"))
    store.close()
    assert [(node.call_id, node.parent, node.delivered) for node in trace.nodes] == [("c0", "", True), ("c1", "c0", True)]
    (sample,) = build_samples(trace, spec)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert sample.trained.tolist() == [False, False, True, False, True]
