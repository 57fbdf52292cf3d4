"""Cases of the store: memory that stays flat, and writes that a close waits for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_world import SECRET
from postgres_cluster import running_cluster

from whippletree.errors import FencedError, StoreError
from whippletree.gateway.keys import mint
from whippletree.store import SegmentPayloadStore

# --- D18: memory -----------------------------------------------------------------------------------------------------

D18 = {"rollouts": 5000, "turns": 40, "tokens_per_turn": 8000}
SCALE = 50  # a fiftieth of the rollouts, in steps of ten; each of them as long as in the case
STEPS = D18["rollouts"] // SCALE // 10

RUN = """
import json, os, sys
from pathlib import Path
import numpy as np
from whippletree.protocols import AttemptOutcome
from whippletree.store import StoreConfig, open_store
from whippletree.types import Attempt, Call, CallPayload, CallTimes, Event, RolloutSpec, Sampling, StepRecord, VerifierResult

directory, config, steps, turns, tokens = Path(sys.argv[1]), json.loads(sys.argv[2]), *map(int, sys.argv[3:6])
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def on_disk():
    return sum(path.stat().st_size for path in (directory / "payloads").iterdir())

with open_store(directory, config=StoreConfig(segment_bytes=1 << 20, **config)) as store:
    for step in range(steps):
        names = [f"s{step}-{n}" for n in range(10)]
        store.create_rollouts([RolloutSpec(rollout_id=name, group_id=name, source="s", task_id="t", task_path="/t", harness="h",
            step=step) for name in names]).result()
        store.claim("w", len(names)).result()
        for block in range(0, turns, 10):
            writes, events = [], []
            for turn, name in [(turn, name) for turn in range(block, block + 10) for name in names]:
                ids = np.arange(tokens, dtype=np.int32)
                call = Call(call_id=f"{name}-{turn}", rollout_id=name, attempt=1, index=turn, digest="d",
                    prompt_tokens=tokens - 100, sampled_tokens=100, finish_reason="stop", times=CallTimes(received=1.0),
                    sampling=Sampling())
                columns = CallPayload(prompt_delta=ids[100:], sampled_ids=ids[:100], logprobs=np.zeros(100, np.float32))
                writes.append(store.record_call(call, columns))
                events.append(Event(event_id=call.call_id, rollout_id=name, attempt=1, time=float(turn), kind="turn"))
            store.append_events(events).result()
            for mark in [store.mark_delivered(write.result().call_id) for write in writes]:
                mark.result()
        for name in names:
            report = Attempt(rollout_id=name, attempt=1, started=0.0, result=VerifierResult(reward=1.0))
            store.finish(AttemptOutcome(attempt=report)).result()
        for name in names:  # what the loop reads to train on it
            assert sum(store.payload(call).sampled_ids.size for call in store.calls(name, 1)) == 100 * turns
        store.plan_step(StepRecord(step=step, rollout_ids=tuple(names), policy_version=step)).result()
        store.commit_step(step, f"checkpoints/{step}").result()
        full = on_disk()
        store.release(names)
        print(json.dumps([resident(), full, on_disk()]), flush=True)
    assert len(store.page(limit=7).rollouts) == 7  # what is listed comes in pages, never all of it
    assert store.queue().counts[0].count == steps * 10
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with running_cluster() as started:
        yield started


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_D18_memory_is_flat_and_a_trained_step_leaves_the_disk(
    request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    config = {"url": request.getfixturevalue("cluster").url} if database == "postgres" else {}
    numbers = [str(STEPS), str(D18["turns"]), str(D18["tokens_per_turn"])]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "store"), json.dumps(config), *numbers],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    written = 10 * D18["turns"] * D18["tokens_per_turn"] * 4  # bytes of ids in one step
    assert len(steps) == STEPS
    assert all(full >= written for _, full, _ in steps)
    assert all(left <= written // 2 for _, _, left in steps)  # the two segments that its process still holds
    warm = max(resident for resident, _, _ in steps[:3])
    assert max(resident for resident, _, _ in steps[3:]) - warm < written, steps  # while seven times that went through it


# --- D26: a close waits for what was written -------------------------------------------------------------------------


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every payload takes 500 ms to be written."""
    put = SegmentPayloadStore.put

    def slow(self: SegmentPayloadStore, payloads: Any) -> Any:
        time.sleep(0.5)
        return put(self, payloads)

    monkeypatch.setattr(SegmentPayloadStore, "put", slow)


async def stream_to_the_last_chunk(world: Any) -> Any:
    """A streamed turn whose text is all there, and whose end is not."""
    body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": "go"}]}
    headers = {"Authorization": f"Bearer {mint(SECRET, 'r0', 1)}"}
    response = await world.http.post(world.url + "/v1/chat/completions", json=body, headers=headers)
    text = ""
    while "last word" not in text:
        line = (await response.content.readline()).decode()
        assert line, "the stream ended before its text"
        if line.startswith("data: {"):
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    return response


@pytest.fixture
def held_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No payload is written before this is set."""
    put, go = SegmentPayloadStore.put, threading.Event()

    def held(self: SegmentPayloadStore, payloads: Any) -> Any:
        go.wait(100)
        return put(self, payloads)

    monkeypatch.setattr(SegmentPayloadStore, "put", held)
    yield go
    go.set()


async def test_D26_a_close_waits_for_the_last_turn_and_nothing_comes_back_after_a_delete(
    make_world: Any, held_store: threading.Event
) -> None:
    async with make_world(lambda prompt: "the last word") as world:
        response = await stream_to_the_last_chunk(world)
        assert world.calls() == []  # not there yet
        sealing = asyncio.create_task(world.control.seal_async("r0", 1, limit=60.0))
        await asyncio.sleep(0.2)
        assert not sealing.done()
        held_store.set()
        report = await sealing
        assert (report.sealed, report.calls) == (True, 1)
        (call,) = world.calls()
        assert world.sampled_text(call).startswith("the last word")
        assert "[DONE]" in (await response.read()).decode()
        # Deleted: what was written cannot be read again, and what is written later does not bring it back.
        payload = world.store.payload(call)
        assert await asyncio.to_thread(world.store.release, ["r0"]) == 1
        late = msgspec.structs.replace(call, call_id="late")
        with pytest.raises(FencedError, match="sealed"):
            await asyncio.wrap_future(world.store.record_call(late, payload))
        with pytest.raises(StoreError, match="was released"):
            world.store.payload(call)
        again = await asyncio.wrap_future(world.store.record_call(call, payload))  # the same one once more
        with pytest.raises(StoreError, match="was released"):
            world.store.payload(again)
        assert [one.call_id for one in world.calls()] == [call.call_id]


@pytest.mark.usefixtures("slow_store")
async def test_D26_the_wait_is_bounded_and_what_comes_too_late_is_refused(make_world: Any) -> None:
    async with make_world(lambda prompt: "the last word") as world:
        response = await stream_to_the_last_chunk(world)
        report = await world.control.seal_async("r0", 1, limit=0.001)
        assert report.sealed
        seen = [call.call_id for call in world.calls()]
        assert len(seen) == report.calls
        await response.read()
        await asyncio.wrap_future(world.store.set_meta("behind", "everything"))
        assert [call.call_id for call in world.calls()] == seen
