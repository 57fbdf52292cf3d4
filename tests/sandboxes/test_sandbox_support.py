"""What works here, which backend that means, and what survives a killed controller."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import msgspec
import pytest
from sandbox_suite import NOTHING, Make, left_behind, processes_with, running, sh, spec_of, until

from whippletree import sandboxes
from whippletree.configuration import field_docs
from whippletree.errors import ConfigurationError, SandboxError
from whippletree.protocols import Limits
from whippletree.sandboxes import kernel
from whippletree.sandboxes.keeper import LOCK, STATE, Kept
from whippletree.sandboxes.leftovers import remove_left

SUPPORT = sandboxes.probe()
KINDS = [
    "process",
    *(["bubblewrap"] if SUPPORT.works else []),
    *([] if SUPPORT.runc else ["runc"]),
    *([] if SUPPORT.podman else ["podman"]),
]


def test_probe_tells_what_does_not_work_and_leaves_nothing(sandbox_root: Path) -> None:
    config = sandboxes.SandboxConfig(root=str(sandbox_root))
    found = sandboxes.probe(config)
    assert found.works is (found.bubblewrap == "")
    assert found.version.startswith("bubblewrap ") or not found.works
    away = sandboxes.probe(msgspec.structs.replace(config, bwrap="/no/such/bwrap"))
    assert not away.works and "/no/such/bwrap does not run" in away.bubblewrap
    broken = sandboxes.probe(msgspec.structs.replace(config, bwrap="/bin/true"))
    assert not broken.works and "did not start" in broken.bubblewrap
    assert "ended with 1" in sandboxes.probe(msgspec.structs.replace(config, runc="/bin/false")).runc
    assert left_behind(sandbox_root) == NOTHING


async def test_auto_falls_back_and_says_why(sandbox_root: Path) -> None:
    config = sandboxes.SandboxConfig(root=str(sandbox_root), bwrap="/bin/false")
    backend = sandboxes.choose(config)
    assert backend.kind == "process" and "bubblewrap does not work here" in backend.sentence
    box = sandboxes.create(config, spec_of(), gateway=("127.0.0.1", 9))
    assert "NO isolation" in box.isolation and box.isolation == backend.sentence
    works = sandboxes.choose(sandboxes.SandboxConfig(root=str(sandbox_root)))
    assert works.kind == KINDS[SUPPORT.works]


def test_every_setting_is_documented() -> None:
    assert set(field_docs(sandboxes.SandboxConfig)) == set(sandboxes.SandboxConfig.__struct_fields__)


def test_a_root_that_others_can_write_to_is_refused(sandbox_root: Path) -> None:
    sandbox_root.chmod(0o777)
    with pytest.raises(ConfigurationError, match="only you can write"):
        sandboxes.create(sandboxes.SandboxConfig(kind="process", root=str(sandbox_root)), spec_of(), gateway=("127.0.0.1", 9))


def test_helpers_import_neither_numpy_nor_aiohttp() -> None:
    code = "import sys, whippletree.sandboxes.launcher; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    names = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "aiohttp", "asyncio", "torch"} & set(names)


CONTROLLER = textwrap.dedent(
    """
    import asyncio, sys
    from whippletree import sandboxes
    from whippletree.protocols import SandboxSpec

    async def main(kind, root, mark):
        config = sandboxes.SandboxConfig(kind=kind, root=root)
        for number in range(2):
            spec = SandboxSpec(sandbox_id=f"killed-{number}")
            box = sandboxes.create(config, spec, gateway=("127.0.0.1", 9))
            await box.start()
            await box.exec(("sh", "-c", f"setsid -f sleep {mark} >/dev/null 2>&1"), timeout=20)
            asyncio.create_task(box.exec(("sleep", mark), timeout=600))
        print("up", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
    """
)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_controller_leaves_nothing(kind: str, sandbox_root: Path) -> None:
    mark = f"75{os.getpid()}"
    controller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, kind, str(sandbox_root), mark, stdout=asyncio.subprocess.PIPE
    )
    assert controller.stdout is not None
    assert await controller.stdout.readline() == b"up\n"
    await until(lambda: len(processes_with(f"sleep\0{mark}")) == 4, "its commands")
    controller.send_signal(signal.SIGKILL)
    await controller.wait()
    await until(lambda: not processes_with(f"sleep\0{mark}"), "the end of its processes")
    await until(lambda: left_behind(sandbox_root) == NOTHING, "the removal of what it left")
    cleaned = await asyncio.to_thread(sandboxes.clean, sandboxes.SandboxConfig(root=str(sandbox_root)), "killed-")
    assert cleaned == sandboxes.Cleaned()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_removed_from_outside_has_ended_then(kind: str, make: Make, sandbox_root: Path) -> None:
    """No wait between the kill of its keeper, the removal and the look; with cgroups, where they can be had, and without."""
    mark = f"73{os.getpid()}"
    for number in range(6):
        limits = Limits() if number % 2 else Limits(memory_mb=0, processes=0)
        box = await make(kind, sandbox_id=f"gone-{number}", limits=limits)
        await sh(box, f"for one in $(seq 30); do setsid -f sleep {mark} >/dev/null 2>&1; done")
        await until(lambda: len(processes_with(f"sleep\0{mark}")) == 30, "its processes")
        kept = msgspec.json.decode((sandbox_root / f"gone-{number}" / STATE).read_bytes(), type=Kept)
        pids = [kept.keeper, kept.pid, *processes_with(f"sleep\0{mark}")]
        assert all(running(pid) for pid in pids)
        os.kill(kept.keeper, signal.SIGKILL)
        assert sandboxes.clean(sandboxes.SandboxConfig(root=str(sandbox_root)), "gone-").removed == (f"gone-{number}",)
        assert [pid for pid in pids if running(pid)] == []


KEEPER = textwrap.dedent(
    """
    import os, signal, socket, sys
    from whippletree.sandboxes import cgroups, keeper, wire

    root, place = sys.argv[1:]
    setattr(cgroups, place, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    request = wire.BoxRequest(backend="process", sandbox_id="early-0", root=root, workdir="/app", processes=64, memory_mb=64)
    keeper.keep(request, socket.socketpair()[0])
    """
)


@pytest.mark.parametrize("place", ["_limit", "join"])
def test_a_keeper_that_is_killed_before_its_sandbox_is_there_leaves_nothing(place: str, sandbox_root: Path) -> None:
    """While it makes its cgroups and right after: what it made is on record from the start."""
    if SUPPORT.cgroups:
        pytest.skip(f"no cgroup can be made here: {SUPPORT.cgroups}")
    keeper = subprocess.run(
        (sys.executable, "-c", KEEPER, str(sandbox_root), place), capture_output=True, text=True, check=False
    )
    assert keeper.returncode == -signal.SIGKILL, keeper.stderr
    assert left_behind(sandbox_root)["folders"] == ["early-0"]
    assert sandboxes.clean(sandboxes.SandboxConfig(root=str(sandbox_root)), "early-").removed == ("early-0",)
    assert left_behind(sandbox_root) == NOTHING


def test_a_process_that_has_the_number_of_one_that_ended_is_left_alone(sandbox_root: Path) -> None:
    """What is on record is of before: of another start, another boot, another PID namespace."""
    with subprocess.Popen(("sleep", "600")) as other:
        right = Kept(
            backend="bubblewrap",
            keeper=1,
            pid=other.pid,
            started=kernel.start_time(other.pid),
            boot=kernel.boot_id(),
            namespace=kernel.pid_namespace(),
        )
        for wrong in ({"started": right.started - 1}, {"started": 0}, {"boot": "another"}, {"namespace": 1}):
            assert _removed_as(msgspec.structs.replace(right, **wrong), sandbox_root)
            assert other.poll() is None
        assert _removed_as(right, sandbox_root)
        assert other.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize("lives", [False, True])
def test_a_killed_keepers_child_that_holds_its_lock_is_waited_for(sandbox_root: Path, lives: bool) -> None:
    """Only where the keeper has ended, or has been killed and has not ended yet."""
    with subprocess.Popen(("sleep", "600")) as keeper:
        kept = Kept(backend="process", keeper=keeper.pid, pid=0, boot=kernel.boot_id(), namespace=kernel.pid_namespace())
        if not lives:
            keeper.kill()
        folder = sandbox_root / "before"
        folder.mkdir()
        held = (folder / LOCK).open("wb")
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / STATE).write_bytes(msgspec.json.encode(kept))
        if not lives:
            threading.Timer(2.0, held.close).start()
        assert remove_left(folder) is not lives and folder.exists() is lives
        assert held.closed is not lives
        held.close()
        keeper.kill()


def _removed_as(kept: Kept, root: Path) -> bool:
    folder = root / "before"
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / STATE).write_bytes(msgspec.json.encode(kept))
    return remove_left(folder) and not folder.exists()


async def test_a_killed_launcher_is_replaced(sandbox_root: Path) -> None:
    from whippletree.sandboxes.launching import launcher

    config = sandboxes.SandboxConfig(kind="process", root=str(sandbox_root))
    first = sandboxes.create(config, spec_of(), gateway=("127.0.0.1", 9))
    await first.start()
    assert launcher()._process is not None
    launcher()._process.kill()
    launcher()._process.wait()
    second = sandboxes.create(config, spec_of(), gateway=("127.0.0.1", 9))
    await second.start()
    for box in (first, second):
        assert (await box.exec(("echo", "on"), timeout=20)).output == "on\n"
        await box.stop()


async def test_a_sandbox_that_is_stopped_before_its_turn_never_starts(sandbox_root: Path) -> None:
    config = sandboxes.SandboxConfig(kind="process", root=str(sandbox_root), starts_at_once=1)
    one, two = (sandboxes.create(config, spec_of(sandbox_id=name), gateway=("127.0.0.1", 9)) for name in ("one", "two"))
    first, second = asyncio.create_task(one.start()), asyncio.create_task(two.start())
    await asyncio.sleep(0)
    assert (one.waiting, two.waiting) == (False, True)
    await two.stop()
    await first
    with pytest.raises(SandboxError, match="stopped before its turn"):
        await second
    assert [path.name for path in sandbox_root.iterdir()] == ["one"]
    await one.stop()


async def test_stop_before_start_and_a_second_start(sandbox_root: Path) -> None:
    config = sandboxes.SandboxConfig(kind="process", root=str(sandbox_root))
    box = sandboxes.create(config, spec_of(), gateway=("127.0.0.1", 9))
    await box.stop()
    await box.start()
    with pytest.raises(SandboxError, match="started already"):
        await box.start()
    await box.stop()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sandbox_id": "a/b"}, "cannot name a sandbox"),
        ({"workdir": "app"}, "not an absolute path"),
        ({"workdir": "/usr/app"}, "cannot be the work directory"),
        ({"files": (("/etc/hostname", "/app/../x"),)}, "not an absolute path"),
        ({"rootfs": "/"}, "has the host's programs"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_before_anything_is_made(
    sandbox_root: Path, wrong: dict[str, object], said: str
) -> None:
    config = sandboxes.SandboxConfig(kind="process", root=str(sandbox_root))
    with pytest.raises(SandboxError, match=said):
        sandboxes.create(config, spec_of(**wrong), gateway=("127.0.0.1", 9))
    assert left_behind(sandbox_root) == NOTHING
