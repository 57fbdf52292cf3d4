"""The gateway as a process: ready file, SIGTERM, kill -9 and a new start."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import aiohttp
import pytest

from whippletree.errors import ConfigurationError
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key, load_secret, mint
from whippletree.gateway.server import Parts, serve, serving
from whippletree.store import open_store
from whippletree.types import RolloutSpec

PROGRAM = """
import sys
from pathlib import Path
from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts, run
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store

root, model, ready, token_seconds = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
renderer = load_renderer(model, RenderingConfig(template="tiny"))

def script(prompt):
    return renderer.codec.encode("hello there " * 40 + "<|im_end|>")

def parts():
    engine = ScriptedEngine(script, vocabulary=420, context=4096, faults=Faults(token_seconds=token_seconds))
    return Parts(store=open_store(root), engines=[engine], renderer=renderer, secret=load_secret(root / "gateway.secret"))

run(GatewayConfig(), parts, ready_file=ready)
"""


@pytest.fixture
def start(tmp_path, model_dir):
    """start(token_seconds) → (process, port); ends what it started."""
    store = open_store(tmp_path / "run")
    spec = RolloutSpec(rollout_id="r0", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
    store.create_rollouts([spec]).result()
    store.claim("worker", 1).result()
    store.close()
    program = tmp_path / "gateway_program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    started = []

    async def begin(token_seconds=0.0):
        ready = tmp_path / f"ready-{len(started)}.json"
        argv = [sys.executable, str(program), str(tmp_path / "run"), str(model_dir), str(ready), str(token_seconds)]
        process = subprocess.Popen(argv, env={**os.environ, "OMP_NUM_THREADS": "1"})
        started.append(process)
        while not ready.exists():
            assert process.poll() is None, "the gateway ended before it was ready"
            await asyncio.sleep(0.02)
        said = json.loads(ready.read_bytes())
        assert said["pid"] == process.pid
        return process, said["port"]

    yield begin
    for process in started:
        process.kill()
        process.wait()


async def chat(port, key, messages):
    body = {"model": "policy", "messages": messages}
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/r/{key}/v1/chat/completions"
        async with session.post(url, json=body) as response:
            return response.status, await response.json()


async def test_a_killed_gateway_starts_again_and_conversations_go_on(start, tmp_path):
    process, port = await start()
    key = mint(load_secret(tmp_path / "run" / "gateway.secret"), "r0", 1)
    messages = [{"role": "user", "content": "go"}]
    status, reply = await chat(port, key, messages)
    assert status == 200
    process.kill()
    process.wait()
    _, port = await start()
    messages += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
    status, _ = await chat(port, key, messages)
    assert status == 200
    store = open_store(tmp_path / "run")
    one, two = store.calls("r0", 1)
    store.close()
    assert (one.prefix_break, two.prefix_break, two.parent_call_id) == ("first", "", one.call_id)


async def test_sigterm_records_what_was_under_way_and_ends_the_process(start, tmp_path):
    process, port = await start(token_seconds=0.3)
    key = mint(load_secret(tmp_path / "run" / "gateway.secret"), "r0", 1)
    control = GatewayControl(f"http://127.0.0.1:{port}", control_key(load_secret(tmp_path / "run" / "gateway.secret")))
    messages = [{"role": "user", "content": "go"}]
    pending = asyncio.create_task(chat(port, key, messages))
    while not (await control.status_async()).in_flight:
        await asyncio.sleep(0.02)
    body = {"model": "policy", "messages": messages, "stream": True}  # the same call, so that its first token is seen
    url = f"http://127.0.0.1:{port}/r/{key}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert b'"content":' in await response.content.readany()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    status, body = await pending
    assert (status, body["error"]["code"]) == (503, "gateway_stopping")
    store = open_store(tmp_path / "run")
    (call,) = store.calls("r0", 1)
    store.close()
    assert (call.finish_reason, call.delivered) == ("abort", False)


async def test_the_ready_file_appears_once_requests_are_answered(tmp_path, renderer):
    store = open_store(tmp_path / "run")
    parts = Parts(store=store, engines=[], renderer=renderer, secret=bytes(32))
    stop, ready = asyncio.Event(), tmp_path / "ready.json"
    serving_task = asyncio.create_task(serve(GatewayConfig(), parts, ready_file=ready, stop=stop))
    while not ready.exists():
        await asyncio.sleep(0.01)
    port = json.loads(ready.read_bytes())["port"]
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as response:
        assert response.status == 200
    stop.set()
    await serving_task
    store.close()


async def test_an_address_in_use_is_an_error_that_says_so(make_world):
    async with make_world(None) as world:
        parts = Parts(store=world.store, engines=[], renderer=world.renderer, secret=bytes(32))
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{world.port}"):
            async with serving(GatewayConfig(port=world.port), parts):
                pytest.fail("it listened on a port in use")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "gateway.internal"])
async def test_an_address_that_others_reach_is_refused_unless_it_is_allowed(tmp_path, renderer, host):
    store = open_store(tmp_path / "run")
    parts = Parts(store=store, engines=[], renderer=renderer, secret=bytes(32))
    with pytest.raises(ConfigurationError, match=r"can be reached from other machines .*allow_remote = true.*keys"):
        async with serving(GatewayConfig(host=host), parts):
            pytest.fail("it listened")
    store.close()


async def test_an_address_that_others_reach_still_asks_for_keys(tmp_path, renderer):
    store = open_store(tmp_path / "run")
    parts = Parts(store=store, engines=[], renderer=renderer, secret=bytes(32))
    async with (
        serving(GatewayConfig(host="0.0.0.0", allow_remote=True), parts) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/v1/models") as response,
    ):
        assert response.status == 401
    store.close()


async def test_sockets_that_listen_already_are_used_beside_one_another(tmp_path, renderer):
    store = open_store(tmp_path / "run")
    parts = Parts(store=store, engines=[], renderer=renderer, secret=bytes(32))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in sockets]
    async with serving(GatewayConfig(), parts, sockets=sockets) as port, aiohttp.ClientSession() as session:
        assert port == ports[0]
        for one in ports:
            async with session.get(f"http://127.0.0.1:{one}/healthz") as response:
                assert response.status == 200
    store.close()
