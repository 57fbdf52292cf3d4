"""The runc backend: the suites, and what it isolates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sandbox_suite import NOTHING, Make, Suite, left_behind, sh, spec_of
from sandbox_suite_left import LeftSuite
from sandbox_suite_network import NetworkSuite, index, outside
from sandbox_suite_out import OutSuite, UserSuite

from whippletree import sandboxes
from whippletree.errors import SandboxError

SUPPORT = sandboxes.probe()
pytestmark = pytest.mark.skipif(bool(SUPPORT.runc), reason=f"runc does not work here: {SUPPORT.runc}")
__all__ = ["index", "outside"]  # fixtures of the network's suite


class TestRunc(Suite, OutSuite, LeftSuite, NetworkSuite, UserSuite):
    kind = "runc"


async def test_the_host_is_not_visible(make: Make) -> None:
    box = await make("runc")
    assert (await sh(box, "ls /")).output.split() == sorted(
        ["app", "dev", "etc", "home", "logs", "proc", "run", "tmp", "usr", "var"]
        + [path.name for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")) if path.exists()]
    )
    for name in ("shadow", "machine-id", "ssh"):
        assert (await sh(box, f"ls /etc/{name}")).exit_code != 0
    assert (await sh(box, "ls -A /home /run /sys 2>/dev/null")).output == "/home:\nagent\n\n/run:\n"


async def test_no_capability_and_no_new_privilege(make: Make) -> None:
    box = await make("runc")
    for process in ("self", "1"):
        status = (await sh(box, f"cat /proc/{process}/status")).output
        fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
        assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == "1"
    refused = await sh(box, "touch /usr/x; touch /etc/new && echo wrote; mount -t tmpfs x /app; chroot /app true")
    assert "wrote" not in refused.output and refused.exit_code != 0


async def test_nothing_inside_can_end_the_sandbox(make: Make) -> None:
    box = await make("runc")
    await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1; kill -9 -1")
    await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1", user="root")
    attach = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert (await box.exec(("python3", "-c", attach), timeout=20)).output == "-1 1\n"
    assert (await sh(box, "cat /.init/sh /proc/1/environ | wc -c")).output.endswith("0\n")
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_it_has_its_own_processes_host_name_network_and_ipc(make: Make) -> None:
    box = await make("runc")
    kinds = ("ipc", "net", "pid", "mnt", "uts")
    done = await sh(box, "hostname; " + "".join(f"readlink /proc/self/ns/{kind};" for kind in kinds))
    name, *namespaces = done.output.split()
    assert name == "sandbox"
    assert not {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds} & set(namespaces)
    down = 'import socket; socket.create_connection(("1.1.1.1", 80), 2)'
    assert "unreachable" in (await sh(box, f"python3 -c '{down}' 2>&1 | tail -1")).output


async def test_orphans_are_reaped(make: Make) -> None:
    box = await make("runc")
    for _ in range(5):
        await sh(box, "setsid -f sleep 0.05 >/dev/null 2>&1; setsid -f sleep 0.05 >/dev/null 2>&1")
    await asyncio.sleep(0.4)
    assert "defunct" not in (await sh(box, "ps -ef")).output


async def test_what_is_written_is_private_even_below_usr(make: Make) -> None:
    one, two = await make("runc", sandbox_id="one"), await make("runc", sandbox_id="two")
    done = await sh(one, "echo x > /usr/local/bin/wt-own; rm /usr/bin/env; echo y > /etc/own; ls /usr/bin/env", user="root")
    assert "No such file" in done.output
    seen = await sh(two, "ls /usr/local/bin/wt-own /etc/own; ls /usr/bin/env")
    assert seen.output.count("No such file") == 2 and seen.output.endswith("/usr/bin/env\n")
    assert Path("/usr/bin/env").exists() and not Path("/usr/local/bin/wt-own").exists()


async def test_a_full_layer_is_the_sandboxs_own(make: Make, sandbox_root: Path) -> None:
    config = sandboxes.SandboxConfig(kind="runc", root=str(sandbox_root), space_mb=1)
    box = sandboxes.create(config, spec_of(), gateway=("127.0.0.1", 9))
    try:
        await box.start()
        assert "No space left" in (await sh(box, "head -c 3000000 /dev/zero > x")).output
    finally:
        await box.stop()
    on_disk = sandboxes.create(
        sandboxes.SandboxConfig(kind="runc", root=str(sandbox_root), space_mb=0), spec_of(), gateway=("127.0.0.1", 9)
    )
    try:
        await on_disk.start()
        assert (await sh(on_disk, "head -c 3000000 /dev/zero > x; wc -c < x")).output == "3000000\n"
    finally:
        await on_disk.stop()
    assert left_behind(sandbox_root) == NOTHING


async def test_a_read_only_binding_is_visible_and_read_only(make: Make, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("bound")
    box = await make("runc", read_only=((str(tmp_path / "d"), "/opt/data/d"),))
    done = await sh(box, "cat /opt/data/d/f; echo x > /opt/data/d/f")
    assert done.output.startswith("bound") and done.exit_code != 0
    assert (await sh(box, "touch /opt/data/d/g", user="root")).exit_code != 0
    with pytest.raises(SandboxError, match=r"did not start.*nowhere"):
        await make("runc", read_only=(("/nowhere", "/opt/x"),))
