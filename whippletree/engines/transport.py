"""HTTP to an engine: one pool of kept connections, typed failures, the events of a stream by network read.

    stream ──► POST ──► every read ──► the events that it completes, together
    Running.end (abort, closing) ──► the HTTP response is closed ──► the server ends the request

Who waits for whom: `stream` waits for the server's next bytes, at most `Timeouts.read` seconds; `Running.end` unblocks it.
The pool has no limit of its own: as many connections are open as requests are in flight.

Invariants (tests/engines/test_transport.py):
- every failure of the connection is EngineUnavailable; nothing else of aiohttp leaves this module;
- a kept connection that the server closed meanwhile is tried once more, any other failure is told;
- the key is in no error, not even where the server repeats it;
- ending a request closes its response, and no connection is left open by `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from whippletree.engines.events import DONE, EventReader
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
        self.aborted = asyncio.Event()
        self.post: asyncio.Future[aiohttp.ClientResponse] | None = None  # while the response is waited for
        self.response: aiohttp.ClientResponse | None = None

    def end(self) -> None:
        """Close the response, or give up waiting for it."""
        self.aborted.set()
        if self.post is not None:
            self.post.cancel()
        if self.response is not None:
            self.response.close()


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
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, path: str, body: bytes | None = None, *, seconds: float) -> bytes:
        """One whole HTTP exchange within `seconds`: the body of a 2xx reply. Raises EngineError and its kinds."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=self.timeouts.connect)
        try:
            async with await self._send(method, path, body, timeout) as response:
                data = await response.read()
                if response.status >= 300:
                    raise self._refused(response, data, self.name)
                return data
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unavailable(error, path) from error

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
            response = running.response = await self._post(path, body, running)
            if response.status >= 300:
                raise self._refused(response, await response.read(), f"{who},")
            if response.content_type != "text/event-stream":
                yield Received([await response.read()], True)
                return
            events = EventReader(joins=joins)
            seen = False
            async for data in response.content.iter_any():
                batch = events.feed(data)
                if DONE in batch:
                    yield Received(batch[: batch.index(DONE)], False, True)
                    await _drain(response)
                    return
                if batch:
                    seen = True
                    yield Received(batch)
            if batch := events.end():
                yield Received(batch)
            elif events.unframed() and not seen:  # an error page under the wrong content type
                yield Received([events.unframed()], True)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unavailable(error, path) from error

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
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, path: str, body: bytes, running: Running) -> aiohttp.ClientResponse:
        """Response headers of a sampling request, or EngineUnavailable once it is aborted."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect, sock_read=self.timeouts.read)
        post = running.post = asyncio.ensure_future(self._send("POST", path, body, timeout))
        if running.aborted.is_set():
            post.cancel()
        try:
            return await post
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if running.aborted.is_set() and not (own is not None and own.cancelling()):
                raise EngineUnavailable(f"{self.name}: the request was aborted", "nothing to do") from None
            raise
        finally:
            running.post = None

    async def _send(self, method: str, path: str, body: bytes | None, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Response headers. A kept connection that the server closed meanwhile is not an answer: it is tried once more."""
        session = self._open()
        try:
            return await session.request(method, self.base_url + path, data=body, timeout=timeout)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await session.request(method, self.base_url + path, data=body, timeout=timeout)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Content-Type": "application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS),
                headers=headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=READ_BUFFER_BYTES,
            )
        return self._session

    def _refused(self, response: aiohttp.ClientResponse, data: bytes, who: str) -> EngineError:
        seconds = retry_after(response.headers.get("Retry-After", ""), response.headers.get("Date", ""))
        return refusal(response.status, self.clean(data.decode("utf-8", "replace")).encode(), who, seconds)

    def _unavailable(self, error: BaseException, path: str) -> EngineUnavailable:
        reason = self.clean(str(error) or type(error).__name__)
        return EngineUnavailable(
            f"{self.name} at {self.base_url}{path}: {reason}", "check that the engine runs; a retry may help"
        )


def retry_after(value: str, date: str) -> float:
    """Seconds of a Retry-After header: a number, or a date counted from the reply's own; 0.0 where it says nothing."""
    wait = 0.0
    with suppress(ValueError, TypeError):
        wait = (parsedate_to_datetime(value) - parsedate_to_datetime(date)).total_seconds()
    with suppress(ValueError):
        wait = float(value)
    return min(wait, LONGEST_RETRY_AFTER) if wait > 0 else 0.0


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read past the last event to the end of the reply, so that its connection can be used again; do not insist."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while not response.content.at_eof():
                await response.content.readany()
