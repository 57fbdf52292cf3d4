"""Snapshots of attempts: which are kept, of which moment, for how long, and that none of it changes how an attempt ends."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import msgspec
import pytest
from attempt_parts import failed, run_one
from control_world import PASS_IF_DONE, REWARD, World, until, write_task

from whippletree import sandboxes
from whippletree.configuration import convert
from whippletree.control import phases as phases_module
from whippletree.control.config import ControlConfig, DeadlineConfig
from whippletree.control.keeping import SKIPPED, Keeping, Shelf
from whippletree.control.phases import SNAPSHOT, Phases
from whippletree.control.place import slug
from whippletree.errors import ConfigurationError
from whippletree.protocols import SandboxSpec, Snapshot
from whippletree.sandboxes import SandboxConfig
from whippletree.types import Attempt, CauseClass, Event, Rollout

CRIU = os.environ.get("WHIPPLETREE_CRIU", "")
SUPPORT = sandboxes.probe(
    SandboxConfig(kind="runc", root=str(Path(tempfile.gettempdir()) / f"whippletree-{os.geteuid()}"), criu=CRIU)
)
needs_criu = pytest.mark.skipif(
    bool(SUPPORT.checkpoint), reason=f"no checkpoints here (WHIPPLETREE_CRIU names a criu): {SUPPORT.checkpoint}"
)
needs_runc = pytest.mark.skipif(bool(SUPPORT.runc), reason=f"runc does not work here: {SUPPORT.runc}")
KINDS = [
    "process",
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bool(SUPPORT.bubblewrap), reason=f"{SUPPORT.bubblewrap}")),
]
NO_REWARD = "#!/bin/sh\ntouch judged; echo no tests ran\nexit 3\n"
AWAY = ("127.0.0.1", 9)


def kept(world: World) -> list[Path]:
    return sorted((world.directory / "attempts").glob("*/*/snapshot"))


def skipped(world: World, rollout: Rollout) -> list[Event]:
    world.store.set_meta("flush", "").result()  # behind every write that was made before
    return [event for event in world.store.events(rollout.spec.rollout_id) if event.kind == SKIPPED]


async def look(world: World, attempt: Attempt, command: str) -> str:
    """What a command says in the machine that was kept."""
    assert attempt.snapshot is not None
    snapshot = sandboxes.load_snapshot(world.directory / attempt.snapshot.directory)
    spec = SandboxSpec(
        sandbox_id="look", workdir=snapshot.workdir, gateway_port=0, rootfs=snapshot.rootfs, read_only=snapshot.read_only
    )
    config = msgspec.structs.replace(world.sandbox, kind=snapshot.backend)
    box = sandboxes.restore(config, snapshot, spec, gateway=AWAY)
    try:
        await box.start()
        return (await box.exec(["/bin/sh", "-c", command], timeout=20)).output
    finally:
        await box.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_all_keeps_what_the_agent_left_before_the_verifier_came(
    world: World, tmp_path: Path, kind: Literal["process", "bubblewrap"]
) -> None:
    world.sandbox = msgspec.structs.replace(world.sandbox, kind=kind)
    task = write_task(tmp_path / "t", test=PASS_IF_DONE + "touch judged\n")
    rollout, attempt = await run_one(world, task, snapshots="all", settings={"command": "touch done; echo mine > left"})
    assert (rollout.state, rollout.reward) == ("succeeded", 1.0)
    assert [phase.name for phase in attempt.phases] == ["boot", "setup", "agent", "seal", "snapshot", "verify", "cleanup"]
    found = attempt.snapshot
    assert found is not None and (found.holds, found.after) == ("files", "seal")
    assert found.reason == f"{kind} sandboxes cannot be checkpointed" and found.bytes > 0
    assert [world.directory / found.directory] == kept(world)
    assert await look(world, attempt, "cat left; ls") == "mine\ndone\nleft\n"
    assert skipped(world, rollout) == []


async def test_off_keeps_nothing_and_is_the_default(world: World, tmp_path: Path) -> None:
    _, attempt = await run_one(world, write_task(tmp_path / "t"), settings={"raise": "fell over"})
    assert attempt.snapshot is None and kept(world) == []
    assert SNAPSHOT not in [phase.name for phase in attempt.phases]


@pytest.mark.parametrize("command", ["touch done", "true"])
async def test_failed_keeps_none_of_an_attempt_with_a_reward(world: World, tmp_path: Path, command: str) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), snapshots="failed", settings={"command": command})
    assert rollout.state == "succeeded" and attempt.snapshot is None
    assert kept(world) == [] and skipped(world, rollout) == []


async def test_failed_keeps_the_machine_that_the_verifier_got(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", test=NO_REWARD)
    rollout, attempt = await run_one(world, task, snapshots="failed", settings={"command": "echo mine > left"})
    failed(rollout, CauseClass.VERIFIER, "verify")
    assert attempt.snapshot is not None and attempt.snapshot.after == "seal"
    assert await look(world, attempt, "ls; cat left") == "left\nmine\n"  # not what the tests made of it


async def test_a_crashed_agent_leaves_its_machine_and_each_try_has_its_own(world: World, tmp_path: Path) -> None:
    shell = "echo $$ > pid; exit 3"
    rollout, _ = await run_one(
        world, write_task(tmp_path / "t"), launch="process", max_attempts=2, snapshots="failed", settings={"shell": shell}
    )
    failed(rollout, CauseClass.HARNESS, "agent")
    first, second = world.store.attempts(rollout.spec.rollout_id)
    assert first.snapshot is not None and second.snapshot is not None
    assert {first.snapshot.after, second.snapshot.after} == {"seal"} and first.snapshot.directory != second.snapshot.directory
    assert len(kept(world)) == 2
    assert "pid" in (await look(world, second, "ls")).split()


async def test_an_attempt_that_never_had_a_machine_has_no_snapshot_of_it(world: World, tmp_path: Path) -> None:
    world.sandbox = SandboxConfig(kind="bubblewrap", root=world.sandbox.root, bwrap="/bin/false")
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), snapshots="failed")
    failed(rollout, CauseClass.SANDBOX, "boot")
    assert attempt.snapshot is None and skipped(world, rollout) == []


async def test_a_failure_in_setup_is_kept_as_it_was_then(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(
        world, write_task(tmp_path / "t"), launch="process", snapshots="failed", settings={"raise": "no plan"}
    )
    failed(rollout, CauseClass.SETUP, "setup")
    assert attempt.snapshot is not None and attempt.snapshot.after == "setup"
    assert await look(world, attempt, "basename $PWD; ls") == "app\n"


@pytest.mark.parametrize("snapshots", ["all", "failed"])
async def test_a_snapshot_that_cannot_be_made_is_an_event_and_no_failure(world: World, tmp_path: Path, snapshots: str) -> None:
    """Something lies already where it is to go."""
    task = write_task(tmp_path / "t")
    names = world.add(1, task)
    made(world.directory, slug(names[0]), 0.0, 1)
    async with world.controlling(world.spec(snapshots=snapshots)):
        (rollout,) = await world.finished(names)
    attempt = world.store.attempts(names[0])[-1]
    assert (rollout.state, rollout.reward, attempt.snapshot) == ("succeeded", 1.0, None)
    (event,) = skipped(world, rollout)
    assert "File exists" in event.data["reason"] and event.data["after"] == "seal"


async def test_a_snapshot_that_takes_too_long_is_an_event_and_no_failure(world: World, tmp_path: Path) -> None:
    """The limit is over at once; the attempt goes on and nothing of the snapshot stays."""
    deadlines = DeadlineConfig(grace=2.0, seal=10.0, snapshot=1e-6)
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), snapshots="all", deadlines=deadlines)
    assert (rollout.state, rollout.reward, attempt.snapshot) == ("succeeded", 1.0, None)
    (event,) = skipped(world, rollout)
    assert "raise deadlines.snapshot" in event.data["reason"]
    assert [phase.overran for phase in attempt.phases if phase.name == SNAPSHOT] == [True]
    assert kept(world) == []


async def test_a_cancelled_attempt_is_not_kept(world: World, tmp_path: Path) -> None:
    names = world.add(1, write_task(tmp_path / "t"))
    async with world.controlling(world.spec(snapshots="all", settings={"command": "touch begun; sleep 1000"})):
        await until(lambda: world.turns == 1)
        await asyncio.wrap_future(world.store.cancel(names, "no longer wanted"))
        await until(lambda: world.boxes() == [])
    assert kept(world) == []


async def test_the_key_is_not_in_the_record(world: World, tmp_path: Path) -> None:
    _, attempt = await run_one(
        world, write_task(tmp_path / "t"), launch="process", snapshots="all", settings={"shell": "exit 3"}
    )
    assert attempt.snapshot is not None
    assert b"wt-" not in msgspec.json.encode(attempt.snapshot)
    assert (world.directory / attempt.snapshot.directory).stat().st_mode & 0o777 == 0o700  # the machine itself may hold it


# --- the shelf -----------------------------------------------------------------------------------------------------------


def made(run: Path, name: str, time: float, size: int) -> Snapshot:
    """A finished snapshot on disk."""
    directory = run / "attempts" / name / "1" / "snapshot"
    directory.mkdir(parents=True, exist_ok=True)
    snapshot = Snapshot(
        directory=str(directory),
        backend="process",
        holds="files",
        sandbox_id=name,
        owner=0,
        workdir="/app",
        files_bytes=size,
        processes_bytes=0,
        frozen_seconds=0.1,
        time=time,
    )
    (directory / "snapshot.json").write_bytes(msgspec.json.encode(snapshot))
    return snapshot


def names(run: Path) -> list[str]:
    return sorted(path.parent.parent.name for path in (run / "attempts").glob("*/*/snapshot"))


async def test_the_oldest_go_when_a_run_has_too_much(tmp_path: Path) -> None:
    for number, time in enumerate((3.0, 1.0, 2.0)):
        made(tmp_path, f"old-{number}", time, 30)
    shelf = Shelf(tmp_path, 100)
    await shelf.open()
    assert await shelf.add(made(tmp_path, "new", 4.0, 30))
    assert names(tmp_path) == ["new", "old-0", "old-2"]
    assert await shelf.add(made(tmp_path, "newer", 5.0, 70))
    assert names(tmp_path) == ["new", "newer"]


async def test_one_that_is_too_large_by_itself_goes_too(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 100)
    await shelf.open()
    assert not await shelf.add(made(tmp_path, "large", 1.0, 101))
    assert names(tmp_path) == []


async def test_what_a_killed_controller_did_not_finish_is_removed_before_the_first_new_one(tmp_path: Path) -> None:
    made(tmp_path, "done", 1.0, 10)
    unfinished = tmp_path / "attempts" / "cut" / "1" / "snapshot"
    (unfinished / "fs" / "closed").mkdir(parents=True)
    (unfinished / "fs" / "closed").chmod(0)
    shelf = Shelf(tmp_path, 100)
    await asyncio.gather(shelf.open(), shelf.open())
    assert names(tmp_path) == ["done"]
    (unfinished / "again").mkdir(parents=True)  # one that is being made now
    await shelf.open()
    assert names(tmp_path) == ["cut", "done"]


async def test_a_run_beyond_its_limit_keeps_the_latest(world: World, tmp_path: Path) -> None:
    names = world.add(3, write_task(tmp_path / "t"))
    spec = world.spec(
        snapshots="all", snapshots_gb=1.5e6 / 2**30, concurrency=1, settings={"command": "yes | head -c 1000000 > f"}
    )
    async with world.controlling(spec):
        await world.finished(names)
    last = world.store.attempts(names[-1])[-1]
    assert last.snapshot is not None and kept(world) == [world.directory / last.snapshot.directory]


# --- limits and settings -------------------------------------------------------------------------------------------------


async def test_a_snapshot_takes_nothing_of_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(phases_module, "time", SimpleNamespace(time=lambda: now, monotonic=lambda: now))
    phases = Phases(100.0, lambda phase: None)
    phases.begin()
    async with phases.enter(SNAPSHOT, 500.0):
        now += 300.0
    assert phases.left == 100.0
    async with phases.enter("verify", 500.0):
        now += 60.0
    assert phases.left == 40.0


def test_snapshots_of_what_a_cluster_runs_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"run\.toml.*snapshots are of sandboxes on this machine"):
        convert(ControlConfig, {"launch": "kubernetes", "snapshots": "all"}, "run.toml")
    with pytest.raises(ConfigurationError, match="snapshots"):
        convert(ControlConfig, {"snapshots": "some"}, "run.toml")


# --- processes -----------------------------------------------------------------------------------------------------------

LEAVES = (
    'setsid -f sh -c "echo \\$\\$ > pid; while :; do date +%s%N > beat.new; mv beat.new beat; sleep 0.02; done" '
    ">/dev/null 2>&1; while ! test -s beat; do sleep 0.02; done; exit 3"
)


@needs_criu
async def test_the_processes_that_a_failed_agent_left_are_kept_too(world: World, tmp_path: Path) -> None:
    world.sandbox = SandboxConfig(kind="runc", root=world.sandbox.root, criu=CRIU)
    rollout, attempt = await run_one(
        world, write_task(tmp_path / "t"), launch="process", snapshots="failed", settings={"shell": LEAVES}
    )
    failed(rollout, CauseClass.HARNESS, "agent")
    assert attempt.snapshot is not None, skipped(world, rollout)
    assert (attempt.snapshot.holds, attempt.snapshot.reason) == ("processes+files", "")
    said = await look(
        world,
        attempt,
        "a=$(cat beat); while [ $a = $(cat beat) ]; do sleep 0.02; done; echo beats; kill -0 $(cat pid) && echo lives",
    )
    assert said == "beats\nlives\n"


@needs_runc
async def test_where_processes_cannot_be_kept_the_record_says_why(world: World, tmp_path: Path) -> None:
    world.sandbox = SandboxConfig(kind="runc", root=world.sandbox.root, criu="/bin/false")
    test = f"#!/bin/sh\necho 1 {REWARD}\n"
    rollout, attempt = await run_one(world, write_task(tmp_path / "t", test=test), snapshots="all")
    assert rollout.reward == 1.0
    assert attempt.snapshot is not None and attempt.snapshot.holds == "files"
    assert attempt.snapshot.reason.startswith("criu could not dump the processes: ")


# --- several steps, and being stopped ------------------------------------------------------------------------------------


def write_steps(directory: Path) -> Path:
    for step in ("one", "two"):
        for name, text in (("instruction.md", f"make {step}"), ("tests/test.sh", f"#!/bin/sh\necho 1 {REWARD}\n")):
            path = directory / "steps" / step / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return write_task(directory, toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')


async def test_a_task_with_steps_is_kept_once_after_its_last(world: World, tmp_path: Path) -> None:
    task = write_steps(tmp_path / "t")
    rollout, attempt = await run_one(world, task, snapshots="all", settings={"command": "echo x >> turns"})
    assert rollout.reward == 1.0
    assert [phase.name for phase in attempt.phases].count(SNAPSHOT) == 1
    assert await look(world, attempt, "ls; cat turns") == "turns\nx\nx\n"


async def test_a_snapshot_that_is_stopped_while_it_is_made_leaves_nothing(world: World, tmp_path: Path) -> None:
    """As when the controller is told to stop, and does not wait."""
    (name,) = world.add(1, write_task(tmp_path / "t"))
    (attempt,) = world.store.claim("here", 1).result()
    config = ControlConfig(snapshots="all")
    directory = world.directory / "attempts" / "x" / "1"
    keeping = Keeping(config, Shelf(world.directory, 1e9), world.store, attempt, directory, key="wt-key", hidden="[key]")
    box = sandboxes.create(world.sandbox, SandboxSpec(sandbox_id="s", gateway_port=0), gateway=AWAY)
    await box.start()
    try:
        running = asyncio.create_task(box.exec(["/bin/sh", "-c", "touch begun; sleep 1000"], timeout=1000))
        while await box.read("/app/begun") is None:
            await asyncio.sleep(0.01)
        taking = asyncio.create_task(keeping.take(box, Phases(60.0, lambda phase: None)))  # it waits for the command
        await until(directory.joinpath("snapshot").exists)
        taking.cancel()
        running.cancel()
        await asyncio.wait([taking, running])
        assert taking.cancelled()
        assert (await box.exec(["/bin/sh", "-c", "echo on"], timeout=10)).output == "on\n"
    finally:
        await box.stop()
    await keeping.settle(None)
    assert keeping.kept is None and kept(world) == []
    assert skipped(world, world.store.rollout(name)) == []


async def test_a_sandbox_that_died_is_an_event_with_the_reason(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(
        world, write_task(tmp_path / "t"), snapshots="failed", settings={"kill": True, "command": "true"}
    )
    failed(rollout, CauseClass.SANDBOX, "agent")
    assert attempt.snapshot is None
    (event,) = skipped(world, rollout)
    assert event.data["after"] == "seal"
    assert "made no snapshot" in event.data["reason"] or "ended during its snapshot" in event.data["reason"]
