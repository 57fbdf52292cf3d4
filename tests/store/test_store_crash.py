"""Real processes, killed or competing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whippletree.store import RecordStore, open_store

Opened = Callable[..., RecordStore]

WRITER = """
import sys, threading
from pathlib import Path
import numpy as np
from whippletree.protocols import AttemptOutcome
from whippletree.store import StoreConfig, open_store
from whippletree.types import Attempt, Call, CallPayload, CallTimes, Event, RolloutSpec, Sampling, VerifierResult

store = open_store(Path(sys.argv[1]), config=StoreConfig(segment_bytes=40_000), instance="victim")
write_line = threading.Lock()

def acknowledge(*words):
    with write_line:
        print(*words, flush=True)

def work(worker):
    number = 0
    while True:
        name = f"r-{worker}-{number}"
        spec = RolloutSpec(rollout_id=name, group_id="g", source="s", task_id="t", task_path="p", harness="h", labels={})
        store.create_rollouts([spec]).result()
        acknowledge("created", name)
        for attempt in store.claim(f"w-{worker}", 1).result():
            for index in range(3):
                ids = np.full(100, worker * 1000 + number, dtype=np.int32)
                payload = CallPayload(prompt_delta=ids, sampled_ids=ids[:7], logprobs=np.zeros(7, np.float32))
                call = Call(call_id=f"{attempt.rollout_id}-c{index}", rollout_id=attempt.rollout_id, attempt=1, index=index,
                    digest=str(int(ids[0])), prompt_tokens=100, sampled_tokens=7, finish_reason="stop",
                    times=CallTimes(received=1.0), sampling=Sampling())
                store.record_call(call, payload).result()
                acknowledge("call", attempt.rollout_id, call.call_id, ids[0])
            store.append_events([Event(event_id=f"{attempt.rollout_id}-e", rollout_id=attempt.rollout_id, attempt=1, time=1.0,
                kind="phase")]).result()
            acknowledge("event", attempt.rollout_id)
            report = Attempt(rollout_id=attempt.rollout_id, attempt=1, started=0.0, result=VerifierResult(reward=0.25))
            store.finish(AttemptOutcome(attempt=report)).result()
            acknowledge("finished", attempt.rollout_id)
        number += 1

for worker in range(8):
    threading.Thread(target=work, args=(worker,), daemon=True).start()
threading.Event().wait()
"""

CLAIMER = """
import sys
from pathlib import Path
from whippletree.store import open_store

store = open_store(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
while True:
    claimed = store.claim(sys.argv[2], 3).result()
    if not claimed:
        break
    for attempt in claimed:
        print(attempt.rollout_id, flush=True)
store.close()
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


@pytest.mark.parametrize("acknowledged", [5, 120, 400])
def test_every_acknowledged_write_survives_kill_9(tmp_path: Path, opened: Opened, acknowledged: int) -> None:
    opened(tmp_path).close()
    victim = start(WRITER, str(tmp_path))
    assert victim.stdout is not None
    lines = [victim.stdout.readline().split() for _ in range(acknowledged)]
    victim.kill()
    lines += [line.split() for line in victim.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    victim.wait()
    assert all(lines)
    with open_store(tmp_path) as store:
        for kind, rollout_id, *rest in lines:
            rollout = store.rollout(rollout_id)
            if kind == "call":
                call = next(call for call in store.calls(rollout_id, 1) if call.call_id == rest[0])
                assert set(store.payload(call).prompt_delta.tolist()) == {int(rest[1])} == {int(call.digest)}
            elif kind == "event":
                assert len(store.events(rollout_id)) == 1
            elif kind == "finished":
                assert (rollout.state, rollout.reward) == ("succeeded", 0.25)
        # Nothing is half there either: what is recorded can be read.
        for rollout in store.rollouts():
            for call in store.calls(rollout.spec.rollout_id, 1):
                assert store.payload(call).sampled_ids.size == call.sampled_tokens
        running = store.rollouts(states=["running"])
        assert len(store.release_worker("w-").result()) == len(running) <= 8
        store.release([rollout.spec.rollout_id for rollout in store.rollouts()])
        assert list((tmp_path / "payloads").iterdir()) == []  # the dead writer's last segment goes too


def test_two_processes_never_claim_the_same_rollout(tmp_path: Path, opened: Opened, make: Any) -> None:
    names = [f"r-{number}" for number in range(500)]
    with opened(tmp_path) as store:
        store.create_rollouts([make.spec(name) for name in names]).result()
        claimers = [start(CLAIMER, str(tmp_path), f"w-{number}") for number in range(2)]
        for claimer in claimers:
            assert claimer.stdout is not None and claimer.stdout.readline() == "ready\n"
        outputs = []
        for claimer in claimers:
            assert claimer.stdin is not None
            claimer.stdin.write("go\n")
            claimer.stdin.flush()
        for claimer in claimers:
            outputs.append(claimer.communicate(timeout=100)[0].split())
            assert claimer.returncode == 0
        assert sorted(outputs[0] + outputs[1]) == sorted(names)  # each once
        for number, claimed in enumerate(outputs):
            assert all(store.attempts(name)[0].worker == f"w-{number}" for name in claimed)
