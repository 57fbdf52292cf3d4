"""Who may talk to the gateway, and what becomes of those who may not.

Invariants (tests/gateway/test_gateway_access.py):
- every model route needs an attempt's key, every control route the control key; an attempt's key there is refused with 403 and
  leaves an event on its rollout, at most `EVIDENCE_LIMIT` of them per attempt;
- a request addressed to a foreign host name, or sent by a foreign page, is refused before anything is read;
- no key is in an error, an event or a log.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import time
from collections import OrderedDict
from functools import lru_cache
from urllib.parse import urlsplit

from aiohttp import web

from whippletree.errors import ConfigurationError, RequestError, StoreError
from whippletree.gateway import keys
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.requests import presented_keys, request_key, shown
from whippletree.protocols import Store
from whippletree.types import Event

logger = logging.getLogger(__name__)

FORBIDDEN = "forbidden_route"  # kind of the events
EVIDENCE_LIMIT = 32  # events of one attempt
REMEMBERED = 1024  # attempts whose events are in memory


class Access:
    """The checks of one gateway. `refused_keys` counts the keys that opened nothing."""

    def __init__(self, config: GatewayConfig, secret: bytes, store: Store) -> None:
        self._secret = secret
        self._store = store
        self._open_proxy = config.open_proxy
        self._names = {"localhost", config.host.lower(), *(name.lower() for name in config.allowed_hosts)}
        self._evidence: OrderedDict[keys.AttemptKey, set[str]] = OrderedDict()  # ids of the events of attempts
        self.refused_keys = 0
        self._allowed = lru_cache(maxsize=256)(self._is_allowed)

    def attempt(self, request: web.Request) -> keys.AttemptKey:
        """The attempt that the request's key is for, or that its path names where no key is asked for. Raises RequestError
        (401; 403 where the key is for another attempt than the path)."""
        named = _named(request)
        if named is not None and self._open_proxy:
            return named
        try:
            key = keys.verify(self._secret, request_key(request))
        except RequestError:
            self.refused_keys += 1
            raise
        if named is not None and named != key:
            raise RequestError("the key is for another attempt than the path", "use its own", status=403, code="forbidden")
        return key

    def may_append(self, request: web.Request) -> bool:
        """Whether the events of an attempt may be written without a key."""
        return self._open_proxy and not request_key(request)

    async def control(self, request: web.Request) -> None:
        """Raises RequestError unless the request has the control key: 403 for an attempt's key, else 401."""
        key = request_key(request)
        if any(keys.is_control_key(self._secret, presented) for presented in presented_keys(request)):
            return
        if key.startswith(keys.PREFIX):
            await self.note_forbidden(request)
            raise RequestError("an attempt's key opens no control route", "use the control key", status=403, code="forbidden")
        self.refused_keys += 1
        cause = "the control key is wrong" if key else "no control key was sent"
        raise RequestError(cause, "send Authorization: Bearer <control key>", status=401, code="invalid_api_key")

    async def note_forbidden(self, request: web.Request) -> None:
        """An attempt's key was used for something else than model calls: keep that on its rollout. Durable when it returns.

        One event per method and path: repeats add nothing.
        """
        try:
            key = keys.verify(self._secret, request_key(request))
        except RequestError:
            return  # anybody could have made it up
        path = shown(request.path).encode("utf-8", "replace").decode()
        name = hashlib.blake2b(f"{request.method} {path}".encode(), digest_size=8).hexdigest()
        event = Event(
            event_id=f"{FORBIDDEN}-{name}-{key.attempt}-{key.rollout_id}",
            rollout_id=key.rollout_id,
            attempt=key.attempt,
            time=time.time(),
            kind=FORBIDDEN,
            data={"method": request.method, "path": path},
        )
        try:
            known = await self._known_evidence(key)
            if event.event_id not in known and len(known) < EVIDENCE_LIMIT:
                known.add(event.event_id)
                await asyncio.wrap_future(self._store.append_events([event]))
        except StoreError as error:
            logger.error("rollout %r used a control route, but the store could not note it: %s", key.rollout_id, error)

    async def _known_evidence(self, key: keys.AttemptKey) -> set[str]:
        """Ids of the events that the attempt has already left, here or in an earlier process."""
        if key not in self._evidence:
            events = await asyncio.to_thread(self._store.events, key.rollout_id)
            ids = {event.event_id for event in events if event.kind == FORBIDDEN and event.attempt == key.attempt}
            self._evidence.setdefault(key, ids)
            if len(self._evidence) > REMEMBERED:
                self._evidence.popitem(last=False)
        return self._evidence.get(key, set())

    def check_host(self, request: web.Request) -> None:
        """Against pages in a browser on this machine: a name that was rebound to a loopback address, or a foreign origin.

        Raises RequestError (403).
        """
        for header, url in (("Host", "//" + request.headers.get("Host", "")), ("Origin", request.headers.get("Origin"))):
            if url is not None and not self._allowed(url):
                advice = "address the gateway by a loopback name, or add the name to gateway.allowed_hosts"
                raise RequestError(f"the {header} header names a foreign host", advice, status=403, code="foreign_host")

    def _is_allowed(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return name in self._names or is_loopback(name)


def _named(request: web.Request) -> keys.AttemptKey | None:
    """The attempt that the path names. Raises RequestError (404) for a number that is none."""
    rollout_id, attempt = request.match_info.get("rollout_id"), request.match_info.get("attempt", "")
    if rollout_id is None:
        return None
    if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
        raise RequestError("the attempt is not a number", "attempts count from 1", status=404, code="not_found")
    return keys.AttemptKey(rollout_id=rollout_id, attempt=int(attempt))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(config: GatewayConfig, host: str) -> None:
    """Raises ConfigurationError for an address that other machines reach, unless the configuration allows it."""
    if not config.allow_remote and not is_loopback(host):
        cause = f"gateway.host {host!r} can be reached from other machines"
        advice = (
            "use 127.0.0.1, or set gateway.allow_remote = true; keys are asked for in any case, but they cross the network "
            "unencrypted, and the names by which it is addressed belong into gateway.allowed_hosts"
        )
        raise ConfigurationError(cause, advice)
