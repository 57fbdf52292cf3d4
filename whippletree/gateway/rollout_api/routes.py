"""The rollout API over HTTP. Every route but the document's needs the control key.

Invariants (tests/gateway/test_rollout_api.py, test_rollout_api_openapi.py): what is answered is one struct of wire.py as JSON;
whatever is sent, no answer is a 500.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

import whippletree
from whippletree.errors import ConflictError, RequestError
from whippletree.gateway.access import Access
from whippletree.gateway.control_routes import encoded
from whippletree.gateway.model_routes import json_response, readable
from whippletree.gateway.requests import read_body, seconds
from whippletree.gateway.rollout_api.endpoints import Endpoints
from whippletree.gateway.rollout_api.operations import LISTING, OPERATIONS, PAGE_LIMIT, document
from whippletree.gateway.rollout_api.service import LONGEST_WAIT, RolloutService, conflict
from whippletree.gateway.rollout_api.wire import (
    CancelRollouts,
    CreateRollouts,
    EventDraft,
    EventList,
    Lease,
    ModelEndpoints,
    QueueState,
    RolloutList,
    RolloutUpdate,
    info,
)
from whippletree.types import QueueReport, Struct

T = TypeVar("T", bound=Struct)
Handler = Callable[[web.Request], Awaitable[Struct]]

DOCUMENT_PATH = "/api/openapi.json"
DEFAULT_LIMIT = 100
LONGEST_PLACE = 15  # digits


class RolloutRoutes:
    """The handlers, one per operation and of its name."""

    def __init__(self, service: RolloutService, endpoints: Endpoints, access: Access) -> None:
        self._service = service
        self._endpoints = endpoints
        self._access = access
        self._document = msgspec.json.encode(document(whippletree.__version__))

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register every route."""
        for operation in OPERATIONS:
            router.add_route(operation.method, operation.path, self._handling(getattr(self, operation.name)))
        router.add_get(DOCUMENT_PATH, self.describe)

    def _handling(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if handler not in (self.append_event, self.renew_lease) or not self._access.may_append(request):
                await self._access.control(request)
            try:
                return encoded(await handler(request))
            except ConflictError as error:
                raise conflict(error) from error

        return handle

    async def describe(self, request: web.Request) -> web.Response:
        """GET /api/openapi.json: needs no key, says nothing of this run."""
        return json_response(self._document)

    async def create_rollouts(self, request: web.Request) -> RolloutList:
        """POST /api/rollouts."""
        created = await self._service.create(await _decoded(request, CreateRollouts))
        return RolloutList(rollouts=tuple(map(info, created)))

    async def list_rollouts(self, request: web.Request) -> RolloutList:
        """GET /api/rollouts."""
        states = request.query.getall("state", []) + request.query.getall("status", [])
        one_of = {parameter.name: parameter.schema for parameter in LISTING}
        for state in states:
            _check("state", state, one_of["state"]["items"]["enum"])
        named = {name: request.query.get(name, "") for name in ("source", "group_id", "after")}
        for name in ("purpose", "order"):
            if name in request.query:
                named[name] = _check(name, request.query[name], one_of[name]["enum"])
        page = await self._service.page(_wait(request), states=states, limit=_limit(request), **named)
        return RolloutList(rollouts=tuple(map(info, page.rollouts)), next=page.next, more=page.more)

    async def cancel_rollouts(self, request: web.Request) -> RolloutList:
        """POST /api/rollouts/cancel."""
        cancelled = await self._service.cancel(await _decoded(request, CancelRollouts))
        return RolloutList(rollouts=tuple(map(info, cancelled)))

    async def get_rollout(self, request: web.Request) -> Struct:
        """GET /api/rollouts/{id}."""
        return info(await self._service.get(request.match_info["rollout_id"], _wait(request)))

    async def update_rollout(self, request: web.Request) -> Struct:
        """PATCH /api/rollouts/{id}."""
        update = await _decoded(request, RolloutUpdate)
        return info(await self._service.update(request.match_info["rollout_id"], update))

    async def append_event(self, request: web.Request) -> Struct:
        """POST /api/rollouts/{id}/attempt/{attempt}/events."""
        draft = await _decoded(request, EventDraft)
        return await self._service.append(request.match_info["rollout_id"], _attempt(request), draft)

    async def renew_lease(self, request: web.Request) -> Lease:
        """POST /api/rollouts/{id}/attempt/{attempt}/heartbeat."""
        return await self._service.renew(request.match_info["rollout_id"], _attempt(request))

    async def list_events(self, request: web.Request) -> EventList:
        """GET /api/rollouts/{id}/events."""
        page = await self._service.events(
            request.match_info["rollout_id"],
            kind=request.query.get("kind", ""),
            after=_number(request, "after", 0, 0, 10**LONGEST_PLACE),
            limit=_limit(request),
            wait=_wait(request),
        )
        return EventList(events=page.events, next=page.next, more=page.more)

    async def register_models(self, request: web.Request) -> ModelEndpoints:
        """POST /api/models."""
        wanted = await _decoded(request, ModelEndpoints)
        return ModelEndpoints(models=await self._endpoints.add(wanted.models))

    async def remove_models(self, request: web.Request) -> ModelEndpoints:
        """DELETE /api/models."""
        return ModelEndpoints(models=await self._endpoints.clear())

    async def list_models(self, request: web.Request) -> ModelEndpoints:
        """GET /api/models."""
        return ModelEndpoints(models=await self._endpoints.wanted())

    async def get_queue(self, request: web.Request) -> QueueState:
        """GET /api/queue."""
        return _queue(await self._service.queue())

    async def pause_queue(self, request: web.Request) -> QueueState:
        """POST /api/queue/pause."""
        return _queue(await self._service.pause(True))

    async def resume_queue(self, request: web.Request) -> QueueState:
        """POST /api/queue/resume."""
        return _queue(await self._service.pause(False))


def _queue(report: QueueReport) -> QueueState:
    return QueueState(paused=report.paused, counts=report.counts)


async def _decoded(request: web.Request, kind: type[T]) -> T:
    """The body as a struct. Raises RequestError (400)."""
    body = await read_body(request)
    with readable():
        decoded = msgspec.json.decode(body, type=kind)
        msgspec.msgpack.encode(decoded)  # what cannot be written again cannot be stored
        return decoded


def _wait(request: web.Request) -> float:
    wait = seconds(request, "wait") or 0.0
    if wait > LONGEST_WAIT:
        raise RequestError(f"wait is longer than {LONGEST_WAIT:g} seconds", "ask again instead")
    return wait


def _limit(request: web.Request) -> int:
    return _number(request, "limit", DEFAULT_LIMIT, 1, PAGE_LIMIT)


def _number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > LONGEST_PLACE or not least <= int(text) <= most:
        raise RequestError(f"{name} is no number from {least} to {most}", f"for example ?{name}={default}")
    return int(text)


def _attempt(request: web.Request) -> int:
    text = request.match_info["attempt"]
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise RequestError("the attempt is not a number", "attempts count from 1", status=404, code="not_found")
    return int(text)


def _check(name: str, value: str, known: list[str]) -> str:
    if value not in known:
        raise RequestError(f"{name} {value[:40]!r} is not known", f"one of {', '.join(known)}")
    return value
