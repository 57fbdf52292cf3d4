"""The podman backend: the suites, and what it isolates."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sandbox_suite import NOTHING, Make, Suite, config_of, left_behind, processes_with, sees_only, sh, spec_of, until
from sandbox_suite_isolation import AWAY, IsolationSuite
from sandbox_suite_left import LeftSuite
from sandbox_suite_network import NetworkSuite, index, outside
from sandbox_suite_out import OutSuite, UserSuite

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.sandboxes.keeper import Kept

SUPPORT = sandboxes.probe()
pytestmark = pytest.mark.skipif(bool(SUPPORT.podman), reason=f"podman does not work here: {SUPPORT.podman}")
__all__ = ["index", "outside"]  # fixtures of the network's suite


class TestPodman(Suite, IsolationSuite, OutSuite, LeftSuite, NetworkSuite, UserSuite):
    kind = "podman"


async def test_the_host_is_not_visible(make: Make) -> None:
    box = await make("podman")
    await sees_only(box, "sys")
    assert (await sh(box, "ls -A /home /run /sys")).output == "/home:\nagent\n\n/run:\n.containerenv\n\n/sys:\n"
    names = (await sh(box, "cat /etc/resolv.conf; cat /etc/hosts /etc/hostname")).output
    assert names.split() == ["127.0.0.1", "localhost", "sandbox", "sandbox"]


@pytest.mark.skipif(not shutil.which("busybox"), reason="there is no busybox to make a root file system of")
async def test_a_root_file_system_is_shared_and_not_written_to(make: Make, tmp_path: Path) -> None:
    rootfs = tmp_path / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    for name in ("busybox", "sh", "cat", "id", "ls", "rm"):
        shutil.copy(shutil.which("busybox") or "", rootfs / "bin" / name)
    (rootfs / "marker").write_text("image")
    before = sorted(path.name for path in rootfs.iterdir())
    one, two = await make("podman", rootfs=str(rootfs)), await make("podman", rootfs=str(rootfs))
    assert (await sh(one, "cat /marker; rm /marker; ls /usr; id -u", user="root")).output.startswith("image")
    assert (await sh(two, "cat /marker; echo x > f; cat f")).output == "imagex\n"
    assert sorted(path.name for path in rootfs.iterdir()) == before


def _program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_podman_has_its_own_time_and_says_what_is_wrong(sandbox_root: Path, tmp_path: Path) -> None:
    mark = f"70{os.getpid()}"
    slow = _program(tmp_path / "slow", f"setsid sleep {mark}")
    broken = _program(tmp_path / "broken", "echo no such thing as a container >&2; exit 125")
    wanted: tuple[tuple[dict[str, Any], str], ...] = (
        ({"podman": slow, "podman_start_seconds": 0.5}, "did not start"),
        ({"podman": broken}, "no such thing as a container"),
    )
    for settings, said in wanted:
        box = sandboxes.create(config_of("podman", sandbox_root, **settings), spec_of(), gateway=AWAY)
        with pytest.raises(SandboxError, match=said):
            await box.start()
        await box.stop()
    assert processes_with(f"sleep\0{mark}") == []
    assert left_behind(sandbox_root) == NOTHING


def _watchers(folder: Path) -> list[int]:
    return [pid for pid in processes_with(f"{folder}/") if _name(pid) == "conmon"]


def _name(pid: int) -> str:
    """A process's name; "" once it has gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def test_a_killed_keeper_leaves_no_container(make: Make, sandbox_root: Path) -> None:
    box = await make("podman", sandbox_id="orphan")
    folder = sandbox_root / "orphan"
    assert len(_watchers(folder)) == 1 and box.handle is not None
    network = Path(f"/proc/{box.handle.pid}/ns/net").readlink()
    kept = msgspec.json.decode((folder / "state.json").read_bytes(), type=Kept)
    os.kill(kept.keeper, 9)
    await until(lambda: not _watchers(folder), "the end of what watches over the container")
    await until(lambda: str(network) not in _networks(), "the end of its network")
    assert (await asyncio.to_thread(sandboxes.clean, config_of("podman", sandbox_root))).removed == ("orphan",)
    assert left_behind(sandbox_root) == NOTHING


def _networks() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(str((entry / "ns" / "net").readlink()))
            except OSError:
                continue
    return found


async def test_forks_of_its_files_go_their_own_ways(make: Make, sandbox_root: Path, tmp_path: Path) -> None:
    box = await make("podman")
    await sh(box, "echo shared > f; sleep 600 >/dev/null 2>&1 &")
    snapshot = await box.snapshot(tmp_path / "s")
    assert (snapshot.holds, snapshot.reason) == ("files", "podman sandboxes cannot be checkpointed")
    assert (await box.usage()).processes == 1
    specs = [spec_of(sandbox_id=f"fork-{number}") for number in range(2)]
    forks = await sandboxes.fork(config_of("podman", sandbox_root), snapshot, specs, gateway=AWAY)
    try:
        for number, fork in enumerate(forks):
            assert (await sh(fork, f"cat f; echo {number} > f; cat f; id -un")).output == f"shared\n{number}\nagent\n"
            assert (await fork.usage()).processes == 0
    finally:
        await asyncio.gather(*(fork.stop() for fork in forks))
    assert (await sh(box, "cat f")).output == "shared\n"
