"""Writing a reply to the harness, whole or streamed.

Headers of a stream are sent with its first event, so that a request that fails before anything was sampled gets a plain error.
Invariants (tests/gateway/test_gateway_streaming.py, test_gateway_disconnects.py):
- the terminal events are written only after the store has the call; a call counts as delivered only after the last byte;
- while nothing is sampled a stream carries comments, at most `keepalive` seconds apart.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from aiohttp import web

from whippletree.errors import (
    AlignmentError,
    ContextOverflow,
    EngineError,
    EngineUnavailable,
    RequestError,
    WhippletreeError,
)
from whippletree.gateway.dialects import Dialect
from whippletree.gateway.live import LiveCall
from whippletree.gateway.recording import Incoming
from whippletree.gateway.service import Gateway
from whippletree.gateway.session import Session

KEEPALIVE = b": keep-alive\n\n"
RETRY_AFTER = "2"
STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def as_request_error(error: WhippletreeError) -> RequestError:
    """What the harness is told of an error from further in."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ContextOverflow):
        return RequestError(error.cause, error.next_step, status=400, code="context_length_exceeded")
    if isinstance(error, EngineUnavailable):
        return RequestError(error.cause, error.next_step, status=503, code="engine_unavailable")
    if isinstance(error, EngineError | AlignmentError):
        return RequestError(error.cause, error.next_step, status=502, code="engine_error")
    return RequestError(error.cause, error.next_step, status=500, code="internal_error")


def error_response(dialect: Dialect, error: RequestError) -> web.Response:
    """An error in the dialect's form."""
    headers = {"Retry-After": RETRY_AFTER} if error.status in (429, 503) else None
    return web.Response(status=error.status, body=dialect.error(error), content_type="application/json", headers=headers)


async def answer(http: web.Request, gateway: Gateway, session: Session, incoming: Incoming) -> web.StreamResponse:
    """Serve one request to its last byte. Raises WhippletreeError where nothing was written yet."""
    session.users += 1
    try:
        live = await gateway.submit(session, incoming)
        live.join()
        try:
            serve = _stream if incoming.request.stream else _whole
            return await serve(http, gateway, session, incoming, live)
        finally:
            live.leave()
    finally:
        session.users -= 1


async def _whole(
    http: web.Request, gateway: Gateway, session: Session, incoming: Incoming, live: LiveCall
) -> web.StreamResponse:
    reply = await asyncio.shield(live.done)
    body = incoming.dialect.reply(live.head, reply.call, reply.message)
    response = web.Response(body=body, content_type="application/json")
    await response.prepare(http)
    await response.write_eof()
    gateway.deliver(session, reply)
    return response


async def _stream(
    http: web.Request, gateway: Gateway, session: Session, incoming: Incoming, live: LiveCall
) -> web.StreamResponse:
    response = web.StreamResponse(headers=STREAM_HEADERS)
    writer = incoming.dialect.stream(live.head, include_usage=incoming.request.include_usage)
    async with aclosing(live.follow(gateway.config.keepalive)) as deltas:
        async for delta in deltas:
            if not response.prepared:
                await response.prepare(http)
            await response.write(KEEPALIVE if delta is None else writer.delta(delta))
    try:
        reply = await asyncio.shield(live.done)
    except WhippletreeError as error:
        if not response.prepared:
            raise
        await response.write(writer.error(as_request_error(error)))
        await response.write_eof()
        return response
    if not response.prepared:
        await response.prepare(http)
    await response.write(writer.end(reply.call, reply.message))
    await response.write_eof()
    gateway.deliver(session, reply)
    return response
