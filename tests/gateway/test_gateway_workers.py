"""Several gateway processes behind one port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from gateway_world import user
from hypothesis import given
from hypothesis import strategies as st
from sandbox_suite import running

from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key, load_secret, mint
from whippletree.gateway.ownership import owner
from whippletree.store import open_store
from whippletree.types import RolloutSpec, Sampling

ROLLOUTS = [f"r{index}" for index in range(12)]


@given(st.text(), st.integers(1, 64))
def test_every_rollout_has_one_owner(rollout_id: str, workers: int):
    assert owner(rollout_id, workers) == owner(rollout_id, workers) in range(workers)


def test_owners_are_spread_evenly():
    counts = Counter(owner(f"s{index:04d}-g01-m3", 4) for index in range(4000))
    assert all(850 < counts[number] < 1150 for number in range(4))


class Fleet:
    """The gateway's parent process, seen from outside."""

    def __init__(self, directory: Path, model: Path, workers: int, pace: float) -> None:
        self.directory = directory
        self.secret = load_secret(directory / "secret")
        with open_store(directory / "store") as store:
            for name in ROLLOUTS:
                spec = RolloutSpec(
                    rollout_id=name,
                    group_id="g",
                    source="s",
                    task_id="t",
                    task_path="",
                    harness="h",
                    sampling=Sampling(max_tokens=64),
                )
                store.open_session(spec).result()
        script = str(Path(__file__).with_name("worker_gateway.py"))
        command = [sys.executable, script, str(directory), str(model), str(workers), str(pace)]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 60
        while not (directory / "ready.json").exists():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        ready = json.loads((directory / "ready.json").read_text())
        self.port, self.ports = ready["port"], ready["workers"]
        self.control = GatewayControl(f"http://127.0.0.1:{self.port}", control_key(self.secret))

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def key(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {mint(self.secret, name, 1)}"}

    async def chat(self, http: aiohttp.ClientSession, name: str, messages: list[Any], *, port: int = 0, **fields: Any) -> Any:
        url = f"http://127.0.0.1:{port or self.port}/v1/chat/completions"
        body = {"model": "policy", "messages": messages, **fields}
        async with http.post(url, json=body, headers=self.key(name)) as response:
            return response.status, await response.read()


@pytest.fixture
def fleet(tmp_path: Path, model_dir: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    made = Fleet(tmp_path, model_dir, 2, getattr(request, "param", 0.0))
    yield made
    made.process.terminate()
    assert made.process.wait(60) == 0


async def test_whatever_the_port_the_rollouts_owner_answers_and_calls_go_on_from_each_other(fleet: Fleet):
    async with aiohttp.ClientSession() as http:
        messages = [user("go")]
        for turn in range(4):
            port = [*fleet.ports, fleet.port, fleet.port][turn]
            status, data = await fleet.chat(http, "r0", messages, port=port)
            assert status == 200
            messages += [json.loads(data)["choices"][0]["message"], user("on")]
    with open_store(fleet.directory / "store") as store:
        calls = store.calls("r0", 1)
    assert [call.index for call in calls] == [0, 1, 2, 3]
    assert [call.parent_call_id for call in calls] == ["", *(call.call_id for call in calls[:-1])]
    assert len({call.payload.segment for call in calls if call.payload}) == 1  # one process wrote them all


async def test_a_forwarded_stream_is_the_owners_own(fleet: Fleet):
    body = {"stream": True, "stream_options": {"include_usage": True}}
    number = owner("r1", 2)
    async with aiohttp.ClientSession() as http:
        _, direct = await fleet.chat(http, "r1", [user("go")], port=fleet.ports[number], **body)
        retry = {**fleet.key("r1"), "x-stainless-retry-count": "1"}  # the same call again, through the other worker
        url = f"http://127.0.0.1:{fleet.ports[1 - number]}/v1/chat/completions"
        asked = {"model": "policy", "messages": [user("go")], **body}
        async with http.post(url, json=asked, headers=retry) as response:
            forwarded = await response.read()
            assert response.headers["Content-Type"] == "text/event-stream"

    def told(data: bytes) -> tuple[str, str]:
        events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
        text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        return events[0]["id"], text

    assert told(forwarded) == told(direct)


async def test_a_refusal_is_forwarded_as_it_is_and_a_client_cannot_pose_as_a_worker(fleet: Fleet):
    other = fleet.ports[1 - owner("r2", 2)]
    async with aiohttp.ClientSession() as http:
        assert (await fleet.chat(http, "r2", [], port=other))[0] == 400
        url = f"http://127.0.0.1:{other}/v1/chat/completions"
        headers = {**fleet.key("r2"), "X-Whippletree-Forwarded": mint(fleet.secret, "r2", 1)}
        async with http.post(url, json={"messages": [user("go")]}, headers=headers) as response:
            assert response.status == 200
    with open_store(fleet.directory / "store") as store:
        (call,) = store.calls("r2", 1)
        segment = call.payload.segment if call.payload else ""
    assert segment.startswith(f"gateway-{owner('r2', 2)}-")  # it went to the owner all the same


@pytest.mark.parametrize("fleet", [0.02], indirect=True)
async def test_a_hold_holds_all_workers_and_counts_are_sums(fleet: Fleet):
    async with aiohttp.ClientSession() as http:
        held = await fleet.control.hold_async(limit=5)
        assert (held.held, held.in_flight) == (True, 0)
        waiting = [asyncio.create_task(fleet.chat(http, name, [user("go")])) for name in ROLLOUTS]
        while (await fleet.control.status_async()).waiting < len(ROLLOUTS):
            await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert not (await fleet.control.release_async()).held
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * len(ROLLOUTS)
    status = fleet.control.status()
    assert (status.calls, status.delivered, status.in_flight) == (len(ROLLOUTS), len(ROLLOUTS), 0)
    assert fleet.control.seal("r0", 1).calls == 1


async def test_a_lease_that_ran_out_is_ended_once_by_all_workers_together(fleet: Fleet):
    names = [f"outside-{number}" for number in range(8)]
    with open_store(fleet.directory / "store") as store:
        spec = store.rollout("r0").spec
        store.create_rollouts([msgspec.structs.replace(spec, rollout_id=name) for name in names]).result()
        for name in names:
            store.begin(name, "node-1", 0.3).result()
        deadline = time.monotonic() + 60
        while any(store.rollout(name).state == "running" for name in names):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)  # every worker has looked again
        assert [(store.rollout(name).state, len(store.attempts(name))) for name in names] == [("queuing", 1)] * len(names)
        assert all(store.rollout(name).state == "running" for name in ROLLOUTS)


async def test_without_the_control_key_no_worker_is_held(fleet: Fleet):
    async with aiohttp.ClientSession() as http:
        for port in (*fleet.ports, fleet.port):
            async with http.post(f"http://127.0.0.1:{port}/control/hold", headers=fleet.key("r0")) as response:
                assert response.status == 403
            async with http.post(f"http://127.0.0.1:{port}/pause") as response:
                assert response.status == 401
        assert {(await fleet.chat(http, name, [user("go")]))[0] for name in ROLLOUTS} == {200}
    assert not fleet.control.status().held


async def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path, model_dir: Path):
    for number, ending in enumerate((signal.SIGTERM, signal.SIGKILL)):
        directory = tmp_path / str(number)
        fleet = Fleet(directory, model_dir, 2, 0.0)
        children = fleet.children()
        assert len(children) == 2
        fleet.process.send_signal(ending)
        fleet.process.wait(60)
        while any(running(pid) for pid in children):
            await asyncio.sleep(0.05)


