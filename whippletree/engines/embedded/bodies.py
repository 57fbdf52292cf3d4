"""Reading and writing the HTTP bodies of engine servers.

Invariant (tests/engines/test_embedded_process.py): every refusal is a JSON error with a status that says whose fault it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web

from whippletree.engines.embedded import api
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable, RequestError

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_LIMIT_BYTES = 64 * 1024 * 1024


class Handlers(Protocol):
    """What answers the routes of an engine server."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        ...

    async def models(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/models."""
        ...

    async def health(self, request: web.Request) -> web.StreamResponse:
        """GET /health."""
        ...

    async def status(self, request: web.Request) -> web.StreamResponse:
        """GET /status."""
        ...

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """POST /pause."""
        ...

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """POST /resume."""
        ...

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """POST /abort."""
        ...

    async def update_weights(self, request: web.Request) -> web.StreamResponse:
        """POST /update_weights."""
        ...


def routes(handlers: Handlers) -> web.Application:
    """The application of an engine server."""
    app = web.Application(middlewares=[errors], client_max_size=BODY_LIMIT_BYTES)
    app.router.add_post("/v1/completions", handlers.completions)
    app.router.add_get("/v1/models", handlers.models)
    app.router.add_get("/health", handlers.health)
    app.router.add_get("/status", handlers.status)
    app.router.add_post("/pause", handlers.pause)
    app.router.add_post("/resume", handlers.resume)
    app.router.add_post("/abort", handlers.abort)
    app.router.add_post("/update_weights", handlers.update_weights)
    return app


async def read(request: web.Request, kind: type[T]) -> T:
    """The body of a request. Raises RequestError (400)."""
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body of {request.path} cannot be read: {error}", "see docs/engine.md") from error


def reply(body: msgspec.Struct, status: int = 200) -> web.Response:
    """A JSON reply."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def event(body: msgspec.Struct) -> bytes:
    """One event of a stream."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def failure(message: str, status: int) -> api.ErrorReply:
    """The body of an error."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return api.ErrorReply(error=api.ErrorInfo(message=message, type=kind, code=status))


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors of this package, and aiohttp's own, as the JSON that clients of vLLM expect."""
    try:
        return await handler(request)
    except RequestError as error:
        return reply(failure(str(error), error.status), status=error.status)
    except ContextOverflow as error:
        return reply(failure(f"maximum context length: {error}", 400), status=400)
    except EngineUnavailable as error:
        return reply(failure(str(error), 503), status=503)
    except EngineError as error:
        return reply(failure(str(error), 500), status=500)
    except web.HTTPException as error:
        return reply(failure(error.reason, error.status), status=error.status)
