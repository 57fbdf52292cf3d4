"""The controller as a process: signals, kill -9 and take-over, wrong specs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from control_world import World, until, write_task

from whippletree.control.process import ControllerReady, sandbox_prefix
from whippletree.control.spec import ControllerSpec
from whippletree.types import CauseClass


def start(world: World, spec: ControllerSpec) -> subprocess.Popen[bytes]:
    path = world.directory / "controller.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(spec, ready_file=str(world.directory / "ready.json"))))
    (world.directory / "ready.json").unlink(missing_ok=True)
    return subprocess.Popen([sys.executable, "-m", "whippletree.control", str(path)], stderr=subprocess.PIPE)


def mentions(text: str) -> list[int]:
    """Live processes whose command line or environment has this text."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (path / "cmdline").read_bytes() + (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


async def test_kill_9_and_a_new_start_end_every_rollout_once(world: World, tmp_path: Path) -> None:
    world.engine.faults = type(world.engine.faults)(first_token_seconds=0.4)
    names = world.add(12, write_task(tmp_path / "t"))
    marker = f"MARK={tmp_path}"
    spec = world.spec(concurrency=4, settings={"command": f"touch done; {marker} sleep 0.1"})
    first = start(world, spec)
    await until(lambda: world.turns >= 3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    left = world.store.rollouts(states=("running",))
    assert left
    prefix = sandbox_prefix(world.directory)
    await until(lambda: not mentions(prefix) and world.boxes() == [])  # sandboxes and their commands died with it
    second = start(world, spec)
    try:
        rollouts = await world.finished(names)
    finally:
        second.send_signal(signal.SIGTERM)
        _, log = await asyncio.to_thread(second.communicate)
    assert second.returncode == 0, log
    assert {(rollout.state, rollout.reward) for rollout in rollouts} == {("succeeded", 1.0)}
    for name in names:
        attempts = world.store.attempts(name)
        assert [attempt.result is not None for attempt in attempts] == [False] * (len(attempts) - 1) + [True]
        assert all(attempt.cause and attempt.cause.cause is CauseClass.HOST_LOST for attempt in attempts[:-1])
    assert world.boxes() == [] and mentions(prefix) == [] and mentions(marker) == []


OWNER = """
import sys
from whippletree.control.supervisor import ChildSpec, Supervisor
supervisor = Supervisor()
supervisor.start(ChildSpec(name="controller", argv=(sys.executable, "-m", "whippletree.control", sys.argv[1]),
                           log_path=sys.argv[1] + ".log", ready_file=sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""


async def test_kill_9_of_a_supervisor_takes_controller_hosts_and_sandboxes_along(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(3, write_task(tmp_path / "t"))
    spec, ready = tmp_path / "controller.json", tmp_path / "ready.json"
    spec.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(world.spec(settings={"command": "sleep 1000"}), ready_file=str(ready)))
    )
    monkeypatch.setenv("TEST_MARK", f"{tmp_path}-mark")  # inherited by all that it starts
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(spec), str(ready)], stdin=-1, stdout=-1)
    assert owner.stdout is not None
    assert await asyncio.to_thread(owner.stdout.readline) == b"ready\n"
    marks = (f"{tmp_path}-mark", sandbox_prefix(world.directory))
    await until(lambda: len(mentions(marks[1])) >= 3 and len(world.boxes()) == 3)  # the commands
    await until(lambda: len(mentions(marks[0])) >= 4)  # owner, controller, two hosts
    owner.kill()
    owner.communicate()
    await until(lambda: not mentions(marks[0]) and not mentions(marks[1]) and world.boxes() == [])  # the keepers tidy up


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(world: World, tmp_path: Path, number: int) -> None:
    names = world.add(3, write_task(tmp_path / "t"))
    process = start(world, world.spec(settings={"command": "sleep 1000"}))
    await until(lambda: world.turns == 3)
    ready = msgspec.json.decode((world.directory / "ready.json").read_bytes(), type=ControllerReady)
    assert (ready.pid, ready.hosts, ready.concurrency) == (process.pid, 2, 16)
    process.send_signal(number)
    _, log = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, log
    assert {world.store.rollout(name).state for name in names} == {"queuing"}
    assert world.boxes() == [] and mentions(sandbox_prefix(world.directory)) == []


async def test_wrong_starts_say_what_is_wrong(world: World, tmp_path: Path) -> None:
    (name,) = world.add(1, write_task(tmp_path / "t"))
    path = tmp_path / "spec.json"
    path.write_text('{"directory": "x", "store": "y", "secret": "z", "gateway_ulr": "http://127.0.0.1:1"}')
    cases = [
        (subprocess.Popen([sys.executable, "-m", "whippletree.control", str(path)], stderr=subprocess.PIPE), 1, "gateway_url"),
        (subprocess.Popen([sys.executable, "-m", "whippletree.control"], stderr=subprocess.PIPE), 2, "usage"),
        (start(world, world.spec(adapter="harness_parts:BrokenHarness")), 1, "the_agent"),
    ]
    for process, status, text in cases:
        _, log = await asyncio.to_thread(process.communicate)
        assert process.returncode == status and text in log.decode(), log
    assert world.store.rollout(name).state == "queuing"
