"""What every backend with a network of its own must do about it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from sandbox_suite import Make, sh, until

from whippletree.errors import SandboxError
from whippletree.protocols import NetworkPolicy

_ASK = """
import json, sys, urllib.request
seen = {}
for name, url in json.loads(sys.argv[1]).items():
    try:
        seen[name] = urllib.request.urlopen(url, timeout=20).read().decode()
    except OSError as error:
        seen[name] = str(error)
print(json.dumps(seen))
"""


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\noutside")
    await writer.drain()
    writer.close()


@pytest.fixture
async def outside() -> AsyncIterator[tuple[str, int]]:
    """A server on the host, which stands for the gateway."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()
    server.close()


@pytest.fixture
async def index() -> AsyncIterator[str]:
    """A server on another address of the host, which stands for a package index: its "host:port"."""
    server = await asyncio.start_server(_serve, "127.0.0.2", 0)
    yield f"127.0.0.2:{server.sockets[0].getsockname()[1]}"
    server.close()


class NetworkSuite:
    """Subclasses set `kind` (and may skip)."""

    kind: str

    async def test_the_network_changes_with_the_phase(self, make: Make, outside: tuple[str, int], index: str) -> None:
        box = await make(self.kind, gateway=outside, proxy_port=8001, network=NetworkPolicy(allow=(index,)))
        addresses = {"index": f"http://{index}/", "other": "http://github.com/x", "gateway": "http://127.0.0.1:8000/"}

        async def ask(**environment: str) -> dict[str, str]:
            argv = ("python3", "-c", _ASK, json.dumps(addresses))
            return json.loads((await box.exec(argv, timeout=60, environment=environment)).output)

        began = time.time()
        proxy = box.proxy_environment
        setup = await ask(**proxy)
        assert (setup["index"], setup["gateway"]) == ("outside", "outside")
        assert "403" in setup["other"]
        assert [(refusal.host, refusal.port) for refusal in box.refusals] == [("github.com", 80)]
        assert began <= box.refusals[0].time <= time.time()
        assert "outside" not in (await ask())["index"]  # the agent's commands are not led to the proxy

        await box.set_network(NetworkPolicy())
        assert box.proxy_environment == {}  # it leads nowhere now
        agent = await ask(**proxy)
        assert agent["gateway"] == "outside" and "403" in agent["index"]
        assert [refusal.port for refusal in box.refusals] == [80, int(index.rpartition(":")[2]), 80]
        assert box.refused == 3

        await box.set_network(NetworkPolicy(gateway=False))
        assert "outside" not in (await ask())["gateway"]
        assert box.refusals[-1].reason == "no gateway in this phase"

        await box.set_network(NetworkPolicy(allow=(index,)))
        assert (await ask(**box.proxy_environment))["index"] == "outside"

    async def test_a_policy_that_takes_away_cuts_what_is_open(self, make: Make, outside: tuple[str, int]) -> None:
        box = await make(self.kind, gateway=outside)
        hold = "import socket; s = socket.create_connection(('127.0.0.1', 8000)); print('open', flush=True); print(s.recv(9))"
        pieces: list[bytes] = []
        running = asyncio.create_task(box.exec(("python3", "-c", hold), timeout=60, on_output=pieces.append))
        await until(lambda: bool(pieces), "the connection")
        await box.set_network(NetworkPolicy(gateway=False))
        ended = await running
        assert ended.exit_code in (0, 1) and ("b''" in ended.output or "reset" in ended.output)

    async def test_policies_that_cannot_be_are_refused(self, make: Make) -> None:
        with pytest.raises(SandboxError, match="needs a proxy"):
            await make(self.kind, network=NetworkPolicy(allow=("a:1",)))
        with pytest.raises(SandboxError, match="both 8000"):
            await make(self.kind, proxy_port=8000)
        with pytest.raises(SandboxError, match="host:port"):
            await make(self.kind, proxy_port=8001, network=NetworkPolicy(allow=("a",)))
        box = await make(self.kind)
        assert box.proxy_environment == {}
        with pytest.raises(SandboxError, match="has no proxy"):
            await box.set_network(NetworkPolicy(allow=("a:1",)))

    async def test_a_proxy_without_a_gateway(self, make: Make, outside: tuple[str, int], index: str) -> None:
        box = await make(self.kind, gateway_port=0, proxy_port=8001, network=NetworkPolicy(allow=(index,)))
        argv = ("python3", "-c", _ASK, json.dumps({"index": f"http://{index}/", "gateway": "http://127.0.0.1:8000/"}))
        seen = json.loads((await box.exec(argv, timeout=60, environment=box.proxy_environment)).output)
        assert seen["index"] == "outside" and "refused" in seen["gateway"]
        direct = await sh(box, "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>&1 | tail -1")
        assert "refused" in direct.output
