"""The few verbs of the Kubernetes REST API that are needed, on aiohttp.

A generated client (kubernetes_asyncio: 48 MB) was left out: its watch has no limit for silence and leaves versions to its
caller, and seven verbs on typed structs are shorter than what it would take to work around that.

Invariants (tests/control/kubernetes/test_kubernetes_client.py, against a real API server too):
- a busy, failing or silent API server (429, 5xx, no connection) is asked again, later each time, within `retry_seconds`;
- a create that is repeated because its answer was lost finds its own object (AlreadyExists), and never makes a second one;
- delete removes the very object that is meant (uid) or nothing, and is content if it is gone;
- a list is complete and consistent over all its pages, or starts again;
- a watch ends, by an error or by itself: a 410 as HTTP status or as an object inside the stream, a cut connection, silence.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from whippletree.errors import ClusterError
from whippletree.kubernetes.access import Access
from whippletree.kubernetes.config import ClusterSettings
from whippletree.kubernetes.objects import Manifest, Named, Status

T = TypeVar("T")

GONE = 410
PAGE = 500  # objects
BUSY = frozenset({429, 500, 502, 503, 504})
FIRST_DELAY, MAX_DELAY = 0.2, 10.0  # seconds between two tries
MAX_RETRY_AFTER = 60.0  # seconds that the server may ask us to wait
MOST_OUTPUT = 64 << 20  # bytes of one container's output that are read at most
LONGEST_LINE = 4 << 20  # bytes of one watch event


class Kind(NamedTuple):
    """Where a kind of object is served."""

    group: str
    plural: str


JOBS = Kind("apis/batch/v1", "jobs")
PODS = Kind("api/v1", "pods")
SECRETS = Kind("api/v1", "secrets")
POLICIES = Kind("apis/networking.k8s.io/v1", "networkpolicies")


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One line of a watch. Example: WatchEvent(type="MODIFIED", object=Job(...))"""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: T


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    more: str = msgspec.field(default="", name="continue")


