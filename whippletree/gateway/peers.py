"""A worker among its peers: requests of rollouts that another one owns are forwarded, control requests reach all.

Whether a request was forwarded is told by a header that carries the control key, so that no client can make a worker serve what
it does not own. A stream that breaks between two workers breaks the client's connection too: it retries, and the owner replays.
Invariants (tests/gateway/test_gateway_workers.py):
- what a client reads through another worker is byte for byte what the owner wrote;
- hold, release and status speak for all workers, and only to whoever has the control key; the counts are sums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from whippletree.errors import RequestError
from whippletree.gateway import keys
from whippletree.gateway.ownership import owner
from whippletree.gateway.requests import presented_keys, request_key
from whippletree.gateway.wire import GatewayStatus, HoldReport
from whippletree.types import Struct

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

FORWARDED = "X-Whippletree-Forwarded"
HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "host", "expect"}
)


class Peers:
    """The other workers, as one of them sees them."""

    def __init__(self, number: int, host: str, ports: Sequence[int], secret: bytes) -> None:
        """`ports`: every worker's own port, by number."""
        self.number = number
        self._urls = [f"http://{f'[{host}]' if ':' in host else host}:{port}" for port in ports]
        self._secret = secret
        self._control_key = keys.control_key(secret)
        self._http: aiohttp.ClientSession | None = None

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve what is ours, forward what is another's, ask everybody where the answer is a sum."""
        if self.is_forwarded(request):
            return await handler(request)
        rule = FAN_OUT.get((request.method, request.path))
        if rule is not None and any(keys.is_control_key(self._secret, key) for key in presented_keys(request)):
            return await self._for_all(request, handler, *rule)
        rollout_id = request.match_info.get("rollout_id") or request.match_info.get("session_id") or self._key_of(request)
        number = self.owner_of(rollout_id) if rollout_id else self.number
        return await (handler(request) if number == self.number else self.forward(request, number))

    def _key_of(self, request: web.Request) -> str:
        """The rollout that the request's key is for; "" where there is no good key (whoever serves it refuses it)."""
        try:
            return keys.verify(self._secret, request_key(request)).rollout_id
        except RequestError:
            return ""

    async def _for_all(
        self, request: web.Request, handler: Handler, kind: type[Struct], add: Callable[[Any], Struct]
    ) -> web.StreamResponse:
        own, others = await asyncio.gather(handler(request), self.ask_all(request, kind))
        if not isinstance(own, web.Response) or own.status != 200 or not isinstance(own.body, bytes):
            return own
        total = add([msgspec.json.decode(own.body, type=kind), *others])
        return web.Response(body=msgspec.json.encode(total), content_type="application/json")

    def owner_of(self, rollout_id: str) -> int:
        """The number of the worker that serves a rollout."""
        return owner(rollout_id, len(self._urls))

    def is_forwarded(self, request: web.Request) -> bool:
        """Whether a peer sent it."""
        return keys.is_control_key(self._secret, request.headers.get(FORWARDED, ""))

    async def forward(self, request: web.Request, number: int) -> web.StreamResponse:
        """Send the request to a peer and its answer to the client, piece by piece."""
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_HEADERS]
        headers += [(FORWARDED, self._control_key), ("Host", request.headers.get("Host", ""))]
        response: web.StreamResponse | None = None
        try:
            async with self._session().request(
                request.method, self._urls[number] + request.raw_path, headers=headers, data=await request.read()
            ) as answer:
                kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS]
                response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=dict(kept))
                response.content_length = answer.content_length if request.method != "HEAD" else None
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, OSError) as error:
            if response is not None and request.transport is not None:
                request.transport.abort()  # the client must not take what it has for the whole
                raise ConnectionResetError("the worker that owns this rollout went away") from error
            raise RequestError(
                "the worker that owns this rollout went away", "send the request again", status=503, code="worker_restarting"
            ) from error

    async def ask_all(self, request: web.Request, kind: type[T]) -> list[T]:
        """The same request to every other worker; their decoded answers. Raises RequestError."""
        others = [url for number, url in enumerate(self._urls) if number != self.number]
        return list(await asyncio.gather(*(self._ask(url, request, kind) for url in others)))

    async def _ask(self, url: str, request: web.Request, kind: type[T]) -> T:
        headers = {"Authorization": f"Bearer {self._control_key}", FORWARDED: self._control_key}
        try:
            async with self._session().request(request.method, url + request.raw_path, headers=headers) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            cause = f"a worker did not answer: {error}"
            raise RequestError(cause, "ask again", status=503, code="worker_restarting") from error
        if answer.status != 200:
            raise RequestError(f"a worker answered {answer.status}", "look at its log", status=502, code="worker_failed")
        return msgspec.json.decode(body, type=kind)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
            )
        return self._http

    async def close(self) -> None:
        """Let go of connections."""
        if self._http is not None:
            await self._http.close()


def add_holds(reports: Sequence[HoldReport]) -> HoldReport:
    """One report for all workers."""
    return HoldReport(
        held=all(report.held for report in reports),
        in_flight=sum(report.in_flight for report in reports),
        waiting=sum(report.waiting for report in reports),
    )


def add_statuses(reports: Sequence[GatewayStatus]) -> GatewayStatus:
    """One status for all workers; the engines as the first one sees them, with everybody's calls in flight."""
    breaks: dict[str, int] = {}
    for report in reports:
        for cause, count in report.prefix_breaks.items():
            breaks[cause] = breaks.get(cause, 0) + count
    seen = {
        engine.name: [other for report in reports for other in report.engines if other.name == engine.name]
        for engine in reports[0].engines
    }
    engines = tuple(
        msgspec.structs.replace(
            engine,
            answering=all(other.answering for other in seen[engine.name]),
            in_flight=sum(other.in_flight for other in seen[engine.name]),
        )
        for engine in reports[0].engines
    )
    counted = ("in_flight", "waiting", "sessions", "calls", "delivered", "aborted", "replayed", "resumed", "refused_keys")
    sums = {name: sum(getattr(report, name) for report in reports) for name in (*counted, "loop_stalls")}
    sums |= {name: max(getattr(report, name) for report in reports) for name in ("loop_lag", "loop_lag_worst")}
    return msgspec.structs.replace(
        reports[0], held=all(report.held for report in reports), prefix_breaks=breaks, engines=engines, **sums
    )


FAN_OUT: dict[tuple[str, str], tuple[type[Struct], Callable[[Any], Struct]]] = {
    ("POST", "/control/hold"): (HoldReport, add_holds),
    ("POST", "/control/release"): (HoldReport, add_holds),
    ("POST", "/pause"): (HoldReport, add_holds),
    ("POST", "/resume"): (HoldReport, add_holds),
    ("GET", "/control/status"): (GatewayStatus, add_statuses),
}
