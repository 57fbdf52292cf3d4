"""Snapshots: what they hold, that they are of one moment, and that what is restored goes on by itself."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sandbox_suite import NOTHING, Make, config_of, left_behind, processes_with, sh, spec_of, until

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.protocols import Snapshot
from whippletree.sandboxes.keeper import Kept

SUPPORT = sandboxes.probe(config_of("runc", Path(tempfile.gettempdir()) / f"whippletree-{os.geteuid()}"))
KINDS = [
    "process",
    *([] if SUPPORT.bubblewrap else ["bubblewrap"]),
    *([] if SUPPORT.runc else ["runc"]),
    *([] if SUPPORT.podman else ["podman"]),
]
needs_runc = pytest.mark.skipif(bool(SUPPORT.runc), reason=f"runc does not work here: {SUPPORT.runc}")
needs_criu = pytest.mark.skipif(
    bool(SUPPORT.checkpoint), reason=f"no checkpoints here (WHIPPLETREE_CRIU names a criu): {SUPPORT.checkpoint}"
)

Restore = Callable[..., Awaitable[sandboxes.Box]]
AWAY = ("127.0.0.1", 9)

COUNTER = """
import sys, time
log = open("log", "a")
for number in range(10**9):
    log.write(f"{number}\\n")
    log.flush()
    time.sleep(0.01)
"""


@pytest.fixture
async def again(sandbox_root: Path) -> AsyncIterator[Restore]:
    made: list[sandboxes.Box] = []

    async def start(snapshot: Snapshot, *, gateway: tuple[str, int] = AWAY, **fields: Any) -> sandboxes.Box:
        box = sandboxes.restore(config_of(snapshot.backend, sandbox_root), snapshot, spec_of(**fields), gateway=gateway)
        made.append(box)
        await box.start()
        return box

    yield start
    for box in made:
        await box.stop()


async def count(box: sandboxes.Box) -> None:
    """Leave a process in the background that counts in its memory and writes each number to a file."""
    await box.exec(("setsid", "-f", "sh", "-c", 'exec python3 -c "$1" >/logs/out 2>&1', "sh", COUNTER), timeout=20)
    for _ in range(500):
        if len((await sh(box, "cat log 2>/dev/null")).output.split()) >= 5:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the counter does not count")


WRITER = """
import time
for number in range(10**9):
    print(number, flush=True)
    with open("log", "a") as log:
        log.write(f"{number}\\n")
    time.sleep(0.01)
