"""The bubblewrap backend: the suite, and what it isolates."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from sandbox_suite import Make, Suite, orphans_are_reaped, sh, spec_of
from sandbox_suite_left import LeftSuite
from sandbox_suite_network import NetworkSuite, index, outside
from sandbox_suite_out import OutSuite, UserSuite

from whippletree import sandboxes
from whippletree.errors import SandboxError

SUPPORT = sandboxes.probe()
pytestmark = pytest.mark.skipif(not SUPPORT.works, reason=f"bubblewrap does not work here: {SUPPORT.bubblewrap}")


__all__ = ["index", "outside"]  # fixtures of the network's suite


class TestBubblewrap(Suite, OutSuite, LeftSuite, NetworkSuite):
    kind = "bubblewrap"


@pytest.mark.skipif(os.geteuid() != 0, reason="made by an ordinary user, a sandbox has one user")
class TestUsersOfBubblewrap(UserSuite):
    kind = "bubblewrap"


async def test_the_host_is_not_visible(make: Make) -> None:
    box = await make("bubblewrap")
    listing = (await sh(box, "ls /; ls /home; ls /var; ls /run; cat /etc/passwd; ls /etc; ls /sys /boot /opt /srv 2>&1")).output
    assert "root:x:0:0:root:/root:/bin/sh\nagent:x:" in listing
    for name in ("work", "shadow", "ssh\n", "machine-id", "hostname\nhosts\nwork"):
        assert f"\n{name}" not in listing, listing
    for path in ("/root", "/work", "/var/lib", "/var/run", "/etc/shadow", "/sys/kernel", "/home/agent/.."):
        inside = await sh(box, f"test -e {path}/x; ls -A {path}")
        assert inside.output in (f"ls: cannot access '{path}': No such file or directory\n", "agent\n"), path


async def test_files_below_usr_hide_nothing_of_the_hosts(make: Make, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "tool").chmod(0o755)
    box = await make("bubblewrap", files=((str(tmp_path / "tool"), "/usr/bin/wt-tool"),))
    assert (await sh(box, "wt-tool; env true && ls /usr/bin | wc -l")).output.split()[0] == "tool"
    assert int((await sh(box, "ls /usr/bin | wc -l")).output) == len(list(Path("/usr/bin").iterdir())) + 1
    assert not Path("/usr/bin/wt-tool").exists()


async def test_it_has_its_own_processes_user_host_name_and_ipc(make: Make) -> None:
    box = await make("bubblewrap")
    done = await sh(
        box, "id -un; hostname; ls -d /proc/[0-9]* | wc -l; readlink /proc/self/ns/ipc /proc/self/ns/net /proc/self/ns/pid"
    )
    user, name, processes, *namespaces = done.output.split()
    assert (user, name) == ("agent", "sandbox")
    assert int(processes) <= 6
    assert not {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("ipc", "net", "pid")} & set(namespaces)


async def test_no_capability_and_no_new_privilege(make: Make) -> None:
    box = await make("bubblewrap")
    status = dict(line.split(":\t") for line in (await sh(box, "cat /proc/self/status")).output.splitlines() if ":\t" in line)
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert "0" not in status["Uid"].split()
    refused = await sh(
        box,
        "touch /usr/x; touch /etc/new && echo wrote; mount -t tmpfs x /app; chroot /app true; echo b > /proc/sysrq-trigger",
    )
    assert "wrote" not in refused.output and refused.exit_code != 0
    assert refused.output.count("ermission denied") == 2 or "Read-only file system" in refused.output


async def test_nothing_inside_can_end_the_sandbox(make: Make) -> None:
    box = await make("bubblewrap")
    await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1; kill -9 -1")
    assert (await sh(box, "echo alive")).output == "alive\n"


async def test_orphans_are_reaped(make: Make) -> None:
    await orphans_are_reaped(await make("bubblewrap"))


async def test_a_read_only_binding_is_visible_and_read_only(make: Make, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("bound")
    tmp_path.chmod(0o755)
    box = await make("bubblewrap", read_only=((str(tmp_path / "d"), "/opt/data/d"),))
    done = await sh(box, "cat /opt/data/d/f; echo x > /opt/data/d/f")
    assert done.output.startswith("bound") and done.exit_code != 0
    with pytest.raises(SandboxError, match=r"did not start.*nowhere"):
        await make("bubblewrap", read_only=(("/nowhere", "/opt/x"),))


async def test_a_full_file_system_is_the_sandboxs_own(make: Make, sandbox_root: Path) -> None:
    config = sandboxes.SandboxConfig(kind="bubblewrap", root=str(sandbox_root), space_mb=1)
    box = sandboxes.create(config, spec_of(), gateway=("127.0.0.1", 9))
    try:
        await box.start()
        assert "No space left" in (await sh(box, "head -c 3000000 /dev/zero > x")).output
    finally:
        await box.stop()


class _Stub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> object:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address
    server.shutdown()
    server.server_close()


_PROBE = """
import json, socket, urllib.request
out = {"gateway": urllib.request.urlopen("http://127.0.0.1:8000/v1/x", timeout=10).read().decode()}
for name, address in {"host": ("127.0.0.1", %d), "net": ("1.1.1.1", 80), "dns": ("10.0.0.1", 53)}.items():
    try:
        socket.create_connection(address, 2); out[name] = "reached"
    except OSError as error:
        out[name] = error.strerror
