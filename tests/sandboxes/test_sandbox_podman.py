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
from sandbox_suite import NOTHING, Make, Suite, config_of, left_behind, processes_with, sh, spec_of, until
from sandbox_suite_left import LeftSuite
from sandbox_suite_network import NetworkSuite, index, outside
from sandbox_suite_out import OutSuite, UserSuite

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.sandboxes.keeper import Kept

AWAY = ("127.0.0.1", 9)
SUPPORT = sandboxes.probe()
pytestmark = pytest.mark.skipif(bool(SUPPORT.podman), reason=f"podman does not work here: {SUPPORT.podman}")
__all__ = ["index", "outside"]  # fixtures of the network's suite


class TestPodman(Suite, OutSuite, LeftSuite, NetworkSuite, UserSuite):
    kind = "podman"


async def test_the_host_is_not_visible(make: Make) -> None:
    box = await make("podman")
    assert (await sh(box, "ls /")).output.split() == sorted(
        ["app", "dev", "etc", "home", "logs", "proc", "run", "sys", "tmp", "usr", "var"]
        + [path.name for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")) if path.exists()]
    )
    for name in ("shadow", "machine-id", "ssh"):
        assert (await sh(box, f"ls /etc/{name}")).exit_code != 0
    assert (await sh(box, "ls -A /home /run /sys")).output == "/home:\nagent\n\n/run:\n.containerenv\n\n/sys:\n"
    names = (await sh(box, "cat /etc/resolv.conf; cat /etc/hosts /etc/hostname")).output
    assert names.split() == ["127.0.0.1", "localhost", "sandbox", "sandbox"]


async def test_no_capability_and_no_new_privilege(make: Make) -> None:
    box = await make("podman")
    for process in ("self", "1"):
        status = (await sh(box, f"cat /proc/{process}/status")).output
        fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
        assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == "1"
    refused = await sh(box, "touch /usr/x; touch /etc/new && echo wrote; mount -t tmpfs x /app; chroot /app true")
    assert "wrote" not in refused.output and refused.exit_code != 0


async def test_nothing_inside_can_end_the_sandbox(make: Make) -> None:
    box = await make("podman")
    await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1; kill -9 -1")
    await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1", user="root")
    attach = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert (await box.exec(("python3", "-c", attach), timeout=20)).output == "-1 1\n"
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_it_has_its_own_processes_host_name_network_and_ipc(make: Make) -> None:
    box = await make("podman")
    kinds = ("ipc", "net", "pid", "mnt", "uts")
    done = await sh(box, "hostname; " + "".join(f"readlink /proc/self/ns/{kind};" for kind in kinds))
    name, *namespaces = done.output.split()
    assert name == "sandbox"
    assert not {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds} & set(namespaces)
    down = 'import socket; socket.create_connection(("1.1.1.1", 80), 2)'
    assert "unreachable" in (await sh(box, f"python3 -c '{down}' 2>&1 | tail -1")).output


async def test_what_is_written_is_private_even_below_usr(make: Make) -> None:
    one, two = await make("podman", sandbox_id="one"), await make("podman", sandbox_id="two")
    done = await sh(one, "echo x > /usr/local/bin/wt-own; rm /usr/bin/env; echo y > /etc/own; ls /usr/bin/env", user="root")
    assert "No such file" in done.output
    seen = await sh(two, "ls /usr/local/bin/wt-own /etc/own; ls /usr/bin/env")
    assert seen.output.count("No such file") == 2 and seen.output.endswith("/usr/bin/env\n")
    assert Path("/usr/bin/env").exists() and not Path("/usr/local/bin/wt-own").exists()


async def test_a_read_only_binding_is_visible_and_read_only(make: Make, tmp_path: Path) -> None:
    for name in ("d", 'with "comma", and space'):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("bound")
        box = await make("podman", read_only=((str(tmp_path / name), "/opt/data/d"),))
        done = await sh(box, "cat /opt/data/d/f; echo x > /opt/data/d/f")
        assert done.output.startswith("bound") and done.exit_code != 0
        assert (await sh(box, "touch /opt/data/d/g", user="root")).exit_code != 0
    with pytest.raises(SandboxError, match=r"did not start.*nowhere"):
        await make("podman", read_only=(("/nowhere", "/opt/x"),))


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


async def test_its_own_limit_of_space_holds(make: Make, sandbox_root: Path) -> None:
    for space, said in ((1, "No space left"), (0, "3000000")):
        config = config_of("podman", sandbox_root, space_mb=space)
        box = sandboxes.create(config, spec_of(), gateway=AWAY)
        try:
            await box.start()
            assert said in (await sh(box, "head -c 3000000 /dev/zero > x; wc -c < x")).output
        finally:
            await box.stop()
    assert left_behind(sandbox_root) == NOTHING


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
    return [pid for pid in processes_with(f"{folder}/") if Path(f"/proc/{pid}/comm").read_text().strip() == "conmon"]


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