"""


@needs_criu
async def test_output_that_nobody_waits_for_is_dropped_in_what_is_restored_too(
    make: Make, again: Restore, tmp_path: Path
) -> None:
    box = await make("runc")
    left = await box.exec(("sh", "-c", 'python3 -c "$1" & true', "sh", WRITER), timeout=300)
    assert left.left_running
    first = await again(await box.snapshot(tmp_path / "first"))
    snapshot = await first.snapshot(tmp_path / "second")
    assert (snapshot.holds, snapshot.reason) == ("processes+files", "")
    for restored in (first, await again(snapshot)):
        seen = await numbers(restored)
        for _ in range(500):
            if len(await numbers(restored)) > len(seen) + 5:
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("it does not write on")
        found = await numbers(restored)
        assert found == list(range(len(found)))


async def numbers(box: sandboxes.Box) -> list[int]:
    return [int(word) for word in (await sh(box, "cat log 2>/dev/null")).output.split()]


@pytest.mark.parametrize("kind", KINDS)
async def test_files_come_back_with_owners_modes_and_links(
    kind: str, make: Make, again: Restore, tmp_path: Path, sandbox_root: Path
) -> None:
    box = await make(kind)
    await sh(box, "mkdir -p d/e; echo x > d/e/f; chmod 640 d/e/f; ln -s f d/e/l; mkfifo p; chmod 700 .; echo t > ../tmp/t")
    await sh(box, "chmod 600 /logs; touch -d 2001-02-03 d/e/f" if kind != "process" else "touch -d 2001-02-03 d/e/f")
    snapshot = await box.snapshot(tmp_path / "s")
    assert snapshot == sandboxes.load_snapshot(tmp_path / "s")
    assert (snapshot.backend, snapshot.workdir, snapshot.sandbox_id) == (kind, "/app", box.handle and box.handle.sandbox_id)
    assert (snapshot.environment, snapshot.limits) == (spec_of().environment, spec_of().limits)
    assert snapshot.files_bytes > 0 and snapshot.frozen_seconds > 0
    assert (snapshot.holds == "files") is bool(snapshot.reason)
    if kind != "runc":
        assert snapshot.reason == f"{kind} sandboxes cannot be checkpointed"
    await sh(box, "echo later > d/e/f; rm -r d")
    await box.stop()
    other = await again(snapshot)
    seen = await sh(other, "cat d/e/l; stat -c '%a %U %.10y' d/e/f; test -p p && stat -c %a .; cat ../tmp/t")
    owner = "agent" if kind != "process" else (await sh(other, "id -un")).output.strip()
    assert seen.output.split("\n")[:4] == ["x", f"640 {owner} 2001-02-03", "700", "t"]
    if kind != "process":
        assert (await sh(other, "stat -c '%a %U' /logs")).output == "600 agent\n"
    await sh(other, "echo more > d/e/f")
    third = await again(snapshot)
    assert (await sh(third, "cat d/e/f")).output == "x\n"
    for done in (other, third):
        await done.stop()
    assert left_behind(sandbox_root) == NOTHING


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in ("runc", "podman")])
async def test_what_was_removed_from_usr_stays_removed(kind: str, make: Make, again: Restore, tmp_path: Path) -> None:
    box = await make(kind)
    await sh(box, "rm /usr/bin/env; rm -rf /usr/share/doc; mkdir /usr/share/doc; echo x > /usr/share/doc/own", user="root")
    other = await again(await box.snapshot(tmp_path / "s"))
    assert "No such file" in (await sh(other, "ls /usr/bin/env")).output
    assert (await sh(other, "ls /usr/share/doc")).output == "own\n"


@needs_criu
async def test_processes_and_files_are_of_one_moment(make: Make, again: Restore, tmp_path: Path, sandbox_root: Path) -> None:
    box = await make("runc")
    await count(box)
    snapshot = await box.snapshot(tmp_path / "s")
    assert (snapshot.holds, snapshot.reason) == ("processes+files", "")
    assert snapshot.processes_bytes > 100_000
    other = await again(snapshot)
    for one in (box, other):
        before = len(await numbers(one))
        for _ in range(500):
            if len(await numbers(one)) > before + 3:
                break
            await asyncio.sleep(0.02)
        found = await numbers(one)
        assert found == list(range(len(found))) and len(found) > before  # no number is missing, none is there twice
        assert (await sh(one, "cat /logs/out")).output == ""
    assert (await other.usage()).processes == 1
    await other.kill_all()
    assert (await other.usage()).processes == 0 and (await box.usage()).processes == 1
    for one in (other, box):
        await one.stop()
    assert left_behind(sandbox_root) == NOTHING


@needs_criu
async def test_only_the_files_come_back_where_that_is_asked_for(make: Make, sandbox_root: Path, tmp_path: Path) -> None:
    box = await make("runc")
    await count(box)
    snapshot = await box.snapshot(tmp_path / "s")
    assert snapshot.holds == "processes+files"
    config = msgspec.structs.replace(config_of("runc", sandbox_root), criu="/bin/false")  # as on a machine without it
    other = sandboxes.restore(config, snapshot, spec_of(sandbox_id="files"), gateway=AWAY, processes=False)
    try:
        await other.start()
        found = await numbers(other)
        assert len(found) >= 5 and (await other.usage()).processes == 0
    finally:
        await other.stop()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bubblewrap"])  # which waits for no command
async def test_a_snapshot_that_is_given_up_leaves_a_sandbox_that_works_and_makes_no_other(
    kind: str, make: Make, tmp_path: Path
) -> None:
    box = await make(kind)
    running = asyncio.create_task(sh(box, "touch begun; sleep 1000", timeout=1000))
    while await box.read("/app/begun") is None:
        await asyncio.sleep(0.02)
    given_up = asyncio.create_task(box.snapshot(tmp_path / "s"))  # waits for the command
    await asyncio.sleep(0.1)
    for task in (given_up, running):
        task.cancel()
    await asyncio.wait([given_up, running])
    assert given_up.cancelled() and not (tmp_path / "s" / "snapshot.json").exists()
    assert (await sh(box, "echo on")).output == "on\n"
    with pytest.raises(SandboxError, match="an earlier snapshot was given up"):
        await box.snapshot(tmp_path / "again")
    assert not (tmp_path / "again").exists()


@needs_criu
async def test_forks_go_their_own_ways(make: Make, sandbox_root: Path, tmp_path: Path) -> None:
    box = await make("runc")
    await count(box)
    snapshot = await box.snapshot(tmp_path / "s")
    await box.stop()
    config = config_of("runc", sandbox_root)
    forks = await sandboxes.fork(config, snapshot, [spec_of(sandbox_id=f"fork-{n}") for n in range(4)], gateway=AWAY)
    try:
        for number, fork in enumerate(forks):
            await sh(fork, f"echo {number} > mine")
        assert [(await sh(fork, "cat mine")).output for fork in forks] == [f"{number}\n" for number in range(4)]
        assert [(await fork.usage()).processes for fork in forks] == [1] * 4
        second = await forks[0].snapshot(tmp_path / "second")  # a snapshot of what was restored
        assert second.holds == "processes+files"
        with pytest.raises(SandboxError, match="File exists"):
            await sandboxes.fork(config, snapshot, [spec_of(sandbox_id="new"), spec_of(sandbox_id="fork-1")], gateway=AWAY)
        assert not (sandbox_root / "new").exists()
    finally:
        await asyncio.gather(*(fork.stop() for fork in forks))
    assert left_behind(sandbox_root) == NOTHING


CLIENT = """
import http.client, os, time
while True:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
        connection.request("GET", "/call")
        answer = connection.getresponse().read().decode()
        break
    except (OSError, http.client.HTTPException) as error:
        open("/app/errors", "a").write(f"{type(error).__name__}\\n")
        time.sleep(0.05)
