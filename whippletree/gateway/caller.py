"""JSON over HTTP to a gateway that may be being restarted: what every client of its control routes stands on.

Every verb is idempotent, so a call that finds nobody, or a worker that is being replaced, is tried again for `patience`
seconds.
Invariants (tests/gateway/test_gateway_client.py):
- what the gateway refuses raises RequestError with its status and code; nobody there raises RequestError with status 503;
- the key is in no error.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from whippletree.errors import ConfigurationError, RequestError
from whippletree.types import Struct

T = TypeVar("T")

RETRY_PAUSE = 0.1  # seconds
RETRIED = (502, 503)  # of a gateway, or of something before it
MSGPACK = "application/msgpack"
SPARE = 30.0  # seconds that an answer may take beyond the limit it was asked to keep


class _Problem(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | None = None


class _ProblemBody(msgspec.Struct, frozen=True):
    error: _Problem = _Problem()


class Caller:
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

    def call(self, method: str, path: str, kind: type[T], *, limit: float | None = None, body: Struct | None = None) -> T:
        """One request, tried again while nobody is there. `limit`: seconds that the gateway was asked to keep."""
        data = None if body is None else msgspec.json.encode(body)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                status, form, answer = self._once(method, path, data, SPARE + (self._wait if limit is None else limit))
            except TimeoutError as error:
                raise _unreachable(f"no answer to {method} {path}") from error
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() >= deadline:
                    raise _unreachable(f"the gateway at {self._host}:{self._port} is not there: {error}") from error
                time.sleep(RETRY_PAUSE)
                continue
            if status in RETRIED and time.monotonic() < deadline:
                time.sleep(RETRY_PAUSE)
                continue
            if status != 200:
                raise _refusal(status, answer)
            decode = msgspec.msgpack.decode if form == MSGPACK else msgspec.json.decode
            return decode(answer, type=kind)

    def _once(self, method: str, path: str, data: bytes | None, limit: float) -> tuple[int, str, bytes]:
        """Status, content type and body of one answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=limit)
        try:
            connection.request(method, path, data, headers={"Authorization": f"Bearer {self._key}"})
            response = connection.getresponse()
            return response.status, response.headers.get_content_type(), response.read()
        finally:
            connection.close()


def query_of(pairs: Iterable[tuple[str, float | str | None]]) -> str:
    """The query of a path: what is None or "" is left out."""
    given = [(name, f"{value:g}" if isinstance(value, float) else value) for name, value in pairs if value not in (None, "")]
    return f"?{urlencode(given)}" if given else ""


def _unreachable(cause: str) -> RequestError:
    return RequestError(cause, "look whether the gateway runs, and at its log", status=503, code="gateway_unavailable")


def _refusal(status: int, body: bytes) -> RequestError:
    try:
        problem = msgspec.json.decode(body, type=_ProblemBody).error
    except msgspec.DecodeError:
        problem = _Problem(message=body[:200].decode("utf-8", "replace"))
    return RequestError(problem.message or f"HTTP {status}", status=status, code=problem.code or "error")
