"""Cases D28, D29, D31 and D32, as far as they concern sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sandbox_suite import running

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.protocols import Limits, SandboxSpec
from whippletree.sandboxes import leftovers, podman
from whippletree.sandboxes.keeper import Kept
from whippletree.sandboxes.recipes import Build
from whippletree.sandboxes.support import find_bwrap

LIMITS = Limits(memory_mb=128, processes=32)
AWAY = ("127.0.0.1", 9)
SUPPORT = sandboxes.probe()
BEST = "process" if SUPPORT.bubblewrap else "bubblewrap"


@pytest.fixture
def root() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="wt-case-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def box_of(root: Path, name: str, limits: Limits = LIMITS, **settings: object) -> sandboxes.Box:
    config = sandboxes.SandboxConfig(**({"kind": BEST, "root": str(root)} | settings))  # type: ignore[arg-type]
    return sandboxes.create(config, SandboxSpec(sandbox_id=name, limits=limits), gateway=AWAY)


FAKE_PODMAN = """\
#!/bin/sh
for word in "$@"; do
    case $word in
        rm) test -e "$HANG" || { test -e $0.hangs && exec sleep 600; }; exit 0 ;;
        inspect) echo '[{"Id": "i", "Config": {}}]'; exit 0 ;;
        create) echo container-7; exit 0 ;;
        export) exec tar -C $0.root -cf - . ;;
        build) exit 0 ;;
    esac
done
"""


def test_D28_a_clean_up_command_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case's input: the container program sleeps for ever on `rm`."""
    program = tmp_path / "podman"
    program.write_text(FAKE_PODMAN)
    program.chmod(0o755)
    (tmp_path / "podman.root").mkdir()
    (tmp_path / "podman.root" / "f").write_text("x")
    (tmp_path / "podman.hangs").touch()
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "Dockerfile").write_text("FROM scratch\n")
    config = sandboxes.SandboxConfig(images=str(tmp_path / "images"), podman=str(program))
    with monkeypatch.context() as short:
        short.setattr(podman, "_CLEAN_SECONDS", 0.5)
        image = sandboxes.ImageCache(config).get(Build(context=str(tmp_path / "context")))
    assert (Path(image.rootfs) / "f").read_text() == "x"  # the work is not lost
    calls = podman.Podman(config, tmp_path / "images" / "podman")
    assert calls.left() == ["container-7"]  # and what is left is listed
    (tmp_path / "podman.hangs").unlink()
    (tmp_path / "context" / "Dockerfile").write_text("FROM scratch\nENV A=1\n")
    sandboxes.ImageCache(config).get(Build(context=str(tmp_path / "context")))
    assert calls.left() == []


