"""The relay between a sandbox's listener and the gateway."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator

import pytest

from whippletree.sandboxes.relay import Relay


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers what came, once it is whole: only a passed-on end of writing tells."""
    data = await reader.read()
    writer.write(hashlib.sha256(data).digest() + data)
    await writer.drain()
    writer.close()


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listener, server.sockets[0].getsockname())
    await relay.start()
    yield listener.getsockname()
    await relay.close()
    server.close()


async def send(address: tuple[str, int], data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_bytes_arrive_unchanged_and_half_a_close_is_passed_on(address: tuple[str, int]) -> None:
    data = bytes(range(256)) * 40_000  # 10 MB: more than the buffers on the way
    answer = await send(address, data)
    assert answer[:32] == hashlib.sha256(data).digest() and answer[32:] == data


async def test_what_was_sent_before_the_relay_accepted_is_not_lost() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listener, server.sockets[0].getsockname())
    with socket.create_connection(listener.getsockname()) as early:
        early.sendall(b"early")
        early.shutdown(socket.SHUT_WR)
        await relay.start()
        early.setblocking(False)
        answer = b""
        while part := await asyncio.get_running_loop().sock_recv(early, 1000):
            answer += part
    assert answer[32:] == b"early"
    await relay.close()
    server.close()


async def test_many_at_once(address: tuple[str, int]) -> None:
    answers = await asyncio.gather(*(send(address, b"%d" % number) for number in range(50)))
    assert [answer[32:] for answer in answers] == [b"%d" % number for number in range(50)]


async def test_a_gateway_that_is_away_closes_and_the_next_connection_is_tried_afresh() -> None:
    target = socket.socket()
    target.bind(("127.0.0.1", 0))  # the port is its own, and refuses
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listener, target.getsockname())
    await relay.start()
    address = listener.getsockname()
    with pytest.raises(OSError):
        if await send(address, b"x") == b"":
            raise ConnectionResetError
    server = await asyncio.start_server(echo, sock=target)
    assert (await send(address, b"x"))[32:] == b"x"
    await relay.close()
    server.close()


async def test_the_loss_of_one_side_closes_the_other_and_close_cuts_all() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        begun.set()
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listener, server.sockets[0].getsockname())
    await relay.start()
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"x")
    await begun.wait()
    writer.transport.abort()
    await asyncio.wait_for(ended.wait(), 30)
    begun.clear()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"x")
    await begun.wait()
    await relay.close()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 30)
    writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection(*listener.getsockname())
    server.close()
