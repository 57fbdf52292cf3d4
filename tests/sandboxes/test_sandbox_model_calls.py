"""A model call in flight survives a snapshot: the restored client reads the end, asks again, and gets what was sampled.

The engine is paused while a call is in flight, so that nothing here depends on how long a snapshot takes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_world import World
from sandbox_suite import NOTHING, config_of, left_behind, spec_of

from whippletree import sandboxes
from whippletree.engines.config import Faults
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key, mint
from whippletree.protocols import Snapshot
from whippletree.types import Call

SUPPORT = sandboxes.probe(config_of("runc", Path(tempfile.gettempdir()) / f"whippletree-{os.geteuid()}"))
needs_criu = pytest.mark.skipif(
    bool(SUPPORT.checkpoint), reason=f"no checkpoints here (WHIPPLETREE_CRIU names a criu): {SUPPORT.checkpoint}"
)
needs_runc = pytest.mark.skipif(bool(SUPPORT.runc), reason=f"runc does not work here: {SUPPORT.runc}")

REPLY = "amber birch code 0123456789 submit, then wyvern jinx quiz fjord glyph vex"  # its first letter comes once

TOKEN_SECONDS = 0.3  # until the engine is paused

# An agent on the standard library. It notes each try, what it has read so far, each broken connection, and the whole reply.
AGENT = """
import http.client, json, os, sys, time
how, key = sys.argv[1], sys.argv[2]
body = {"model": "policy", "messages": [{"role": "user", "content": "start"}], "stream": how == "stream"}
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}

def note(name, text):
    with open("/app/" + name, "a") as file:
        file.write(text)

def read(answer):
    if how != "stream":
        return json.loads(answer.read())["choices"][0]["message"]["content"]
    said = ""
    while True:
        line = answer.readline()
        if not line:
            raise ConnectionError("the stream ended early")
        if line.startswith(b"data: [DONE]"):
            return said
        if line.startswith(b"data: "):
            piece = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            said += piece
            note("seen", piece)

for number in range(100):
    try:
        note("tries", ".")
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(answer.status)
        said = read(answer)
        break
    except (OSError, http.client.HTTPException) as error:
        note("errors", type(error).__name__ + "\\n")
        headers["x-stainless-retry-count"] = str(number + 1)
        time.sleep(0.1)
note("answer.part", said)
os.rename("/app/answer.part", "/app/answer")
"""

# The same with the official SDK, which tries again by itself.
SDK = """
import os, sys
from openai import OpenAI
client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key=sys.argv[2], max_retries=5, timeout=120)
open("/app/tries", "w").write(".")
done = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "start"}])
open("/app/answer.part", "w").write(done.choices[0].message.content)
os.rename("/app/answer.part", "/app/answer")
"""


class Calling:
    """A gateway with one running rollout, and sandboxes that ask it."""

    def __init__(self, world: World, root: Path, directory: Path) -> None:
        self.world, self.root, self.directory = world, root, directory
        (self.rollout,) = world.add(1, directory, harness="here")
        world.store.claim("here", 1).result()
        self.key = mint(world.secret, self.rollout, 1)
        self.config = config_of("runc", root)
        self.control = GatewayControl(f"http://127.0.0.1:{world.port}", control_key(world.secret))
        self.boxes: list[sandboxes.Box] = []

    @property
    def gateway(self) -> tuple[str, int]:
        return "127.0.0.1", self.world.port

    def calls(self) -> list[Call]:
        return self.world.store.calls(self.rollout, 1)

    async def box(self, script: str, how: str, **fields: Any) -> sandboxes.Box:
        """A sandbox with an agent in the background, which calls at once."""
        box = sandboxes.create(self.config, spec_of(**fields), gateway=self.gateway)
        self.boxes.append(box)
        await box.start()
        words = ("sh", "-c", 'exec python3 -c "$@" >/logs/out 2>&1', "sh", script, how, self.key)
        await box.exec(("setsid", "-f", *words), timeout=20)
        return box

    async def again(self, snapshot: Snapshot, **fields: Any) -> sandboxes.Box:
        box = sandboxes.restore(self.config, snapshot, spec_of(**fields), gateway=self.gateway)
        self.boxes.append(box)
        await box.start()
        return box

    async def frozen_call(self, box: sandboxes.Box, *, tokens: bool) -> Snapshot:
        """Pause the engine once the call runs (with `tokens`: once some of them were read), then take the snapshot."""
        await until_async(self.running, "the call in the engine")
        if tokens:
            await until_async(lambda: box.read("/app/seen"), "the first tokens")
        await self.world.engine.pause()
        snapshot = await box.snapshot(self.directory / f"snapshot-{len(self.boxes)}")
        assert snapshot.holds == "processes+files", snapshot.reason
        return snapshot

    async def go_on(self) -> None:
        """Let the engine sample the rest, at once."""
        self.world.engine.faults = Faults()
        await self.world.engine.resume()

    async def running(self) -> int:
        return (await self.world.engine.status()).running

    async def answer(self, box: sandboxes.Box) -> str:
        found = await until_async(lambda: box.read("/app/answer"), "the answer")
        return found.decode()

    async def reads_again(self, box: sandboxes.Box) -> bool:
        """Whether its second try reads the stream: it gets everything from the first letter on, which comes once in REPLY."""
        return (await box.read("/app/seen") or b"").count(REPLY[0].encode()) == 2

    async def delivered(self) -> list[Call]:
        """The calls, once the last one's delivery is noted."""
        await until_async(lambda: asyncio.to_thread(lambda: self.calls() and self.calls()[-1].delivered), "the delivery")
        return self.calls()

    def ids(self, call: Call) -> list[int]:
        return self.world.store.payload(call).sampled_ids.tolist()

    def text(self, call: Call) -> str:
        return self.world.tokenizer.decode(self.ids(call))


