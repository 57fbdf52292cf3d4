"""Writing a reply to the harness, whole or streamed.

    live call ──deltas──► stream: what is ready goes out in one write ──► recorded? ──► terminal events ──► delivered
        └──── reply ────► whole: silent, then white space, then the body ──────────────────────────────────► delivered

What blocks: the live call (see live.py) and the harness's socket. Headers of a stream are sent with its first event, and those
of a whole reply only after `whole_keepalive` seconds, so that a request that fails early gets a plain error.
Invariants (tests/gateway/test_gateway_streaming.py, test_gateway_delivery.py, test_gateway_disconnects.py):
- the terminal events are written only after the store has the call; a call counts as delivered only after the last byte;
- while nothing is sampled a stream carries keep-alives, at most `keepalive` seconds apart, and a whole reply white space;
- a whole reply that fails after it began is never completed: its connection is dropped, so that the client tries again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import msgspec
from aiohttp import web

from whippletree.errors import (
    AlignmentError,
    ConflictError,
    ContextOverflow,
    EngineError,
    EngineUnavailable,
    RequestError,
    WhippletreeError,
)
from whippletree.gateway.dialects import Dialect, ReplyHead
from whippletree.gateway.live import LiveCall
from whippletree.gateway.recording import Incoming
from whippletree.gateway.service import Gateway
from whippletree.gateway.session import Session

logger = logging.getLogger(__name__)

RETRY_AFTER = "2"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SSE = "text/event-stream"
WHITE_SPACE = b" "  # JSON allows it between tokens, before the first one too


def as_request_error(error: WhippletreeError) -> RequestError:
    """What the harness is told of an error from further in."""
    if isinstance(error, RequestError):
        return error
    status, code = 500, "internal_error"
    if isinstance(error, ContextOverflow):
        status, code = 400, "context_length_exceeded"
    elif isinstance(error, EngineUnavailable):
        status, code = 503, "engine_unavailable"
    elif isinstance(error, EngineError | AlignmentError):
        status, code = 502, "engine_error"
    elif isinstance(error, ConflictError):
        status, code = 409, "conflict"
    return RequestError(error.cause, error.next_step, status=status, code=code)


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
            live.leave(0.0 if session.sealed else gateway.config.linger_limit)
    finally:
        session.users -= 1


async def _whole(
    http: web.Request, gateway: Gateway, session: Session, incoming: Incoming, live: LiveCall
) -> web.StreamResponse:
    begun: web.StreamResponse | None = None
    while not live.done.done():
        await asyncio.wait({live.done}, timeout=gateway.config.whole_keepalive)
        if not live.done.done():
            begun = begun or web.StreamResponse(headers={"Content-Type": "application/json"})
            await _write(begun, http, WHITE_SPACE)
    try:
        reply = live.done.result()
    except WhippletreeError as error:
        if begun is None:
            raise
        logger.warning("call %s failed after its reply had begun; the connection is dropped: %s", live.head.call_id, error)
        if http.transport is not None:
            http.transport.abort()
        return begun
    body = incoming.dialect.reply(_head(live, incoming), reply.call, reply.message, reply.tokens)
    if begun is not None:
        response = begun
        await response.write(body)
    else:
        response = web.Response(body=body, content_type="application/json")
        await response.prepare(http)
    await response.write_eof()
    gateway.deliver(session, reply)
    return response


def _head(live: LiveCall, incoming: Incoming) -> ReplyHead:
    """What the reply says of itself; transport and limits are those of this request, which may have joined another's call."""
    return msgspec.structs.replace(live.head, request=incoming.request, target=incoming.target)


async def _stream(
    http: web.Request, gateway: Gateway, session: Session, incoming: Incoming, live: LiveCall
) -> web.StreamResponse:
    writer = incoming.dialect.stream(_head(live, incoming))
    pulse = incoming.dialect.keepalive if writer.content_type.startswith(SSE) else WHITE_SPACE
    response = web.StreamResponse(headers={"Content-Type": writer.content_type, **STREAM_HEADERS})
    ready, seen = bytearray(), 0
    async with aclosing(live.follow(gateway.config.keepalive)) as deltas:
        async for delta in deltas:
            ready += pulse if delta is None else writer.delta(delta)
            seen += delta is not None
            if delta is None or seen == len(live.deltas):  # nothing more is ready
                await _write(response, http, bytes(ready))
                ready.clear()
    try:
        reply = await asyncio.shield(live.done)
    except WhippletreeError as error:
        if not response.prepared:
            raise
        await response.write(writer.error(as_request_error(error)))
        await response.write_eof()
        return response
    await _write(response, http, writer.end(reply.call, reply.message, reply.tokens))
    await response.write_eof()
    gateway.deliver(session, reply)
    return response


async def _write(response: web.StreamResponse, http: web.Request, data: bytes) -> None:
    if not response.prepared:
        await response.prepare(http)
    if data:
        await response.write(data)