@pytest.mark.parametrize("limits", [LIMITS, Limits(memory_mb=0, processes=0)])
async def test_D28_a_sandbox_whose_keeper_hangs_is_removed_from_outside(
    root: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """With cgroups, where they can be had, and without."""
    monkeypatch.setattr(leftovers, "_LOCK_SECONDS", 0.5)
    box = box_of(root, "hangs", limits, stop_seconds=0.5)
    await box.start()
    kept = msgspec.json.decode((root / "hangs" / "state.json").read_bytes(), type=Kept)
    os.kill(kept.keeper, signal.SIGSTOP)
    await asyncio.wait_for(box.stop(), 60)
    assert list(root.iterdir()) == []
    assert not running(kept.keeper)
    assert not running(kept.pid)


FRAMEWORK = textwrap.dedent(
    """
    import asyncio, os, pathlib, signal, sys
    from whippletree import sandboxes
    from whippletree.protocols import Limits, SandboxSpec

    def processes():
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                found[int(entry.name)] = fields[0]
        return found

    async def main(kind, root):
        assert os.getpid() == 1
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        config = sandboxes.SandboxConfig(kind=kind, root=root)
        limits = Limits(processes=1000)  # fifty agents at once in each
        specs = [SandboxSpec(sandbox_id=f"d29-{n}", limits=limits) for n in range(4)]
        boxes = [sandboxes.create(config, spec, gateway=("127.0.0.1", 9)) for spec in specs]
        await asyncio.gather(*(box.start() for box in boxes))

        async def agent(number):
            command = "setsid -f sh -c 'sleep 0.01; exit 3' >/dev/null 2>&1; (true &) ; exit 5"
            return (await boxes[number % 4].exec(("sh", "-c", command), timeout=60)).exit_code

        assert {await done for done in asyncio.as_completed([agent(n) for n in range(200)])} == {5}
        steady = 6 if kind == "process" else 14  # this, the launcher, the keepers; their bwraps and inits
        for _ in range(300):
            states = list(processes().values())
            if "Z" not in states and len(states) == steady:  # all agents have ended
                break
            await asyncio.sleep(0.05)
        print("zombies", states.count("Z"), "processes", len(states), flush=True)
        await told.wait()
        await asyncio.gather(*(box.stop() for box in boxes))
        from whippletree.sandboxes.launching import launcher
        launcher()._drop()
        for _ in range(200):
            left = set(processes()) - {1}
            if not left:
                break
            await asyncio.sleep(0.05)
        print("left", len(left), flush=True)

    asyncio.run(main(*sys.argv[1:]))
    """
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be PID 1 of a namespace")
@pytest.mark.parametrize("kind", ["process", *([] if SUPPORT.bubblewrap else ["bubblewrap"])])
async def test_D29_no_zombie_while_running_and_nothing_left_with_the_framework_as_pid_1(kind: str, root: Path) -> None:
    """The case's input: 200 agents that fork and exit, the framework being PID 1; then SIGTERM."""
    framework = await asyncio.create_subprocess_exec(
        *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", FRAMEWORK, kind, str(root)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert framework.stdout is not None
    try:
        count = 6 if kind == "process" else 14
        assert await asyncio.wait_for(framework.stdout.readline(), 100) == f"zombies 0 processes {count}\n".encode()
        children = Path(f"/proc/{framework.pid}/task/{framework.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert await asyncio.wait_for(framework.stdout.readline(), 60) == b"left 0\n"
        assert await framework.wait() == 0
        assert list(root.iterdir()) == []
    finally:
        if framework.returncode is None:  # it failed: let nothing of it live on
            framework.kill()
            await framework.wait()
            await asyncio.to_thread(sandboxes.clean, sandboxes.SandboxConfig(root=str(root)))


@pytest.mark.skipif(bool(SUPPORT.bubblewrap), reason=f"bubblewrap does not work here: {SUPPORT.bubblewrap}")
async def test_D31_slow_starts_make_others_wait_and_not_fail(root: Path, tmp_path: Path) -> None:
    """The case's input in small: a start takes longer the more there are at once, beyond the limit of one call."""
    bwrap = tmp_path / "bwrap"
    lock = tmp_path / "lock"
    bwrap.write_text(f'#!/bin/sh\nflock {lock} sleep 0.4\nexec {find_bwrap(sandboxes.SandboxConfig())} "$@"\n')
    bwrap.chmod(0o755)
    settings = {"bwrap": str(bwrap), "start_seconds": 6.0, "starts_at_once": 2}
    boxes = [box_of(root, f"d31-{number}", **settings) for number in range(16)]  # 6.4 s of starts, one after the other
    starting = [asyncio.create_task(box.start()) for box in boxes]
    await asyncio.sleep(0)
    assert sum(box.waiting for box in boxes) == 14  # shown as waiting
    await asyncio.gather(*starting)
    assert {path.name for path in root.iterdir()} == {f"d31-{number}" for number in range(16)}
    with pytest.raises(SandboxError, match="File exists"):  # the same id again is no second sandbox
        await box_of(root, "d31-3").start()
    assert (await boxes[3].exec(("echo", "on"), timeout=20)).output == "on\n"
    await asyncio.gather(*(box.stop() for box in boxes))
    with pytest.raises(SandboxError, match="did not start"):
        await box_of(root, "d31-x", bwrap="/bin/false").start()
    retried = box_of(root, "d31-x")
    await retried.start()  # a retry with the same id, after a start that failed
    await retried.stop()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("kind", [BEST, *([] if SUPPORT.runc else ["runc"])])
async def test_D32_forty_sandboxes_at_once_twice_leave_no_network(kind: str, root: Path) -> None:
    """The case's input: 40 in parallel, twice."""
    held = [path.name for path in Path("/sys/class/net").iterdir()]
    for _ in range(2):
        boxes = [box_of(root, f"d32-{number}", kind=kind, start_seconds=100.0) for number in range(40)]
        handles = await asyncio.gather(*(box.start() for box in boxes))
        if kind != "process":
            networks = {Path(f"/proc/{handle.pid}/ns/net").readlink() for handle in handles}
            assert len(networks) == 40
        await asyncio.gather(*(box.stop() for box in boxes))
        assert not [handle for handle in handles if kind != "process" and Path(f"/proc/{handle.pid}").exists()]
    assert [path.name for path in Path("/sys/class/net").iterdir()] == held
    assert str(root) not in Path("/proc/self/mountinfo").read_text() and list(root.iterdir()) == []