class _ListOf(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


def backoff(tries: int, retry_after: float, draw: float) -> float:
    """Seconds before the next try. `tries` counts from 1; `draw` is in [0, 1) and spreads clients that failed together."""
    own = min(FIRST_DELAY * 2.0 ** min(tries - 1, 16), MAX_DELAY) * (0.5 + draw)
    return max(own, min(retry_after, MAX_RETRY_AFTER))


class Cluster:
    """One namespace of a cluster. Use as an asynchronous context manager."""

    def __init__(self, access: Access, config: ClusterSettings) -> None:
        self.config = config
        self.access = access
        self._slots = asyncio.Semaphore(config.requests_at_once)
        self._draw = random.Random()
        connector = aiohttp.TCPConnector(ssl=access.tls or False, limit=config.requests_at_once + 4)
        self._session = aiohttp.ClientSession(connector=connector)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def close(self) -> None:
        """Cut every connection."""
        await self._session.close()

    # --- single objects ------------------------------------------------------------------------------------------------

    async def create(self, kind: Kind, manifest: Manifest) -> Named:
        """Raises ClusterError; its reason is "AlreadyExists" when there is one of that name."""
        return msgspec.json.decode(await self._ask("POST", self._path(kind), body=manifest), type=Named)

    async def read(self, kind: Kind, name: str, type: type[T]) -> T:
        """Raises ClusterError with status 404 when there is none."""
        return msgspec.json.decode(await self._ask("GET", self._path(kind, name)), type=type)

    async def replace(self, kind: Kind, name: str, manifest: Manifest) -> Named:
        """Raises ClusterError with reason "Conflict" when the manifest's resourceVersion is not the current one."""
        return msgspec.json.decode(await self._ask("PUT", self._path(kind, name), body=manifest), type=Named)

    async def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        """Set labels, whatever the object's version."""
        patch = {"metadata": {"labels": dict(labels)}}
        await self._ask("PATCH", self._path(kind, name), body=patch, content="application/merge-patch+json")

    async def annotate(self, kind: Kind, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations, whatever the object's version."""
        patch = {"metadata": {"annotations": dict(annotations)}}
        await self._ask("PATCH", self._path(kind, name), body=patch, content="application/merge-patch+json")

    async def delete(self, kind: Kind, name: str, uid: str = "", *, grace: int | None = None) -> None:
        """Delete it, and what it owns after it. Content if it is gone, or if the one of that name has another uid. `grace`:
        seconds that a pod gets to end (0: it is forgotten at once, wherever it runs)."""
        options: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", self._path(kind, name), body=options)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise

    async def log(self, pod: str, container: str, *, lines: int, kilobytes: int) -> bytes:
        """The end of a container's output, within these limits. The API's own limit in bytes would cut off the end."""
        limits = {"tailLines": str(lines), "limitBytes": str(MOST_OUTPUT)}
        path = f"{self._path(PODS, pod)}/log"
        return await self._ask("GET", path, params={"container": container, **limits}, keep=kilobytes * 1024)

    # --- many objects --------------------------------------------------------------------------------------------------

    async def list_all(self, kind: Kind, type: type[T], selector: str, *, page: int = PAGE) -> tuple[list[T], str]:
        """All of them, and the version that they are of. A list whose later pages have expired is begun again."""
        until = time.monotonic() + self.config.retry_seconds
        tries = 0
        while True:
            try:
                return await self._list_once(kind, type, selector, page)
            except ClusterError as error:
                tries += 1
                if error.status != GONE or time.monotonic() > until:
                    raise
                await asyncio.sleep(backoff(tries, error.retry_after, self._draw.random()))

    async def _list_once(self, kind: Kind, type: type[T], selector: str, page: int) -> tuple[list[T], str]:
        found: list[T] = []
        params = {"labelSelector": selector, "limit": str(page)}
        decoder: msgspec.json.Decoder[_ListOf[T]] = msgspec.json.Decoder(_ListOf[type])  # type: ignore[valid-type]
        while True:
            answer = decoder.decode(await self._ask("GET", self._path(kind), params=params))
            found += answer.items or ()
            if not answer.metadata.more:
                return found, answer.metadata.resource_version
            params["continue"] = answer.metadata.more

    async def watch(
        self, kind: Kind, type: type[T], selector: str, version: str, seconds: float
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """What happens after `version`, bookmarks included, for about `seconds`. Raises ClusterError (410: list again)."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        limits = aiohttp.ClientTimeout(
            total=seconds + self.config.stall_seconds,
            sock_connect=self.config.request_seconds,
            sock_read=self.config.stall_seconds,
        )
        decoder = msgspec.json.Decoder(type)
        try:
            async with self._open("GET", self._path(kind), params=params, limits=limits) as reply:
                if reply.status != 200:
                    raise _refusal(reply, await reply.read(), f"watch {kind.plural}")
                async for line in _lines(reply.content):
                    raw = msgspec.json.decode(line, type=_RawEvent)
                    if raw.type == "ERROR":
                        raise _from_status(msgspec.json.decode(raw.object, type=Status), f"watch {kind.plural}")
                    if raw.type in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
                        yield WatchEvent(raw.type, decoder.decode(raw.object))  # type: ignore[arg-type]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _silence(error, f"watch {kind.plural}") from error
        except msgspec.DecodeError as error:
            raise ClusterError(f"watch {kind.plural}: not a watch event: {error}", "is a proxy in between?") from error

    # --- requests ------------------------------------------------------------------------------------------------------

    def _path(self, kind: Kind, name: str = "") -> str:
        path = f"/{kind.group}/namespaces/{quote(self.config.namespace, safe='')}/{kind.plural}"
        return f"{path}/{quote(name, safe='')}" if name else path

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
        keep: int = 0,
    ) -> bytes:
        """The answer to one request, tried again while that may help. `keep`: its last bytes only; 0 means all of it."""
        until = time.monotonic() + self.config.retry_seconds
        tries = 0
        while True:
            try:
                async with self._slots:
                    return await self._ask_once(method, path, params, body, content=content, keep=keep)
            except ClusterError as error:
                tries += 1
                pause = backoff(tries, error.retry_after, self._draw.random())
                if not _may_mend(method, error, tries) or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)

    async def _ask_once(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Manifest | None, *, content: str, keep: int
    ) -> bytes:
        what = f"{method} {path}"
        limits = aiohttp.ClientTimeout(total=self.config.request_seconds)
        try:
            async with self._open(method, path, params=params, body=body, content=content, limits=limits) as reply:
                data = await (_tail(reply.content, keep) if keep else reply.read())
                if reply.status == 401:
                    await self.access.token(fresh=True)
                if reply.status >= 300:
                    raise _refusal(reply, data, what)
                return data
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _silence(error, what) from error

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        limits: aiohttp.ClientTimeout,
        body: Manifest | None = None,
        content: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request with the token of the moment."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content
        if token := await self.access.token():
            headers["Authorization"] = f"Bearer {token}"
        async with self._session.request(
            method,
            self.access.server + path,
            params=params,
            data=None if body is None else msgspec.json.encode(body),
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            server_hostname=self.access.server_name,
        ) as reply:
            yield reply


async def _tail(content: aiohttp.StreamReader, keep: int) -> bytes:
    """The last bytes of an answer of any length."""
    rest = bytearray()
    async for piece in content.iter_any():
        rest += piece
        if len(rest) > 2 * keep:
            del rest[:-keep]
    return bytes(rest[-keep:])


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length up to a limit; what is cut off at the end is dropped."""
    rest = bytearray()
    async for piece in content.iter_any():
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                if line.strip():
                    yield line
        if len(rest) > LONGEST_LINE:
            raise ClusterError(f"a watch event of more than {LONGEST_LINE >> 20} MB", "is a proxy in between?")


def _may_mend(method: str, error: ClusterError, tries: int) -> bool:
    """Whether the same request may succeed later. A create that meets "Conflict" raced with another for the quota's counter."""
    if error.status == 401:
        return tries == 1  # a token that was just renewed
    return error.status == 0 or error.status in BUSY or (method == "POST" and error.reason == "Conflict")


def _silence(error: Exception, what: str) -> ClusterError:
    said = "no answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
    return ClusterError(f"{what}: {said}", "check the API server and the way to it")


def _refusal(reply: aiohttp.ClientResponse, data: bytes, what: str) -> ClusterError:
    try:
        status = msgspec.json.decode(data, type=Status)
    except msgspec.DecodeError:
        status = Status(message=data[:200].decode(errors="replace"))
    try:
        asked = float(reply.headers.get("Retry-After", "0"))
    except ValueError:
        asked = 0.0  # a date: our own back-off will do
    return _from_status(msgspec.structs.replace(status, code=reply.status), what, asked)


def _from_status(status: Status, what: str, retry_after: float = 0.0) -> ClusterError:
    asked = status.details.retry_after_seconds if status.details else 0.0
    return ClusterError(
        f"{what}: {status.code} {status.reason}: {status.message}".strip(),
        _advice(status.code),
        status=status.code,
        reason=status.reason,
        retry_after=max(retry_after, asked),
    )


def _advice(code: int) -> str:
    match code:
        case 401:
            return "check the credentials in the kubeconfig"
        case 403:
            return "give the controller's account this right, or raise the quota; docs/kubernetes.md lists the rights"
        case 404:
            return "check the namespace in the settings"
        case 422 | 400:
            return "mend the template"
    return ""
