from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from whippletree.errors import AlignmentError, ConflictError, FencedError, StoreError
from whippletree.protocols import AttemptOutcome
from whippletree.store import RecordStore, SegmentPayloadStore, open_store
from whippletree.store.segments import encode_record
from whippletree.types import Attempt, Cause, CauseClass, VersionSpan

Running = Callable[..., list[Attempt]]
Opened = Callable[..., RecordStore]
CAUSE = Cause(cause=CauseClass.ENGINE, phase="agent", message="gone")


def test_a_recorded_call_comes_back_with_its_payload(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    given = make.call(parent_call_id="c-0", versions=(VersionSpan(start=0, policy_version=7),), replica="e0")
    recorded = store.record_call(given, make.payload()).result()
    assert recorded == msgspec.structs.replace(given, payload=recorded.payload)
    assert store.calls("r-1", 1) == [recorded]
    columns = store.payload(recorded)
    assert columns.prompt_delta.tolist() == [0, 1, 2]
    assert columns.sampled_ids.tolist() == [100, 101]
    assert np.array_equal(columns.logprobs, make.payload().logprobs)
    assert columns.request_json == b'{"messages": []}'


def test_calls_are_ordered_by_index_and_kept_apart_by_attempt(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1", "r-2")
    for index in (2, 0, 1):
        store.record_call(make.call(f"c{index}", index=index), make.payload()).result()
    store.record_call(make.call("x", rollout_id="r-2"), make.payload()).result()
    assert [call.call_id for call in store.calls("r-1", 1)] == ["c0", "c1", "c2"]
    assert store.calls("r-1", 2) == []


def test_delivery_is_marked_also_after_the_seal(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    recorded = store.record_call(make.call(), make.payload()).result()
    assert recorded.delivered is False
    store.seal("r-1", 1).result()
    for _ in range(2):
        store.mark_delivered("c-1").result()
    assert store.calls("r-1", 1)[0].delivered is True
    with pytest.raises(StoreError, match="no call 'c-9'"):
        store.mark_delivered("c-9").result()


def test_the_same_call_again_is_a_no_op(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    first = store.record_call(make.call(), make.payload()).result()
    store.mark_delivered("c-1").result()
    store.seal("r-1", 1).result()
    again = store.record_call(make.call(), make.payload()).result()
    assert again == msgspec.structs.replace(first, delivered=True)
    assert len(store.calls("r-1", 1)) == 1
    with pytest.raises(ConflictError, match="other data"):
        store.record_call(make.call(index=5), make.payload()).result()


def test_a_sealed_or_old_or_finished_attempt_takes_no_call(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1", "r-2")
    store.seal("r-1", 1).result()
    with pytest.raises(FencedError, match="sealed"):
        store.record_call(make.call("c1"), make.payload()).result()
    report = Attempt(rollout_id="r-1", attempt=1, started=0.0, cause=CAUSE)
    store.finish(AttemptOutcome(attempt=report, requeue=True)).result()
    with pytest.raises(FencedError, match="queuing"):
        store.record_call(make.call("c2"), make.payload()).result()
    store.claim("w", 1).result()
    with pytest.raises(FencedError, match="attempt 2"):
        store.record_call(make.call("c3"), make.payload()).result()
    store.record_call(make.call("c4", attempt=2), make.payload()).result()
    store.finish(AttemptOutcome(attempt=make.rewarded("r-1", attempt=2))).result()
    with pytest.raises(FencedError, match="succeeded"):
        store.record_call(make.call("c5", attempt=2), make.payload()).result()
    assert store.calls("r-1", 1) == []
    assert [call.call_id for call in store.calls("r-1", 2)] == ["c4"]


def test_a_call_of_an_unknown_rollout_is_an_error(store: RecordStore, make: Any) -> None:
    with pytest.raises(StoreError, match="unknown rollout"):
        store.record_call(make.call(rollout_id="nobody"), make.payload()).result()


@pytest.mark.parametrize("count", [1, 3])
def test_columns_that_do_not_line_up_are_refused_by_name(store: RecordStore, running: Running, make: Any, count: int) -> None:
    running("r-1")
    with pytest.raises(AlignmentError, match=r"c-1.*2 sampled ids"):
        store.record_call(make.call(sampled_tokens=count), make.payload(sampled=2))
    short = make.payload()
    short.logprobs = short.logprobs[:1]
    with pytest.raises(AlignmentError, match="1 logprobs"):
        store.record_call(make.call(), short)


def test_a_call_without_logprobs_says_so_and_is_kept(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    without = make.payload()
    without.logprobs = without.logprobs[:0]
    recorded = store.record_call(make.call(logprob_source="none"), without).result()
    assert store.payload(recorded).logprobs.shape == (0,)


def test_many_threads_write_and_read(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for index in range(10):
                name = f"{worker}-{index}"
                recorded = store.record_call(make.call(name, index=worker * 10 + index), make.payload(prompt=worker)).result()
                assert store.payload(recorded).prompt_delta.size == worker
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [call.index for call in store.calls("r-1", 1)] == list(range(160))


def test_release_deletes_a_segment_once_all_of_it_is_released(tmp_path: Path, opened: Opened, make: Any) -> None:
    with opened(tmp_path, segment_bytes=2 * len(encode_record(make.payload()))) as store:  # two payloads to a segment
        store.create_rollouts([make.spec(name) for name in ("a", "b", "c")]).result()
        store.claim("w", 3).result()
        order = ["a", "b", "a", "a", "c", "c"]  # two to a segment
        calls = [
            store.record_call(make.call(f"{index}", rollout_id=name, index=index), make.payload()).result()
            for index, name in enumerate(order)
        ]
        segments = [call.payload.segment for call in calls if call.payload]

        def on_disk() -> list[bool]:
            return [(tmp_path / "payloads" / f"{segment}.seg").exists() for segment in dict.fromkeys(segments)]

        assert on_disk() == [True, True, True]
        assert store.release(["a"]) == 3
        assert on_disk() == [True, False, True]
        assert store.release(["a"]) == 0
        assert store.payload(calls[1]).sampled_ids.tolist() == [100, 101]
        with pytest.raises(StoreError, match="was released"):
            store.payload(calls[0])  # its neighbour is still wanted, so the bytes are there: it is refused all the same
        assert store.release(["b", "b", "unknown"]) == 1
        assert on_disk() == [False, False, True]
        assert store.release(["c"]) == 2
        assert on_disk()[-1] is True  # this process still writes that segment
        assert [call.call_id for call in store.calls("a", 1)] == ["0", "2", "3"]  # records stay
    with open_store(tmp_path) as later:
        assert later.release([]) == 0
        assert on_disk() == [False, False, False]
        assert len(later.calls("c", 1)) == 2


def test_release_deletes_what_a_dead_process_never_committed(store: RecordStore, tmp_path: Path, make: Any) -> None:
    orphan = SegmentPayloadStore(tmp_path / "store" / "payloads")
    orphan.put([make.payload()])
    store.release([])
    assert len(list((tmp_path / "store" / "payloads").iterdir())) == 1  # its writer lives: it may commit any moment
    orphan.close()
    store.release([])
    assert list((tmp_path / "store" / "payloads").iterdir()) == []


def test_release_gives_up_the_calls_of_every_attempt(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    store.record_call(make.call("c1"), make.payload()).result()
    store.release_worker("w").result()
    store.claim("w", 1).result()
    store.record_call(make.call("c2", attempt=2), make.payload()).result()
    assert store.release(["r-1"]) == 2


def test_a_call_without_a_key_has_no_payload_to_read(store: RecordStore, make: Any) -> None:
    with pytest.raises(StoreError, match="no payload key"):
        store.payload(make.call())
