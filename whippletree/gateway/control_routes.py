"""What the trainer may ask: hold and release, seal, status. Every route needs the control key.

Invariant (tests/gateway/test_gateway_access.py): without the control key nothing here is done or told.
"""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from whippletree.errors import RequestError
from whippletree.gateway.access import Access
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.model_routes import json_response
from whippletree.gateway.requests import flag, seconds
from whippletree.gateway.service import Gateway
from whippletree.gateway.sessions import find_rollout
from whippletree.gateway.wire import Health
from whippletree.protocols import Store
from whippletree.types import Struct


class ControlRoutes:
    """The handlers."""

    def __init__(self, gateway: Gateway, store: Store, access: Access) -> None:
        self._gateway = gateway
        self._store = store
        self._access = access

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register every route."""
        router.add_get("/healthz", self.health)
        router.add_post("/control/hold", partial(self.hold, abort=False))
        router.add_post("/pause", partial(self.hold, abort=True))
        for path in ("/control/release", "/resume"):
            router.add_post(path, self.release)
        router.add_post("/control/attempts/{rollout_id}/{attempt}/seal", self.seal)
        router.add_get("/control/status", self.status)

    async def health(self, request: web.Request) -> web.Response:
        """GET /healthz: needs no key, says nothing but that the process answers."""
        return encoded(Health())

    async def hold(self, request: web.Request, abort: bool) -> web.Response:
        """POST /control/hold?limit=SECONDS&abort=0, and /pause, where `abort` is on: what still runs at the limit is ended in
        the engines, and goes on from its sampled ids after the release."""
        await self._access.control(request)
        limit, abort = seconds(request, "limit"), flag(request, "abort", abort)
        return encoded(await self._gateway.hold(limit, abort))

    async def release(self, request: web.Request) -> web.Response:
        """POST /control/release, and /resume."""
        await self._access.control(request)
        return encoded(self._gateway.release())

    async def seal(self, request: web.Request) -> web.Response:
        """POST /control/attempts/{rollout_id}/{attempt}/seal?limit=SECONDS."""
        await self._access.control(request)
        attempt = request.match_info["attempt"]
        if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
            raise RequestError("the attempt is not a number", "attempts count from 1", status=404, code="not_found")
        key = AttemptKey(rollout_id=request.match_info["rollout_id"], attempt=int(attempt))
        await find_rollout(self._store, key.rollout_id)
        report = await self._gateway.seal(key, seconds(request, "limit"))
        return encoded(msgspec.structs.replace(report, refused_keys=self._access.refused_keys))

    async def status(self, request: web.Request) -> web.Response:
        """GET /control/status."""
        await self._access.control(request)
        return encoded(msgspec.structs.replace(self._gateway.status(), refused_keys=self._access.refused_keys))


def encoded(answer: Struct) -> web.Response:
    """A struct as JSON."""
    return json_response(msgspec.json.encode(answer))
