"""A lean HTTP/1.1 client for one server: the protocol and the pool; the parser is httptools'.

    open ──► kept connection, else a new one ──► request in one write ──► Reply: head, read, read, ... ──► the pool

A stream of tokens comes as many small pieces. They are gathered as they arrive, and whoever reads gets all of them at once:
what a piece costs decides how many streams one process can carry.
Who waits for whom: `open` waits for a new connection, at most `connect` seconds; `head` and `read` for the server, at most
`silence` seconds without a byte; `Reply.close` unblocks them. A reader that is slow makes the server wait.
Invariants (tests/engines/test_http1.py):
- what is read, joined, is the body, however the server cuts it;
- a connection serves the next request only where its last reply came whole and nothing came after it;
- every failure is an OSError; `Unanswered` is one where the server closed a kept connection without a word.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

import httptools

from whippletree.types import Struct


class HttpFailure(OSError):
    """The exchange failed: the connection closed, or what came is no HTTP."""


class Unanswered(HttpFailure):
    """The server closed a kept connection before any byte of its reply: the request may be sent again."""


class Server(Struct):
    """Where requests go, and how long is waited. `connect`, `keep` (of idle connections): seconds. `buffer`: bytes of a reply
    that may be unread before the server has to wait.

    Example: Server(host="127.0.0.1", port=8100, headers=(("Content-Type", "application/json"),))
    """

    host: str
    port: int
    tls: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    connect: float = 5.0
    keep: float = 3.0
    buffer: int = 1 << 18

    def head(self, method: str, path: str, length: int) -> bytes:
        """Request line and headers. Raises ValueError where a header or the path would end a line."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{self.port}", "Accept: */*", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if any("\r" in line or "\n" in line for line in lines) or " " in path or not path.isascii():
            raise ValueError("a header or the path of a request has a character that cannot stand there")
        return "\r\n".join([*lines, f"Content-Length: {length}\r\n\r\n"]).encode("latin-1")