print(json.dumps(out))
"""


async def test_the_gateway_is_the_only_way_out(make: Make, stub: tuple[str, int]) -> None:
    box = await make("bubblewrap", gateway=stub)
    assert box.gateway == ("127.0.0.1", 8000)
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = await box.exec(("python3", "-c", _PROBE % other.getsockname()[1]), timeout=30)
    seen = json.loads(done.output)
    assert json.loads(seen["gateway"]) == {"path": "/v1/x"}
    assert (seen["host"], seen["net"], seen["dns"]) == (
        "Connection refused",
        "Network is unreachable",
        "Network is unreachable",
    )


async def test_without_a_port_there_is_no_way_out(make: Make, stub: tuple[str, int]) -> None:
    box = await make("bubblewrap", gateway=stub, gateway_port=0)
    done = await sh(box, "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000), 2)' 2>&1 | tail -1")
    assert "Connection refused" in done.output


async def test_a_gateway_that_is_away_closes_the_connection_and_the_next_is_tried(make: Make) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stub, bind_and_activate=False)
    server.server_bind()  # the port is its own, and refuses
    box = await make("bubblewrap", gateway=server.server_address)
    url = "http://127.0.0.1:8000/a"
    ask = f"python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\", timeout=10).read())' 2>&1 | tail -1"
    assert "path" not in (await sh(box, ask)).output
    server.server_activate()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert "path" in (await sh(box, ask)).output
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
async def test_an_ordinary_user_gets_the_same(tmp_path: Path) -> None:
    script = Path(__file__).with_name("ordinary_user.py")
    python = "/usr/bin/python3"
    version = (python, "-c", "import sys; print(sys.version_info[:2])")
    found = Path(python).exists() and subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    if found != str(sys.version_info[:2]):
        pytest.skip("no interpreter of this version that an ordinary user can run")
    packages = (Path(sandboxes.__file__).parents[2], Path(msgspec.__file__).parents[1])
    root = Path(f"/tmp/wt-user-{os.getpid()}")
    done = await asyncio.to_thread(
        subprocess.run,
        ("setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups", python, str(script), str(root)),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(map(str, packages)), "PATH": "/usr/bin:/bin"},
        timeout=60,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["id"] == "1000"
    assert seen["caps"] == ["0" * 16] * 5
    assert seen["alive"] == "alive"
    assert seen["timed_out"] and seen["sleepers"] == []
    assert seen["gateway"] == "b'from the gateway'" and "unreachable" in seen["net"]
    assert seen["file"] == "hello" and seen["tool"] == "tool"
    assert "one user" in seen["other_user"] and seen["same_user"] == "1000"
    assert seen["copied"] == "hello" and seen["usage"] == 0
    assert seen["left"] == []
    root.rmdir()
