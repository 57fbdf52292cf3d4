"""Captured sessions over HTTP. Every route needs the control key.

Invariant (tests/gateway/test_gateway_sessions.py): what is answered is one struct of wire.py, as JSON, or as MessagePack where
`?format=msgpack` asks for it.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from whippletree.errors import RequestError
from whippletree.gateway import keys
from whippletree.gateway.access import Access
from whippletree.gateway.control_routes import encoded
from whippletree.gateway.model_routes import readable
from whippletree.gateway.requests import flag, read_body, seconds
from whippletree.gateway.sessions import Sessions
from whippletree.gateway.wire import SessionEnd, SessionOpened, SessionRequest
from whippletree.types import Struct

T = TypeVar("T", bound=Struct)

SETTLE_LIMIT = 2.0  # seconds, where the request names none
MSGPACK = "application/msgpack"


class SessionRoutes:
    """The handlers."""

    def __init__(self, sessions: Sessions, access: Access, secret: bytes) -> None:
        self._sessions = sessions
        self._access = access
        self._secret = secret

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register every route."""
        router.add_post("/sessions", self.open)
        router.add_get("/sessions/{session_id}/rollout", self.rollout)
        router.add_post("/sessions/{session_id}/finish", self.finish)
        router.add_delete("/sessions/{session_id}", self.cancel)

    async def open(self, request: web.Request) -> web.Response:
        """POST /sessions: a SessionRequest, or nothing; answers a SessionOpened."""
        await self._access.control(request)
        attempt = await self._sessions.open(await _decoded(request, SessionRequest))
        key = keys.mint(self._secret, attempt.rollout_id, attempt.attempt)
        root = f"{request.scheme}://{request.host}"
        return encoded(
            SessionOpened(
                session_id=attempt.rollout_id,
                attempt=attempt.attempt,
                api_key=key,
                base_url=f"{root}/v1",
                anthropic_base_url=root,
                gemini_base_url=root,
                path_base_url=f"{root}/r/{key}/v1",
            )
        )

    async def rollout(self, request: web.Request) -> web.Response:
        """GET /sessions/{id}/rollout?settle=SECONDS&samples=1&format=json|msgpack: a RolloutReport of any rollout."""
        await self._access.control(request)
        form = request.query.get("format", "json")
        if form not in ("json", "msgpack"):
            raise RequestError(f"format {form!r} is not known", "use json or msgpack")
        limit = seconds(request, "settle")
        report = await self._sessions.report(
            request.match_info["session_id"], SETTLE_LIMIT if limit is None else limit, flag(request, "samples")
        )
        encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
        body = await asyncio.to_thread(encode, report)
        return web.Response(body=body, content_type="application/json" if form == "json" else MSGPACK)

    async def finish(self, request: web.Request) -> web.Response:
        """POST /sessions/{id}/finish: a SessionEnd; answers a SessionState."""
        await self._access.control(request)
        end = await _decoded(request, SessionEnd)
        return encoded(await self._sessions.finish(request.match_info["session_id"], end))

    async def cancel(self, request: web.Request) -> web.Response:
        """DELETE /sessions/{id}; answers a SessionState."""
        await self._access.control(request)
        return encoded(await self._sessions.cancel(request.match_info["session_id"]))


async def _decoded(request: web.Request, kind: type[T]) -> T:
    """The body as a struct; an empty one is a struct of defaults. Raises RequestError (400)."""
    body = await read_body(request)
    with readable():
        return msgspec.json.decode(body or b"{}", type=kind)
