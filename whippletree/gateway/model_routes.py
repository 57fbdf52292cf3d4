"""What a harness may ask: turns, token counts, models, stored replies. Every route needs an attempt's key.

Invariants (tests/gateway/test_gateway_model_routes.py):
- generate and count paths are those that the dialects declare, at the root and below /r/<key>;
- bad input of any kind is an error below 500 in the caller's dialect, and the session goes on;
- a WebSocket upgrade is answered 426 at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
from aiohttp import web

from whippletree.errors import RequestError
from whippletree.gateway.access import Access
from whippletree.gateway.delivery import answer
from whippletree.gateway.dialects import Dialect, ReplyHead, Target
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.dialects.responses_ids import call_of_response
from whippletree.gateway.digest import fields_of, request_digest
from whippletree.gateway.recording import Incoming
from whippletree.gateway.requests import dialect_of, read_body
from whippletree.gateway.roles import Hints, hints_from
from whippletree.gateway.service import Gateway
from whippletree.gateway.settling import Presence
from whippletree.protocols import Renderer
from whippletree.types import Call, ChatRequest, ParsedMessage

PROXY = "/proxy/rollout/{rollout_id}/attempt/{attempt}/mode/{mode}/{provider:openai|anthropic|gemini}"
PREFIXES = ("", "/r/{key}", PROXY)
RETRY_HEADER = "x-stainless-retry-count"  # of the OpenAI and Anthropic SDKs; other clients repeat the body and say nothing
ALIVE_PATHS = ("/", "/v1", "/v1/", "/v1beta", "/v1beta/", "/api/hello")  # where harnesses look with HEAD
LONG_BODY = 4_000  # bytes; what is longer is rendered on a thread
HUGE_BODY = 500_000  # bytes; what is longer is read on a thread too: the loop would stand still meanwhile


class ModelRoutes:
    """The handlers."""

    def __init__(self, gateway: Gateway, renderer: Renderer, access: Access, presence: Presence) -> None:
        self._gateway = gateway
        self._renderer = renderer
        self._access = access
        self._presence = presence
        self._huge = asyncio.Semaphore(1)  # several threads at once would leave the loop little of the interpreter

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register every route."""
        for prefix in PREFIXES:
            for dialect in DIALECTS.values():
                for path in dialect.generate_paths:
                    router.add_post(prefix + path, partial(self.generate, dialect=dialect))
                for path in dialect.count_paths:
                    router.add_post(prefix + path, partial(self.count, dialect=dialect))
            for path in ("/v1/models", "/models", "/v1beta/models"):
                router.add_get(prefix + path, self.models)
                router.add_get(prefix + path + "/{model:.+}", self.model)
            for path in ("/v1/responses", "/responses"):
                router.add_get(prefix + path, self.upgrade)
                router.add_get(prefix + path + "/{response_id}", self.stored)
                router.add_delete(prefix + path + "/{response_id}", self.kept)
                router.add_post(prefix + path + "/{response_id}/cancel", self.ended)
            for path in ALIVE_PATHS:
                router.add_route("HEAD", prefix + path, self.head)
        router.add_route("HEAD", "/r/{key}", self.head)

    async def generate(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        """POST on a dialect's path: sample one turn."""
        received = time.time()
        key = self._access.attempt(request)
        target = dialect.target(request.match_info, request.query)
        body = await read_body(request)
        retry = request.headers.get(RETRY_HEADER, "0") not in ("", "0")
        read = partial(_incoming, dialect, body, target, received=received, retry=retry, hints=hints_from(request.headers))
        if len(body) > HUGE_BODY:
            async with self._huge:
                incoming = await asyncio.to_thread(read)
        else:
            await self._gateway.turnstile.turn()
            incoming = read()
        session = await self._gateway.session(key)
        self._presence.note(session)
        return await answer(request, self._gateway, session, incoming)

    async def count(self, request: web.Request, dialect: Dialect) -> web.Response:
        """POST on a dialect's count path: the prompt tokens of a request, as it would be rendered now."""
        key = self._access.attempt(request)
        target = dialect.target(request.match_info, request.query)
        body = await read_body(request)
        await self._gateway.session(key)  # an attempt that has ended counts nothing either

        def counted() -> int:
            with readable():
                asked = dialect.parse_count(body, target)
                check_portable(asked)
                return len(self._renderer.render(asked.messages, asked.tools))

        count = await asyncio.to_thread(counted) if len(body) > LONG_BODY else counted()
        return json_response(dialect.counted(count))

    async def models(self, request: web.Request) -> web.Response:
        """GET the model list, in the form of the dialect that asks."""
        self._access.attempt(request)
        dialect = dialect_of(request.path, request.headers)
        return json_response(dialect.models((self._gateway.config.model,), self._gateway.replicas.context_length))

    async def model(self, request: web.Request) -> web.Response:
        """GET one model."""
        self._access.attempt(request)
        name = self._gateway.config.model
        if request.match_info["model"] != name:
            raise RequestError("no such model", f"the model here is {name!r}", status=404, code="model_not_found")
        dialect = dialect_of(request.path, request.headers)
        return json_response(dialect.model(name, self._gateway.replicas.context_length))

    async def stored(self, request: web.Request) -> web.Response:
        """GET /v1/responses/{id}: a recorded reply of this attempt."""
        head, call, message = await self._stored(request)
        return json_response(DIALECTS["responses"].reply(head, call, message))

    async def kept(self, request: web.Request) -> web.Response:
        """DELETE /v1/responses/{id}: refused."""
        await self._stored(request)
        cause = "a response is part of its rollout's record and stays"
        raise RequestError(cause, "there is nothing to do: it ends with the rollout", status=400, code="not_deletable")

    async def ended(self, request: web.Request) -> web.Response:
        """POST /v1/responses/{id}/cancel: refused, as for every response that was not made in the background."""
        await self._stored(request)
        cause = "the response has ended: only one that is made in the background can be cancelled"
        raise RequestError(cause, "close the connection of a request that is under way", status=400, code="not_cancellable")

    async def _stored(self, request: web.Request) -> tuple[ReplyHead, Call, ParsedMessage]:
        """The recorded reply that the path names. Raises RequestError (404)."""
        session = await self._gateway.session(self._access.attempt(request))
        name = request.match_info["response_id"]
        try:
            return await self._gateway.stored_reply(session, call_of_response(name), _parse_response)
        except RequestError as error:
            if error.status != 404:
                raise
            cause = f"there is no response {name[:100]!r} in this attempt"
            raise RequestError(cause, "use an id that this attempt was given", status=404, code="not_found") from error

    async def upgrade(self, request: web.Request) -> web.Response:
        """GET /v1/responses: Codex asks for a WebSocket first, and posts at once when it gets 426."""
        refused = RequestError(
            "WebSocket is not served", "POST the request to this path", status=426, code="websocket_not_supported"
        )
        response = json_response(dialect_of(request.path, request.headers).error(refused), status=426)
        response.force_close()  # what the client may have sent after its upgrade is not a request
        return response

    async def head(self, request: web.Request) -> web.Response:
        """HEAD: some harnesses look whether anybody is there."""
        return web.Response()


def _incoming(dialect: Dialect, body: bytes, target: Target, *, received: float, retry: bool, hints: Hints) -> Incoming:
    """A request, read. Raises RequestError (400)."""
    with readable():
        fields = fields_of(body)
        incoming = Incoming(
            dialect=dialect,
            body=body,
            fields=fields,
            request=dialect.parse(body, target),
            digest=request_digest(dialect, fields, target),
            received=received,
            target=target,
            retry=retry,
            hints=hints,
        )
        check_portable(incoming.request)
        return incoming


def json_response(body: bytes, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(status=status, body=body, content_type="application/json")


def _parse_response(body: bytes) -> ChatRequest:
    return DIALECTS["responses"].parse(body, Target())


def check_portable(request: ChatRequest) -> None:
    """Raises OverflowError or RecursionError for JSON in a request that could be read but cannot be written again, as it must
    be for templates, fingerprints and records."""
    msgspec.msgpack.encode((request.tools, request.schema, request.extra))


@contextmanager
def readable() -> Iterator[None]:
    """Whatever a body cannot be read for is a RequestError (400): nesting, text that is no UTF-8, numbers beyond 64 bits."""
    try:
        yield
    except RecursionError:
        raise RequestError("the request body is nested too deeply", "send plainer JSON") from None
    except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
        raise RequestError(f"the request body cannot be read: {error}", "send JSON in UTF-8") from error
