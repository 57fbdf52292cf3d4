"""The HTTP/1.1 client of engines, against servers that write exactly what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from whippletree.engines.http1 import HttpFailure, Pool, Reply, Server, Unanswered

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


class Served:
    """A server of the test's own; `connections` counts what came."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0
        self.lost = 0

    def pool(self, **settings: float | int) -> Pool:
        return Pool(Server(host="127.0.0.1", port=self.port, **settings))  # type: ignore[arg-type]


@asynccontextmanager
async def server(handle: Handler) -> AsyncIterator[Served]:
    served = Served(0)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handle(reader, writer)
        served.lost += 1
        writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    served.port = listening.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        listening.close()


class Clock:
    """The running loop's clock, which stands still but for what a test adds to it."""

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time()


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: made.now)
    return made


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the other side, by any clock; the test's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0)


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    return head, await reader.readexactly(length)


def answering(*replies: bytes, close: bool = False) -> Handler:
    """Writes one of the replies per request; afterwards waits, or closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await request_of(reader)
            writer.write(reply)
            await writer.drain()
        if not close:
            await reader.read()

    return handle


async def ask(pool: Pool, body: bytes = b"{}", silence: float = 5.0) -> Reply:
    reply = await pool.open("POST", "/v1/completions", body, silence=silence)
    await reply.head()
    return reply


def whole(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_the_request_is_what_the_server_gets() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request_of(reader))
        writer.write(whole(b"{}"))
        await reader.read()

    async with server(handle) as served:
        pool = Pool(Server(host="127.0.0.1", port=served.port, headers=(("Authorization", "Bearer k"),)))
        reply = await ask(pool, b'{"prompt": [1, 2]}')
        assert (reply.status, reply.content_type, await reply.rest()) == (200, "application/json", b"{}")
        pool.close()
    head, body = seen[0]
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/completions HTTP/1.1"
    assert {f"Host: 127.0.0.1:{served.port}", "Authorization: Bearer k", "Accept-Encoding: identity"} <= set(lines)
    assert body == b'{"prompt": [1, 2]}'


@pytest.mark.parametrize("width", [1, 2, 7, 1000])
async def test_a_chunked_body_is_whole_however_it_is_cut(width: int) -> None:
    pieces = [b"data: %d\n\n" % number for number in range(40)]
    stream = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await request_of(reader)
            for place in range(0, len(stream), width):
                writer.write(stream[place : place + width])
                if width < 1000:
                    await asyncio.sleep(0)
        await reader.read()

    async with server(handle) as served:
        pool = served.pool()
        for _ in range(2):
            reply = await ask(pool)
            assert reply.content_type == "text/event-stream"
            assert await reply.rest() == b"".join(pieces)
            assert reply.whole
        pool.close()
    assert served.connections == 1


async def test_pieces_that_came_meanwhile_are_read_together() -> None:
    stream = CHUNKED + b"3\r\nabc\r\n" * 500 + b"0\r\n\r\n"
    async with server(answering(stream)) as served:
        pool = served.pool()
        reply = await ask(pool)
        await asyncio.sleep(0.2)
        assert len(await reply.read()) == 1500
        assert await reply.read() == b""
        pool.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\n\r\nall of it",
        b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it",
        b"HTTP/1.1 100 Continue\r\nX-No: 1\r\n\r\n" + whole(b"all of it", b"Connection: close\r\n"),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nall of it\r\n0\r\n\r\n",
    ],
)
async def test_a_connection_that_ends_with_its_reply_is_not_used_again(reply: bytes) -> None:
    async with server(answering(reply, close=True)) as served:
        pool = served.pool()
        for _ in range(2):
            got = await ask(pool)
            assert (got.status, await got.rest()) == (200, b"all of it")
            assert "x-no" not in got.headers
        pool.close()
    assert served.connections == 2


async def test_a_reply_without_a_body_frees_its_connection() -> None:
    async with server(answering(b"HTTP/1.1 204 No Content\r\n\r\n", whole(b"x"))) as served:
        pool = served.pool()
        assert await (await ask(pool)).rest() == b""
        assert await (await ask(pool)).rest() == b"x"
        pool.close()
    assert served.connections == 1


@pytest.mark.parametrize("more", [whole(b"not asked for"), b"HTTP/1.1 2", b"rubbish"])
async def test_what_comes_after_a_reply_is_never_taken_for_the_next_one(more: bytes) -> None:
    async with server(answering(whole(b"first") + more, whole(b"second"))) as served:
        pool = served.pool()
        assert await (await ask(pool)).rest() == b"first"
        await asyncio.sleep(0.05)
        assert await (await ask(pool)).rest() == b"first"  # of a new connection
        pool.close()
    assert served.connections == 2


async def test_bytes_that_come_while_nothing_is_asked_close_the_connection() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(whole(b"one"))
        await asyncio.sleep(0.05)
        writer.write(whole(b"two"))
        await reader.read()

    async with server(handle) as served:
        pool = served.pool()
        assert await (await ask(pool)).rest() == b"one"
        await until(lambda: served.lost == 1)
        assert await (await ask(pool)).rest() == b"one"
        pool.close()
    assert served.connections == 2


@pytest.mark.parametrize(
    ("reply", "match"),
    [
        (b"", "closed the connection"),
        (CHUNKED + b"3\r\nab", "in the middle of a reply"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "in the middle of a reply"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (CHUNKED + b"zz\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "no HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "no HTTP"),
    ],
)
async def test_a_reply_that_is_cut_or_no_http_fails_and_says_so(reply: bytes, match: str) -> None:
    async with server(answering(reply, close=True)) as served:
        pool = served.pool()
        with pytest.raises(HttpFailure, match=match) as caught:
            await (await ask(pool)).rest()
        assert not isinstance(caught.value, Unanswered)
        pool.close()


async def test_only_a_kept_connection_that_said_nothing_is_unanswered() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(whole(b"x"))
        await request_of(reader)  # and no answer

    async with server(handle) as served:
        pool = served.pool()
        await (await ask(pool)).rest()
        with pytest.raises(Unanswered):
            await ask(pool)
        reply = await pool.open("POST", "/", b"", silence=5, fresh=True)
        await reply.head()
        pool.close()
    assert served.connections == 2


async def test_silence_ends_a_request_and_bytes_put_it_off(clock: Clock) -> None:
    go = asyncio.Queue[bytes]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED)
        while piece := await go.get():
            writer.write(piece)
        await reader.read()

    async with server(handle) as served:
        pool = served.pool()
        reply = await ask(pool, silence=0.4)
        for _ in range(6):
            clock.now += 0.3
            go.put_nowait(b"1\r\nx\r\n")
            assert await reply.read() == b"x"
        go.put_nowait(b"")
        clock.now += 0.3
        waiting = asyncio.create_task(reply.read())
        for _ in range(9):
            await asyncio.sleep(0)
        assert not waiting.done()
        clock.now += 0.2
        with pytest.raises(HttpFailure, match=r"nothing came for 0\.4 s"):
            await waiting
        await until(lambda: served.lost == 1)
        pool.close()


async def test_closing_ends_the_wait_and_the_servers_side() -> None:
    async with server(answering(CHUNKED + b"1\r\nx\r\n")) as served:
        pool = served.pool()
        reply = await ask(pool)
        assert await reply.read() == b"x"
        waiting = asyncio.create_task(reply.read())
        await asyncio.sleep(0.01)
        reply.close()
        with pytest.raises(HttpFailure, match="was ended"):
            await waiting
        await until(lambda: served.lost == 1)
        reply.close()  # again: nothing happens
        pool.close()


async def test_a_slow_reader_makes_the_server_wait() -> None:
    written = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 27))
        for _ in range(1 << 11):
            writer.write(b"x" * (1 << 16))
            await writer.drain()
            written += 1 << 16
        await reader.read()

    async with server(handle) as served:
        pool = served.pool(buffer=1 << 16)
        reply = await ask(pool)
        await asyncio.sleep(0.3)
        held = written
        assert held < 1 << 25
        assert len(await reply.rest()) == 1 << 27
        pool.close()


async def test_an_idle_connection_is_kept_for_so_long(clock: Clock) -> None:
    async with server(answering(*[whole(b"x")] * 5)) as served:
        pool = served.pool(keep=0.2)
        await (await ask(pool)).rest()
        clock.now += 0.15
        await (await ask(pool)).rest()
        clock.now += 0.15
        await (await ask(pool)).rest()
        assert served.connections == 1
        clock.now += 0.3
        await (await ask(pool)).rest()
        assert served.connections == 2
        pool.close()


async def test_closing_the_pool_ends_everything() -> None:
    async with server(answering(CHUNKED)) as served:
        pool = served.pool()
        replies = [await ask(pool) for _ in range(3)]
        pool.close()
        for reply in replies:
            with pytest.raises(HttpFailure):
                await reply.read()
        await until(lambda: served.lost == 3)


@pytest.mark.parametrize("host", ["x" * 70 + ".invalid", "host.invalid"])
async def test_a_host_that_is_none_is_a_failure(host: str) -> None:
    with pytest.raises(OSError):
        await Pool(Server(host=host, port=1)).open("GET", "/", b"", silence=1)


@pytest.mark.parametrize(("path", "value"), [("/a\r\nX: 1", "v"), ("/a b", "v"), ("/é", "v"), ("/", "v\r\nX: 1")])
def test_nothing_can_end_a_line_of_the_head(path: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot stand there"):
        Server(host="h", port=1, headers=(("X", value),)).head("GET", path, 0)


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert b"Host: [::1]:8000\r\n" in Server(host="::1", port=8000).head("GET", "/", 0)