class Pool:
    """Connections to one server. They belong to the event loop of the first request."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._tls = ssl.create_default_context() if server.tls else None
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()

    async def open(self, method: str, path: str, body: bytes, *, silence: float, fresh: bool = False) -> Reply:
        """Send a request; its reply is to be waited for, and closed. `fresh`: on a new connection. Raises OSError."""
        connection = None if fresh else self._kept()
        kept = connection is not None
        if connection is None:
            connection = await self._connect()
        return connection.send(self.server.head(method, path, len(body)) + body, silence, kept=kept)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.drop()

    def _kept(self) -> _Connection | None:
        """The connection that was used last, unless it has been idle for too long."""
        oldest = asyncio.get_running_loop().time() - self.server.keep
        while self._idle and self._idle[0].since < oldest:
            self._idle.popleft().drop()
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.server.connect):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, loop), self.server.host, self.server.port, ssl=self._tls
                )
        except TimeoutError:
            raise HttpFailure(f"no connection after {self.server.connect:g} s") from None
        except UnicodeError as error:
            raise HttpFailure(f"{self.server.host[:100]!r} is no host name: {error}") from error
        return connection

    def opened(self, connection: _Connection) -> None:
        """A connection is there."""
        self._open.add(connection)

    def free(self, connection: _Connection) -> None:
        """A connection has done its request."""
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class Reply:
    """What comes back on one connection. `status` and `headers` (names in lower case) are there once `head` has returned."""

    def __init__(self, connection: _Connection, loop: asyncio.AbstractEventLoop, silence: float, *, kept: bool) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.kept = kept
        self.whole = False  # its last byte has come
        self._connection: _Connection | None = connection
        self._loop = loop
        self._silence = silence
        self._begun = self._headed = False
        self._pieces: list[bytes] = []
        self._held = 0  # bytes
        self._error: OSError | None = None
        self._ear: asyncio.Future[None] | None = None
        self._heard = loop.time()
        self._timer = loop.call_later(silence, self._look)

    @property
    def content_type(self) -> str:
        """The media type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def head(self) -> None:
        """Wait for status and headers. Raises OSError."""
        while not self._headed:
            await self._news()

    async def read(self) -> bytes:
        """What came since the last time; waits for something; b"" at the end. Raises OSError."""
        while not self._pieces and not self.whole:
            await self._news()
        pieces, self._pieces, self._held = self._pieces, [], 0
        if self._connection is not None:
            self._connection.flow(True)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def rest(self) -> bytes:
        """The body up to its end. Raises OSError."""
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """No more of it is wanted. Where it came whole its connection has gone back already, else it is closed."""
        self._fail(HttpFailure("the request was ended"))
        if self._connection is not None:
            self._connection.drop()

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        ear = self._ear = self._loop.create_future()
        try:
            await ear
        finally:
            self._ear = None

    def _look(self) -> None:
        """Has the server been silent for too long?"""
        left = self._heard + self._silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self._fail(HttpFailure(f"nothing came for {self._silence:g} s"))
        if self._connection is not None:
            self._connection.drop()

    def _tell(self) -> None:
        if self._ear is not None and not self._ear.done():
            self._ear.set_result(None)

    def _fail(self, error: OSError) -> None:
        if not self.whole:
            self._error = self._error or error
            if self._ear is not None and not self._ear.done():
                self._ear.set_exception(self._error)
        self._timer.cancel()

    # --- told by the connection ---

    def heard(self) -> None:
        """Bytes came, and the parser has seen them."""
        self._begun = True
        self._heard = self._loop.time()
        if self._pieces or self._headed:
            self._tell()

    def titled(self, status: int) -> None:
        """Status and headers are complete."""
        self.status, self._headed = status, True

    def more(self, piece: bytes, limit: int) -> bool:
        """A piece of the body; False where the reader has to catch up first."""
        self._pieces.append(piece)
        self._held += len(piece)
        return self._held <= limit

    def ended(self) -> None:
        """The last byte of the body has come."""
        self.whole = True
        self._connection = None
        self._timer.cancel()
        self._tell()

    def broken(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._connection = None
        if self._error is not None:
            return
        if self._headed and error is None and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self.ended()  # a body without a length ends with its connection
            return
        reason = str(error or "") or "the server closed the connection"
        quiet = self.kept and not self._begun
        self._fail(Unanswered(reason) if quiet else HttpFailure(reason + (" in the middle of a reply" if self._headed else "")))


class _Connection(asyncio.Protocol):
    """One connection; it has at most one reply to come. The methods `on_...` are the parser's callbacks."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.since = 0.0  # when it became idle
        self._pool = pool
        self._loop = loop
        self._buffer = pool.server.buffer
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: Reply | None = None
        self._reading = True

    @property
    def usable(self) -> bool:
        """It can take a request."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes, silence: float, *, kept: bool) -> Reply:
        """Write a request."""
        reply = self._reply = Reply(self, self._loop, silence, kept=kept)
        if self._transport is not None:
            self._transport.write(data)
        else:
            reply.broken(None)
        return reply

    def drop(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def flow(self, on: bool) -> None:
        """Let the server write, or make it wait."""
        if on is not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = on
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:  # nothing was asked
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reply.broken(HttpFailure(f"what came is no HTTP/1.1: {error}"))
            self.drop()
            return
        reply.heard()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.lost(self)
        if self._reply is not None:
            self._reply.broken(exc)
            self._reply = None

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        if self._reply is None:  # bytes behind the end of a reply: the connection cannot be trusted any more
            self.drop()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reply is not None:
            self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._reply is not None and status >= 200:
            self._reply.titled(status)

    def on_body(self, body: bytes) -> None:
        if self._reply is not None and not self._reply.more(body, self._buffer):
            self.flow(False)

    def on_message_complete(self) -> None:
        reply, status = self._reply, self._parser.get_status_code()
        if reply is not None and status < 200:
            reply.headers.clear()  # only a sign of life
        elif reply is not None:
            self._reply = None
            reply.ended()
            if self._parser.should_keep_alive():
                self.flow(True)
                self.since = self._loop.time()
                self._pool.free(self)
            else:
                self.drop()