async def until_async(condition: Callable[[], Any], what: str) -> Any:
    """Wait for what another process does; fails after a long time only."""
    for _ in range(1500):
        if found := await condition():
            return found
        await asyncio.sleep(0.02)
    pytest.fail(f"never came: {what}")


def rest(prompt: str) -> str:
    """What the model has still to say behind a prompt that may end with the beginning of its reply."""
    return REPLY[max(number for number in range(len(REPLY)) if prompt.endswith(REPLY[:number])) :]


@pytest.fixture
async def calling(tmp_path: Path, sandbox_root: Path, request: pytest.FixtureRequest) -> AsyncIterator[Calling]:
    world = World(tmp_path / "run")
    world.say = rest  # type: ignore[method-assign]
    world.engine.faults = Faults(token_seconds=TOKEN_SECONDS)
    world.gateway = msgspec.structs.replace(world.gateway, linger_limit=getattr(request, "param", 0.0))
    async with world.serving():
        made = Calling(world, sandbox_root, tmp_path)
        try:
            yield made
        finally:
            await world.engine.resume()
            for box in made.boxes:
                await box.stop()
    world.close()
    assert left_behind(sandbox_root) == NOTHING


lingering = pytest.mark.parametrize("calling", [60.0], indirect=True)


@needs_criu
@lingering
@pytest.mark.parametrize("how", ["stream", "whole"])
async def test_the_restored_client_gets_the_one_reply_that_was_being_sampled(calling: Calling, how: str) -> None:
    box = await calling.box(AGENT, how)
    snapshot = await calling.frozen_call(box, tokens=how == "stream")
    await box.stop()
    other = await calling.again(snapshot)
    await until_async(lambda: other.read("/app/errors"), "the end of the restored connection")
    await calling.go_on()
    assert await calling.answer(other) == REPLY
    (call,) = await calling.delivered()
    assert calling.world.turns == 1  # the engine was asked once
    assert call.finish_reason == "stop" and calling.text(call) == REPLY
    assert (await other.read("/app/tries")) == b".."
    report = await calling.control.seal_async(calling.rollout, 1)
    assert (report.calls, report.delivered) == (1, 1)


@needs_criu
@pytest.mark.parametrize("how", ["stream", "whole"])
async def test_without_lingering_it_goes_on_from_what_was_sampled(calling: Calling, how: str) -> None:
    box = await calling.box(AGENT, how)
    if how == "whole":
        await until_async(calling.running, "the call in the engine")
        await asyncio.sleep(3 * TOKEN_SECONDS)  # some tokens; how many does not matter
    snapshot = await calling.frozen_call(box, tokens=how == "stream")
    await box.stop()
    await until_async(lambda: asyncio.to_thread(calling.calls), "the record of the call that was cut short")
    other = await calling.again(snapshot)
    await calling.go_on()
    assert await calling.answer(other) == REPLY
    cut, whole = await calling.delivered()
    assert (cut.finish_reason, cut.delivered, whole.finish_reason) == ("abort", False, "stop")
    kept = calling.ids(cut)
    assert kept and calling.ids(whole)[: len(kept)] == kept and calling.text(whole) == REPLY


