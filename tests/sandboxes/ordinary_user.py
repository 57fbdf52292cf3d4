"""Run as an ordinary user by test_sandbox_bubblewrap: uses one sandbox and prints what it saw as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.protocols import SandboxSpec


async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\n\r\nfrom the gateway")
    await writer.drain()
    writer.close()


async def main(root: Path) -> None:
    server = await asyncio.start_server(gateway, "127.0.0.1", 0)
    source = Path(tempfile.mkdtemp())
    (source / "f").write_text("hello")
    (source / "tool").write_text("#!/bin/sh\nprintf tool\n")
    (source / "tool").chmod(0o755)
    files = ((str(source / "f"), "/app/f"), (str(source / "tool"), "/usr/local/bin/wt-tool"))
    config = sandboxes.SandboxConfig(kind="bubblewrap", root=str(root))
    box = sandboxes.create(config, SandboxSpec(sandbox_id="user", files=files), gateway=server.sockets[0].getsockname())
    await box.start()

    async def sh(command: str, timeout: float = 20) -> str:
        return (await box.exec(("/bin/sh", "-c", command), timeout=timeout)).output.strip()

    url = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/', timeout=9).read())"
    out: dict[str, object] = {
        "id": await sh("id -u"),
        "caps": (await sh("grep Cap /proc/self/status | cut -f2")).split(),
        "file": await sh("cat f"),
        "tool": await sh("wt-tool"),
        "gateway": await sh(f'python3 -c "{url}"'),
        "net": await sh("python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 2)' 2>&1 | tail -1"),
    }
    await sh("setsid -f sleep 600 >/dev/null 2>&1; kill -9 1; kill -9 -1")
    out["alive"] = await sh("echo alive")
    out["timed_out"] = (await box.exec(("/bin/sh", "-c", "setsid -f sleep 888; sleep 889"), timeout=0.4)).timed_out
    await box.kill_all()
    out["sleepers"] = (await sh("pgrep sleep")).split()
    await box.put(source / "f", "/tests/f")
    assert await box.read("/tests/f") == b"hello"
    try:
        out["other_user"] = (await box.exec(("id", "-u"), timeout=20, user="nobody")).output
    except SandboxError as error:
        out["other_user"] = error.cause
    out["same_user"] = (await box.exec(("id", "-u"), timeout=20, user="agent")).output.strip()
    await box.get("/tests/f", source / "copied")
    out["copied"] = (source / "copied").read_text()
    out["usage"] = (await box.usage()).processes
    await box.stop()
    server.close()
    out["left"] = [path.name for path in root.iterdir()]
    print(json.dumps(out))


asyncio.run(main(Path(sys.argv[1])))
