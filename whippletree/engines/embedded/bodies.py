"""Reading and writing the HTTP bodies of engine servers.

Invariant (tests/engines/test_embedded_process.py): every refusal is a JSON error with a status that says whose fault it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from whippletree.engines.embedded import api
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable, RequestError

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
