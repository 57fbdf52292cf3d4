"""The gateway's control routes, for the controller, the learner and operators. Blocking methods, and `..._async` twins.

Every verb is idempotent, so a call that finds nobody (the gateway is being restarted) is tried again for `patience` seconds.
Invariants (tests/gateway/test_gateway_client.py):
- what the gateway refuses raises RequestError with its status; nobody there raises RequestError with status 503;
- any rollout id reaches the gateway unchanged.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from whippletree.errors import ConfigurationError, RequestError
from whippletree.gateway.wire import GatewayStatus, HoldReport, SealReport

T = TypeVar("T")

RETRY_PAUSE = 0.1  # seconds
SPARE = 30.0  # seconds that an answer may take beyond the limit it was asked to keep


class _Problem(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | None = None


class _ProblemBody(msgspec.Struct, frozen=True):
    error: _Problem = _Problem()


class GatewayControl:
    """`url` is the gateway's root, for example http://127.0.0.1:8000; `key` is keys.control_key of the run's secret.

    Thread-safe: every request has its own connection.
    """

    def __init__(self, url: str, key: str, *, patience: float = 15.0, wait: float = 600.0) -> None:
        """`patience`: seconds to wait for a gateway that is not there. `wait`: seconds that an answer may take."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigurationError(f"{url!r} is no gateway address", "write for example http://127.0.0.1:8000")
        self._host, self._port = parts.hostname, parts.port or 80
        self._key = key
        self._patience = patience
        self._wait = wait

    def hold(self, limit: float | None = None) -> HoldReport:
        """Stop admitting calls; waits until none is in flight, at most `limit` seconds (None: the gateway's own limit)."""
        return self._request("POST", "/control/hold" + _query(limit), HoldReport, limit)

    def release(self) -> HoldReport:
        """Admit calls again."""
        return self._request("POST", "/control/release", HoldReport)

    def seal(self, rollout_id: str, attempt: int, limit: float | None = None) -> SealReport:
        """No further call of this attempt; calls in flight are recorded, or cancelled after `limit` seconds."""
        path = f"/control/attempts/{quote(rollout_id, safe='')}/{attempt}/seal"
        return self._request("POST", path + _query(limit), SealReport, limit)

    def status(self) -> GatewayStatus:
        """What the gateway is doing."""
        return self._request("GET", "/control/status", GatewayStatus)

    async def hold_async(self, limit: float | None = None) -> HoldReport:
        """As `hold`."""
        return await asyncio.to_thread(self.hold, limit)

    async def release_async(self) -> HoldReport:
        """As `release`."""
        return await asyncio.to_thread(self.release)

    async def seal_async(self, rollout_id: str, attempt: int, limit: float | None = None) -> SealReport:
        """As `seal`."""
        return await asyncio.to_thread(self.seal, rollout_id, attempt, limit)

    async def status_async(self) -> GatewayStatus:
        """As `status`."""
        return await asyncio.to_thread(self.status)

    def _request(self, method: str, path: str, kind: type[T], limit: float | None = None) -> T:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                status, body = self._once(method, path, SPARE + (self._wait if limit is None else limit))
            except TimeoutError as error:
                raise _unreachable(f"no answer to {method} {path}") from error
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() >= deadline:
                    raise _unreachable(f"the gateway at {self._host}:{self._port} is not there: {error}") from error
                time.sleep(RETRY_PAUSE)
                continue
            if status != 200:
                raise _refusal(status, body)
            return msgspec.json.decode(body, type=kind)

    def _once(self, method: str, path: str, limit: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=limit)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {self._key}"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _query(limit: float | None) -> str:
    return "" if limit is None else f"?limit={limit:g}"


def _unreachable(cause: str) -> RequestError:
    return RequestError(cause, "look whether the gateway runs, and at its log", status=503, code="gateway_unavailable")


def _refusal(status: int, body: bytes) -> RequestError:
    try:
        problem = msgspec.json.decode(body, type=_ProblemBody).error
    except msgspec.DecodeError:
        problem = _Problem(message=body[:200].decode("utf-8", "replace"))
    return RequestError(problem.message or f"HTTP {status}", status=status, code=problem.code or "error")
