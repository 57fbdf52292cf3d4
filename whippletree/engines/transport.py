"""HTTP to an engine: one pool of kept connections, typed failures, the events of a stream by network read.

    stream ──► POST ──► every read ──► the events that it completes, together
    Running.end (abort, closing) ──► the connection is closed ──► the server ends the request

Who waits for whom: `stream` waits for the server's next bytes, at most `Timeouts.read` seconds; `Running.end` unblocks it (a
connection that is still being made: when it is made). The pool has no limit of its own: as many connections are open as
requests are in flight.

Invariants (tests/engines/test_transport.py):
- every failure of the connection is EngineUnavailable;
- a kept connection that the server closed meanwhile is tried once more, any other failure is told;
- the key is in no error, not even where the server repeats it;
- ending a request closes its connection, and no connection is left open by `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from whippletree.engines.events import DONE, EventReader
from whippletree.engines.http1 import Pool, Reply, Server, Unanswered
from whippletree.engines.wire import refusal
from whippletree.errors import ConfigurationError, EngineError, EngineUnavailable
from whippletree.types import Struct

R = TypeVar("R")
DRAIN_SECONDS = 1.0
KEEP_SECONDS = 3.0  # idle connections; less than the 5 s after which vLLM closes them
READ_BUFFER_BYTES = 1 << 18  # a slow reader makes the server wait once this much is unread
LONGEST_RETRY_AFTER = 300.0  # seconds; a server that asks for more is asked again after this
QUOTED_BYTES = 500


class Timeouts(Struct):
    """Limits of a client's waits, seconds. `read` bounds the silence between bytes, not a turn; a paused engine is silent.

    Example: Timeouts(connect=5.0, read=600.0, control=120.0)
    """

    connect: float = 5.0
    read: float = 600.0
    control: float = 120.0


class Received(NamedTuple):
    """What one network read completed: the data of events, or the `whole` body of a reply that is no event stream.

    `done`: the server said that nothing follows ([DONE]).
    """

    events: list[bytes]
    whole: bool = False
    done: bool = False


class Running:
    """A request in flight: what abort needs to end it."""

    def __init__(self) -> None:
        self.aborted = False
        self.reply: Reply | None = None

    def end(self) -> None:
        """The request is to end now."""
        self.aborted = True
        self.close()

    def close(self) -> None:
        """Nothing more of its reply is wanted."""
        if self.reply is not None:
            self.reply.close()


class Transport:
    """Requests to one server. Create it anywhere; connections belong to the event loop of the first request."""

    def __init__(self, name: str, base_url: str, *, api_key: str = "", timeouts: Timeouts | None = None) -> None:
        """`base_url` has no trailing path that requests repeat. Raises ConfigurationError when it is not an http(s) URL."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"engine URL {base_url!r} is not an http(s) URL", "write for example http://127.0.0.1:8100"
            )
        if parts.username or parts.password:
            raise ConfigurationError("the engine URL holds a user name or password", "give the key by its own setting")
        self.name = name
        self.base_url = base_url.rstrip("/")
        self.timeouts = timeouts or Timeouts()
        self._key = api_key
        self._prefix = parts.path.rstrip("/")
        headers = [("Content-Type", "application/json"), ("User-Agent", "whippletree")]
        if api_key:
            if not api_key.isascii() or not api_key.isprintable():
                raise ConfigurationError("the engine's key has characters that no header can hold", "copy the key again")
            headers.append(("Authorization", f"Bearer {api_key}"))
        tls = parts.scheme == "https"
        server = Server(
            host=parts.hostname,
            port=_port(base_url) or (443 if tls else 80),
            tls=tls,
            headers=tuple(headers),
            connect=self.timeouts.connect,
            keep=KEEP_SECONDS,
            buffer=READ_BUFFER_BYTES,
        )
        self._pool = Pool(server)

    async def request(self, method: str, path: str, body: bytes | None = None, *, seconds: float) -> bytes:
        """One whole HTTP exchange within `seconds`: the body of a 2xx reply. Raises EngineError and its kinds."""
        running = Running()
        try:
            async with asyncio.timeout(seconds):
                reply = await self._begun(method, path, body or b"", seconds, running)
                data = await reply.rest()
        except TimeoutError:
            raise self._unavailable(f"no whole reply after {seconds:g} s", path) from None
        except OSError as error:
            raise self._unavailable(str(error), path) from error
        finally:
            running.close()
        if reply.status >= 300:
            raise self._refused(reply, data, self.name)
        return data

    async def call(self, method: str, path: str, reply: type[R], body: Struct | None = None) -> R:
        """One control request with a typed reply. Raises EngineError and its kinds."""
        encoded = None if body is None else msgspec.json.encode(body)
        data = await self.request(method, path, encoded, seconds=self.timeouts.control)
        try:
            return msgspec.json.decode(data or b"{}", type=reply)
        except msgspec.DecodeError as error:
            raise self.garbled(error, data) from error

    async def stream(
        self, path: str, body: bytes, running: Running, who: str, *, joins: bool = False
    ) -> AsyncGenerator[Received, None]:
        """What each network read completes, up to [DONE] or the end. `who` is named in errors; `joins`: see EventReader.

        A body that is no event stream, or that holds no event, comes whole. Raises EngineError and its kinds.
        """
        try:
            reply = await self._begun("POST", path, body, self.timeouts.read, running)
            if reply.status >= 300:
                raise self._refused(reply, await reply.rest(), f"{who},")
            if reply.content_type != "text/event-stream":
                yield Received([await reply.rest()], True)
                return
            events = EventReader(joins=joins)
            seen = False
            while data := await reply.read():
                batch = events.feed(data)
                if DONE in batch:
                    yield Received(batch[: batch.index(DONE)], False, True)
                    await _drain(reply)
                    return
                if batch:
                    seen = True
                    yield Received(batch)
            if batch := events.end():
                yield Received(batch)
            elif events.unframed() and not seen:  # an error page under the wrong content type
                yield Received([events.unframed()], True)
        except OSError as error:
            raise self._unavailable(str(error), path) from error

    def garbled(self, error: msgspec.DecodeError, data: bytes) -> EngineError:
        """The error for what is not of the expected form; `data` is quoted."""
        cause = f"{self.name} at {self.base_url} sent what cannot be read: {error}: {self.quote(data)}"
        return EngineError(cause, "check the URL and server version")

    def quote(self, data: bytes) -> str:
        """The beginning of what a server sent, for an error."""
        return self.clean(data[:QUOTED_BYTES].decode("utf-8", "replace"))

    def clean(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self._key, "[key]") if self._key else text

    async def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    async def _begun(self, method: str, path: str, body: bytes, silence: float, running: Running) -> Reply:
        """A reply whose head has come. Raises OSError; EngineUnavailable where the request was ended before."""
        try:
            return await self._asked(method, path, body, silence, running, fresh=False)
        except Unanswered:  # a kept connection that the server closed meanwhile is no answer
            return await self._asked(method, path, body, silence, running, fresh=True)

    async def _asked(self, method: str, path: str, body: bytes, silence: float, running: Running, *, fresh: bool) -> Reply:
        reply = running.reply = await self._pool.open(method, self._prefix + path, body, silence=silence, fresh=fresh)
        if running.aborted:
            reply.close()
        try:
            await reply.head()
        except OSError as error:
            if running.aborted:
                raise EngineUnavailable(f"{self.name}: the request was aborted", "nothing to do") from error
            raise
        return reply

    def _refused(self, reply: Reply, data: bytes, who: str) -> EngineError:
        seconds = retry_after(reply.headers.get("retry-after", ""), reply.headers.get("date", ""))
        return refusal(reply.status, self.clean(data.decode("utf-8", "replace")).encode(), who, seconds)

    def _unavailable(self, reason: str, path: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self.name} at {self.base_url}{path}: {self.clean(reason) or 'the connection failed'}",
            "check that the engine runs; a retry may help",
        )


def _port(url: str) -> int | None:
    """Raises ConfigurationError where the port is no port."""
    try:
        return urlsplit(url).port
    except ValueError as error:
        raise ConfigurationError(f"engine URL {url!r}: {error}", "write for example http://127.0.0.1:8100") from error


def retry_after(value: str, date: str) -> float:
    """Seconds of a Retry-After header: a number, or a date counted from the reply's own; 0.0 where it says nothing."""
    wait = 0.0
    with suppress(ValueError, TypeError):
        wait = (parsedate_to_datetime(value) - parsedate_to_datetime(date)).total_seconds()
    with suppress(ValueError):
        wait = float(value)
    return min(wait, LONGEST_RETRY_AFTER) if wait > 0 else 0.0


async def _drain(reply: Reply) -> None:
    """Read past the last event to the end of the reply, so that its connection can be used again; do not insist."""
    if not reply.whole:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await reply.rest()