HASTY = """
import os, signal, sys, time
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.workers import Workers

class Hasty(Workers):
    def _worker(self, place, tell):
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(1.0)
        super()._worker(place, tell)

workers = Hasty(GatewayConfig(workers=1), lambda place, ready: time.sleep(600))
code = workers.run(None)
print(code, workers._running[0].exitcode)
"""


def test_a_worker_that_is_told_to_stop_as_it_begins_stops():
    done = subprocess.run([sys.executable, "-c", HASTY], timeout=100, check=True, capture_output=True, text=True)
    assert done.stdout == f"0 {-signal.SIGTERM}\n"  # not killed after the time that a worker may take


@pytest.mark.chaos
@pytest.mark.parametrize("fleet", [0.005], indirect=True)
async def test_killed_workers_lose_no_acknowledged_call(fleet: Fleet):
    """Clients that retry as SDKs do, while workers die again and again: what a client was told is what the store has."""
    told: dict[str, list[str]] = {name: [] for name in ROLLOUTS}
    retried = 0
    stop = asyncio.Event()

    async def client(http: aiohttp.ClientSession, name: str) -> None:
        nonlocal retried
        messages = [user("go")]
        while not stop.is_set():
            try:
                status, data = await fleet.chat(http, name, messages)
            except (aiohttp.ClientError, OSError):
                retried += 1
                continue
            if status != 200:
                assert status == 503, data
                continue
            reply = json.loads(data)
            told[name].append(reply["id"])
            messages = [*messages, reply["choices"][0]["message"], user("on")][-9:] if len(messages) < 9 else [user("go")]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        clients = [asyncio.create_task(client(http, name)) for name in ROLLOUTS]
        for _ in range(6):
            await asyncio.sleep(0.7)
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(fleet.children()[0], signal.SIGKILL)
        await asyncio.sleep(1.5)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
    assert retried > 0
    with open_store(fleet.directory / "store") as store:
        for name, ids in told.items():
            calls = store.calls(name, 1)
            recorded = {f"chatcmpl-{call.call_id.removeprefix('c-')}" for call in calls}
            assert ids and set(ids) <= recorded
            assert [call.index for call in calls] == sorted({call.index for call in calls})
            for call in calls:
                payload = store.payload(call)
                assert len(payload.sampled_ids) == len(payload.logprobs) == call.sampled_tokens
