"""A proxy between harness and gateway: it notes what was asked, and makes the faults that a gateway seldom has.

    harness ──► tap ──► gateway          status: answered here, in the dialect's own form
                 └ notes, faults         drop: the gateway's reply, cut off in its middle

Faults are counted over the requests of the main conversation (script.is_main), so that side calls take none of them.

Invariants (tests/control/test_contract_tap.py): without a fault a request and its reply pass unchanged; each fault happens
once; a reply is passed on piece by piece, not whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal

import aiohttp
from aiohttp import web
from yarl import URL

from whippletree.errors import RequestError
from whippletree.gateway.requests import dialect_of, shown
from whippletree.types import Struct

Trouble = Literal["429", "500", "drop"]
DROP_AFTER = 200  # bytes of a reply that arrive before its connection goes
MAX_BODY = 1 << 26  # bytes
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length", "host"})


class Asked(Struct):
    """One request of a harness. `fault`: what was done to it ("" for nothing). `at`: seconds since the epoch.

    Example: Asked(method="POST", path="/v1/messages", status=200, at=1764460000.0)
    """

    method: str
    path: str
    status: int
    at: float
    fault: str = ""


class Tap:
    """One proxy. `faults` are by the number of the request whose body `counts`, from 1."""

    def __init__(
        self, target: str, *, counts: Callable[[str], bool] = lambda _: True, faults: Mapping[int, Trouble] | None = None
    ) -> None:
        self.asked: list[Asked] = []
        self.left = dict(faults or {})
        self._target = target
        self._counts = counts
        self._seen = 0
        self._client: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Listen on loopback while the body runs; yields the port."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as client:
            self._client = client
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield runner.addresses[0][1]
            finally:
                await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body, at = await request.read(), time.time()
        fault = self._fault(request, body)
        if fault in ("429", "500"):
            status = int(fault)
            error = RequestError(f"a fault of the check: {fault}", "try again", status=status, code="rate_limit_exceeded")
            self._note(request, status, at, fault)
            headers = {"Retry-After": "1"} if status == 429 else None
            told = dialect_of(request.path, request.headers).error(error)
            return web.Response(status=status, body=told, content_type="application/json", headers=headers)
        return await self._pass(request, body, at, fault)

    def _fault(self, request: web.Request, body: bytes) -> str:
        if request.method != "POST" or "count" in request.path.lower() or not self._counts(body.decode(errors="replace")):
            return ""
        self._seen += 1
        return self.left.pop(self._seen, "")

    async def _pass(self, request: web.Request, body: bytes, at: float, fault: str) -> web.StreamResponse:
        assert self._client is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = URL(self._target + request.raw_path, encoded=True)
        async with self._client.request(
            request.method, url, data=body or None, headers=headers, allow_redirects=False
        ) as reply:
            self._note(request, reply.status, at, fault)
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP}
            response = web.StreamResponse(status=reply.status, headers=kept)
            if "Content-Length" in reply.headers:
                response.content_length = int(reply.headers["Content-Length"])
            await response.prepare(request)
            passed = 0
            async for piece in reply.content.iter_any():
                left = DROP_AFTER - passed if fault == "drop" else len(piece)
                await response.write(piece[:left])
                passed += len(piece)
                if fault == "drop" and passed >= DROP_AFTER:
                    if request.transport is not None:
                        request.transport.abort()
                    return response
            await response.write_eof()
            return response

    def _note(self, request: web.Request, status: int, at: float, fault: str) -> None:
        path = shown(request.path)
        self.asked.append(Asked(method=request.method, path=path, status=status, at=at, fault=fault))
