"""The HTTP application: every route, behind one guard.

    request ──► guard: host? ──► peers (several workers: whose rollout?) ──► handler: key? ──► answer, or an error in a dialect

Invariants (tests/gateway/test_gateway_access.py, test_gateway_fuzz.py):
- every answer, errors too, is JSON in the dialect that the path suggests, or a stream that the caller asked for;
- a path that is not served is a fast 404, and 403 where an attempt's key asks for what only the trainer may do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from aiohttp import web

from whippletree.errors import RequestError, WhippletreeError
from whippletree.gateway import keys
from whippletree.gateway.access import Access
from whippletree.gateway.control_routes import ControlRoutes
from whippletree.gateway.delivery import as_request_error, error_response
from whippletree.gateway.model_routes import ModelRoutes
from whippletree.gateway.peers import Peers
from whippletree.gateway.requests import dialect_of, is_control, request_key, shown
from whippletree.gateway.rollout_api.endpoints import Endpoints
from whippletree.gateway.rollout_api.routes import RolloutRoutes
from whippletree.gateway.rollout_api.service import RolloutService
from whippletree.gateway.service import Gateway
from whippletree.gateway.session_routes import SessionRoutes
from whippletree.gateway.sessions import Sessions
from whippletree.gateway.settling import Presence
from whippletree.protocols import Renderer, Store
from whippletree.traces import TracesConfig

logger = logging.getLogger(__name__)

CLIENT_GONE = 499

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(
    gateway: Gateway,
    *,
    store: Store,
    renderer: Renderer,
    secret: bytes,
    peers: Peers | None = None,
    traces: TracesConfig | None = None,
) -> web.Application:
    """Model routes at the root and below /r/<key>, control routes at the root. `peers`: the other workers, where there are."""
    access = Access(gateway.config, secret, store)
    presence = Presence()
    owns = (lambda rollout_id: peers.owner_of(rollout_id) == peers.number) if peers else (lambda rollout_id: True)
    sessions = Sessions(gateway, store, presence, owns, traces)
    guard = Guard(gateway.config.max_body_bytes, access)
    between = (peers.middleware,) if peers else ()
    app = web.Application(client_max_size=gateway.config.max_body_bytes, middlewares=[guard.middleware, *between])
    ModelRoutes(gateway, renderer, access, presence).add_to(app.router)
    ControlRoutes(gateway, store, access).add_to(app.router)
    SessionRoutes(sessions, access, secret).add_to(app.router)
    rollouts, endpoints = RolloutService(gateway, store), Endpoints(store, gateway.replicas, gateway.config.model)
    RolloutRoutes(rollouts, endpoints, access).add_to(app.router)

    async def in_the_background(app: web.Application) -> AsyncIterator[None]:
        work = (sessions.sweep_for_ever(), rollouts.follow(), rollouts.keep_leases(), endpoints.follow())
        tasks = [asyncio.create_task(_told(one)) for one in work]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app.cleanup_ctx.append(in_the_background)
    return app


async def _told(work: Coroutine[Any, Any, None]) -> None:
    """Run something in the background; if it fails, the log says so."""
    try:
        await work
    except Exception:
        logger.exception("background work of the gateway ended")
        raise


class Guard:
    """Refuses foreign hosts, and turns every error into the caller's form."""

    def __init__(self, max_body_bytes: int, access: Access) -> None:
        self._max_body_bytes = max_body_bytes
        self._access = access

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Around every handler."""
        try:
            self._access.check_host(request)
            return await handler(request)
        except WhippletreeError as error:
            return self._refuse(request, as_request_error(error))
        except web.HTTPRequestEntityTooLarge:
            cause = f"the request body is larger than {self._max_body_bytes} bytes"
            return self._refuse(request, RequestError(cause, "shorten the messages", status=413, code="request_too_large"))
        except web.HTTPException as problem:
            return self._refuse(request, await self._not_served(request, problem))
        except ConnectionResetError:  # the harness went away while its reply was written: nobody reads this answer
            return web.Response(status=CLIENT_GONE)
        except Exception:
            logger.exception("%s %s failed", request.method, request.match_info.route.resource)
            cause = "the gateway failed on this request"
            return self._refuse(request, RequestError(cause, "look at its log", status=500, code="internal_error"))

    def _refuse(self, request: web.Request, error: RequestError) -> web.Response:
        response = error_response(dialect_of(request.path, request.headers), error)
        if request.content.exception() is not None:  # the rest of the body cannot be told from a next request
            response.force_close()
        return response

    async def _not_served(self, request: web.Request, problem: web.HTTPException) -> RequestError:
        """What to say of a path or a method that no handler has, or of a body that cannot be read."""
        if is_control(request.path) and request_key(request).startswith(keys.PREFIX):
            await self._access.note_forbidden(request)
            return RequestError("an attempt's key allows model calls only", "stop", status=403, code="forbidden")
        if problem.status < 400 or problem.status >= 500:
            return RequestError("this path is not served", status=404, code="no_route")
        return RequestError(f"{request.method} {shown(request.path)}: {problem.reason}", status=problem.status, code="no_route")
