"""The ways out of a sandbox, without one: how many refusals are kept."""

from __future__ import annotations

import asyncio
import socket

from whippletree.protocols import NetworkPolicy, SandboxSpec
from whippletree.sandboxes.network import Network


async def test_the_latest_refusals_are_kept_and_all_are_counted() -> None:
    network = Network(SandboxSpec(sandbox_id="x", gateway_port=0, proxy_port=8001), ("127.0.0.1", 9))
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    await network.open([listener.detach()])
    for number in range(1005):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"CONNECT h{number}.example:443 HTTP/1.1\r\n\r\n".encode())
        assert b"403" in await reader.read()
        writer.close()
    assert network.refused == 1005 and len(network.refusals) == 1000
    assert (network.refusals[0].host, network.refusals[-1].host) == ("h5.example", "h1004.example")
    await network.close()


async def test_without_a_port_nothing_leads_out() -> None:
    network = Network(SandboxSpec(sandbox_id="x", gateway_port=0), ("127.0.0.1", 9))
    assert (network.ports, network.environment) == ((), {})
    await network.open([])
    network.set(NetworkPolicy(gateway=False))
    await network.close()