open("/app/answer.part", "w").write(answer)
os.rename("/app/answer.part", "/app/answer")
"""


@needs_criu
async def test_a_model_call_in_flight_is_retried_after_the_restore(make: Make, again: Restore, tmp_path: Path) -> None:
    asked = 0
    answer = asyncio.Event()

    async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nsampled")
        await writer.drain()
        writer.close()

    async def answered(box: sandboxes.Box) -> bytes | None:
        for _ in range(1500):
            if (found := await box.read("/app/answer")) is not None:
                return found
            await asyncio.sleep(0.02)
        return None

    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    box = await make("runc", gateway=address)
    await box.exec(("setsid", "-f", "sh", "-c", 'exec python3 -c "$1" >/logs/out 2>&1', "sh", CLIENT), timeout=20)
    await until(lambda: asked == 1, "the call")
    snapshot = await box.snapshot(tmp_path / "s")
    assert snapshot.holds == "processes+files", snapshot.reason
    other = await again(snapshot, gateway=address)
    await until(lambda: asked == 2, "the retry of the restored client")
    assert await other.read("/app/errors") == b"RemoteDisconnected\n"  # it read the end of the connection
    assert await box.read("/app/errors") is None  # the call of the one that went on is still open
    answer.set()
    assert await answered(box) == await answered(other) == b"sampled"
    assert asked == 2
    server.close()


@needs_criu
async def test_the_death_of_its_keeper_ends_what_was_restored(
    make: Make, again: Restore, tmp_path: Path, sandbox_root: Path
) -> None:
    box = await make("runc")
    mark = f"72{os.getpid()}"
    await sh(box, f"setsid -f sleep {mark} >/dev/null 2>&1")
    snapshot = await box.snapshot(tmp_path / "s")
    await box.stop()
    assert processes_with(f"sleep\0{mark}") == []
    await again(snapshot, sandbox_id="again")
    assert len(processes_with(f"sleep\0{mark}")) == 1
    kept = msgspec.json.decode((sandbox_root / "again" / "state.json").read_bytes(), type=Kept)
    os.kill(kept.keeper, 9)
    await until(lambda: not processes_with(f"sleep\0{mark}"), "the end of its processes")
    cleaned = await asyncio.to_thread(sandboxes.clean, config_of("runc", sandbox_root))
    assert cleaned.removed == ("again",) and left_behind(sandbox_root) == NOTHING


@needs_criu
async def test_a_snapshot_waits_for_commands_and_is_refused_while_one_runs(sandbox_root: Path, tmp_path: Path) -> None:
    config = config_of("runc", sandbox_root, snapshot_seconds=3.0)
    box = sandboxes.create(config, spec_of(), gateway=AWAY)
    await box.start()
    try:
        pieces: list[bytes] = []
        command = "echo begun; while ! test -e go; do sleep 0.02; done; echo done"
        running = asyncio.create_task(sh(box, command, timeout=100, on_output=pieces.append))
        await until(lambda: bool(pieces), "the command")
        with pytest.raises(SandboxError, match="commands are running"):
            await box.snapshot(tmp_path / "s")
        assert list(tmp_path.iterdir()) == []
        await sh(box, "touch go")
        assert (await running).output == "begun\ndone\n"
        assert (await box.snapshot(tmp_path / "s")).holds == "processes+files"
    finally:
        await box.stop()


@needs_runc
async def test_where_criu_does_not_work_a_snapshot_holds_files_and_says_why(
    make: Make, again: Restore, sandbox_root: Path, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(config_of("runc", sandbox_root), criu="/bin/false")
    box = sandboxes.create(config, spec_of(), gateway=AWAY)
    await box.start()
    try:
        await count(box)
        snapshot = await box.snapshot(tmp_path / "s")
        assert snapshot.holds == "files" and snapshot.reason.startswith("criu could not dump the processes: ")
        assert snapshot.processes_bytes == 0 and not (tmp_path / "s" / "processes").exists()
        before = len(await numbers(box))
        while len(await numbers(box)) <= before:  # it goes on
            await asyncio.sleep(0.02)
        other = await again(snapshot)
        found = await numbers(other)
        assert found == list(range(len(found))) and (await other.usage()).processes == 0
    finally:
        await box.stop()


@needs_criu
async def test_a_damaged_snapshot_is_refused_with_what_criu_said(make: Make, again: Restore, tmp_path: Path) -> None:
    box = await make("runc")
    snapshot = await box.snapshot(tmp_path / "s")
    for image in (tmp_path / "s" / "processes").glob("core-*.img"):
        image.write_bytes(b"damaged")
    with pytest.raises(SandboxError, match=r"criu could not restore the processes: .*core"):
        await again(snapshot, sandbox_id="damaged")


@pytest.mark.parametrize("kind", KINDS[:2])
async def test_what_cannot_be_restored_is_refused(kind: str, make: Make, again: Restore, tmp_path: Path) -> None:
    box = await make(kind)
    snapshot = await box.snapshot(tmp_path / "s")
    with pytest.raises(SandboxError, match="File exists"):
        await box.snapshot(tmp_path / "s")
    assert sandboxes.load_snapshot(tmp_path / "s") == snapshot
    with pytest.raises(SandboxError, match=r"workdir is '/app' in the snapshot and '/srv/x' in the spec"):
        await again(snapshot, workdir="/srv/x")
    with pytest.raises(SandboxError, match="leave `files` empty"):
        await again(snapshot, files=((str(tmp_path / "s"), "/app"),))
    with pytest.raises(SandboxError, match=r"cannot be restored by"):
        sandboxes.restore(
            sandboxes.SandboxConfig(kind="bubblewrap" if kind == "process" else "process"), snapshot, spec_of(), gateway=AWAY
        )
    if kind == "process":
        with pytest.raises(SandboxError, match="the root file system of the snapshot is gone"):
            await again(msgspec.structs.replace(snapshot, rootfs="/no/such/root"), rootfs="/no/such/root")
    (tmp_path / "s" / "snapshot.json").unlink()
    with pytest.raises(SandboxError, match="the snapshot is gone"):
        await again(snapshot)
    with pytest.raises(SandboxError, match="no snapshot"):
        sandboxes.load_snapshot(tmp_path / "s")
