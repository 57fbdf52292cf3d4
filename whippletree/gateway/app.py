"""The HTTP server: routes, keys, and who may talk to it.

Invariants (tests/gateway/test_gateway_access.py):
- every model route needs an attempt's key, every control route the control key; an attempt's key there is refused with 403;
- a request addressed to a foreign host name, or sent by a foreign page, is refused before anything is read;
- every answer, errors too, is JSON in the caller's dialect.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from whippletree.errors import RequestError, WhippletreeError
from whippletree.gateway import keys
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.delivery import answer, as_request_error, error_response
from whippletree.gateway.dialects import Dialect
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.recording import Incoming
from whippletree.gateway.service import Gateway
from whippletree.gateway.wire import Health
from whippletree.types import Struct

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RETRY_HEADER = "x-stainless-retry-count"


def build_app(gateway: Gateway, secret: bytes) -> web.Application:
    """The application: model routes at the root and below /r/<key>, control routes at the root."""
    routes = Routes(gateway, secret)
    app = web.Application(client_max_size=gateway.config.max_body_bytes, middlewares=[routes.guard])
    for prefix in ("", "/r/{key}"):
        app.router.add_post(prefix + "/v1/chat/completions", routes.chat)
        app.router.add_get(prefix + "/v1/models", routes.models)
        app.router.add_get(prefix + "/v1/models/{model}", routes.model)
        app.router.add_route("HEAD", prefix + "/", routes.head)
    app.router.add_route("HEAD", "/r/{key}", routes.head)
    app.router.add_get("/healthz", routes.health)
    app.router.add_post("/control/hold", routes.hold)
    app.router.add_post("/control/release", routes.release)
    app.router.add_post("/control/attempts/{rollout_id}/{attempt}/seal", routes.seal)
    app.router.add_get("/control/status", routes.status)
    return app


class Routes:
    """The handlers."""

    def __init__(self, gateway: Gateway, secret: bytes) -> None:
        self._gateway = gateway
        self._secret = secret
        self._chat = ChatDialect()
        self._hosts = _HostCheck(gateway.config)

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse foreign hosts; turn every error into the dialect's form."""
        try:
            self._hosts.check(request)
            return await handler(request)
        except WhippletreeError as error:
            return error_response(self._chat, as_request_error(error))
        except web.HTTPRequestEntityTooLarge:
            limit = self._gateway.config.max_body_bytes
            too_large = RequestError(f"the request body is larger than {limit} bytes", "shorten the messages", status=413)
            return error_response(self._chat, too_large)
        except web.HTTPException as problem:
            path = re.sub("^/r/[^/]*", "/r/<key>", request.path)
            refused = RequestError(f"{request.method} {path}: {problem.reason}", status=problem.status, code="no_route")
            return error_response(self._chat, refused)
        except ConnectionResetError:  # the harness went away while its reply was written
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, request.match_info.route.resource)
            failed = RequestError("the gateway failed on this request", "look at its log", status=500, code="internal_error")
            return error_response(self._chat, failed)

    # --- model routes ----------------------------------------------------------------------------------------------------

    def _attempt(self, request: web.Request) -> keys.AttemptKey:
        return keys.verify(self._secret, request.match_info.get("key") or _bearer(request))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._serve(request, self._chat)

    async def _serve(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        received = time.time()
        key = self._attempt(request)
        body = await request.read()
        incoming = Incoming(
            dialect=dialect,
            body=body,
            request=dialect.parse(body),
            digest=dialect.digest(body),
            received=received,
            retry=request.headers.get(RETRY_HEADER, "0") not in ("", "0"),
        )
        session = await self._gateway.session(key)
        return await answer(request, self._gateway, session, incoming)

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        self._attempt(request)
        names = (self._gateway.config.model,)
        return _json(self._chat.models(names, self._gateway.replicas.context_length))

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}."""
        self._attempt(request)
        name = self._gateway.config.model
        if request.match_info["model"] != name:
            raise RequestError("no such model", f"the model here is {name!r}", status=404, code="model_not_found")
        return _json(self._chat.model(name, self._gateway.replicas.context_length))

    async def head(self, request: web.Request) -> web.Response:
        """HEAD /: some harnesses look whether anybody is there."""
        return web.Response()

    async def health(self, request: web.Request) -> web.Response:
        """GET /healthz: needs no key, says nothing but that the process answers."""
        return _encoded(Health())

    # --- control routes --------------------------------------------------------------------------------------------------

    def _control(self, request: web.Request) -> None:
        key = _bearer(request)
        if keys.is_control_key(self._secret, key):
            return
        if key.startswith(keys.PREFIX):
            raise RequestError("an attempt's key opens no control route", "use the control key", status=403, code="forbidden")
        cause = "the control key is wrong" if key else "no control key was sent"
        raise RequestError(cause, "send Authorization: Bearer <control key>", status=401, code="invalid_api_key")

    async def hold(self, request: web.Request) -> web.Response:
        """POST /control/hold?limit=SECONDS."""
        self._control(request)
        return _encoded(await self._gateway.hold(_limit(request)))

    async def release(self, request: web.Request) -> web.Response:
        """POST /control/release."""
        self._control(request)
        return _encoded(self._gateway.release())

    async def seal(self, request: web.Request) -> web.Response:
        """POST /control/attempts/{rollout_id}/{attempt}/seal?limit=SECONDS."""
        self._control(request)
        attempt = request.match_info["attempt"]
        if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
            raise RequestError("the attempt is not a number", "attempts count from 1", status=404, code="not_found")
        key = keys.AttemptKey(rollout_id=request.match_info["rollout_id"], attempt=int(attempt))
        return _encoded(await self._gateway.seal(key, _limit(request)))

    async def status(self, request: web.Request) -> web.Response:
        """GET /control/status."""
        self._control(request)
        return _encoded(self._gateway.status())


class _HostCheck:
    """Against pages in a browser on this machine: a name that was rebound to a loopback address, or a foreign origin."""

    def __init__(self, config: GatewayConfig) -> None:
        self._names = {"localhost", config.host.lower(), *(name.lower() for name in config.allowed_hosts)}

    def check(self, request: web.Request) -> None:
        """Raises RequestError (403)."""
        for header, url in (("Host", "//" + request.headers.get("Host", "")), ("Origin", request.headers.get("Origin"))):
            if url is not None and not self._allowed(url):
                advice = "address the gateway by a loopback name, or add the name to gateway.allowed_hosts"
                raise RequestError(f"the {header} header names a foreign host", advice, status=403, code="foreign_host")

    def _allowed(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def _bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _limit(request: web.Request) -> float | None:
    text = request.query.get("limit")
    if text is None:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0.0 <= limit < 1e9:
        raise RequestError("limit is not a number of seconds", "for example ?limit=30")
    return limit


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _encoded(answer: Struct) -> web.Response:
    return _json(msgspec.json.encode(answer))