@needs_criu
async def test_who_is_restored_before_the_original_stops_joins_its_call(calling: Calling) -> None:
    box = await calling.box(AGENT, "stream")
    snapshot = await calling.frozen_call(box, tokens=True)
    other = await calling.again(snapshot)
    await until_async(lambda: calling.reads_again(other), "the restored client's retry")
    await box.stop()
    await calling.go_on()
    assert await calling.answer(other) == REPLY
    (call,) = await calling.delivered()
    assert calling.world.turns == 1 and calling.text(call) == REPLY


@needs_criu
@lingering
@pytest.mark.parametrize("how", ["stream", "whole"])
async def test_a_call_that_ended_before_the_restore_is_replayed(calling: Calling, how: str) -> None:
    box = await calling.box(AGENT, how)
    snapshot = await calling.frozen_call(box, tokens=how == "stream")
    await box.stop()
    await calling.go_on()
    await until_async(lambda: asyncio.to_thread(calling.calls), "the record of the call that nobody waits for")
    assert not calling.calls()[0].delivered
    other = await calling.again(snapshot)
    assert await calling.answer(other) == REPLY
    (call,) = await calling.delivered()
    assert calling.world.turns == 1 and calling.text(call) == REPLY
    assert (await calling.control.status_async()).replayed == 1


@needs_criu
async def test_a_reply_that_the_original_got_is_told_again_to_a_restored_client_that_says_it_retries(calling: Calling) -> None:
    box = await calling.box(AGENT, "stream")
    snapshot = await calling.frozen_call(box, tokens=True)
    await calling.go_on()
    assert await calling.answer(box) == REPLY
    await calling.delivered()
    other = await calling.again(snapshot)
    assert await calling.answer(other) == REPLY
    assert await other.read("/app/errors") == b"ConnectionError\n" and await box.read("/app/errors") is None
    (call,) = calling.calls()
    assert calling.world.turns == 1 and call.delivered


@needs_criu
@lingering
async def test_forks_that_repeat_the_call_get_the_same_reply(calling: Calling) -> None:
    box = await calling.box(AGENT, "stream")
    snapshot = await calling.frozen_call(box, tokens=True)
    await box.stop()
    specs = [spec_of(sandbox_id=f"fork-{number}") for number in range(3)]
    forks = await sandboxes.fork(calling.config, snapshot, specs, gateway=calling.gateway)
    calling.boxes += forks
    for fork in forks:
        await until_async(lambda fork=fork: calling.reads_again(fork), "the retry of each fork")
    await calling.go_on()
    assert [await calling.answer(fork) for fork in forks] == [REPLY] * 3
    (call,) = await calling.delivered()
    assert calling.world.turns == 1 and calling.text(call) == REPLY


@needs_criu
@lingering
async def test_the_official_sdk_tries_again_by_itself(calling: Calling) -> None:
    packages = sdk_for_the_sandbox()
    box = await calling.box(SDK, "whole", read_only=((packages, "/opt/packages"),), environment={"PYTHONPATH": "/opt/packages"})
    snapshot = await calling.frozen_call(box, tokens=False)
    await box.stop()
    other = await calling.again(snapshot, read_only=((packages, "/opt/packages"),))
    await calling.go_on()
    assert await calling.answer(other) == REPLY
    (call,) = await calling.delivered()
    assert calling.world.turns == 1 and calling.text(call) == REPLY
    assert call.client.startswith("OpenAI/Python"), call.client


@needs_runc
async def test_without_criu_the_call_ends_with_its_sandbox_and_the_snapshot_says_why(calling: Calling) -> None:
    calling.config = msgspec.structs.replace(calling.config, criu="/bin/false")
    box = await calling.box(AGENT, "stream")
    await until_async(lambda: box.read("/app/seen"), "the first tokens")
    await calling.world.engine.pause()
    snapshot = await box.snapshot(calling.directory / "snapshot")
    assert snapshot.holds == "files" and snapshot.reason.startswith("criu could not dump the processes: ")
    assert sandboxes.load_snapshot(calling.directory / "snapshot") == snapshot
    await box.stop()
    await until_async(lambda: asyncio.to_thread(calling.calls), "the record of the call that was cut short")
    other = await calling.again(snapshot)
    assert (await other.usage()).processes == 0
    assert REPLY.startswith((await other.read("/app/seen") or b"-").decode())
    (call,) = calling.calls()
    assert (call.finish_reason, call.delivered) == ("abort", False)


def sdk_for_the_sandbox() -> str:
    """The directory that holds this interpreter's packages; skips where the sandbox's Python could not use them."""
    found = importlib.util.find_spec("openai")
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    if found is None or found.origin is None or version.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip("the openai package of this Python cannot be used by /usr/bin/python3")
    return str(Path(found.origin).parent.parent)
