"""A mirror of our objects in the cluster: a list, then a watch from the list's version, then a list again.

    list ──► watch from its version ──► ends by itself, is cut, stalls ──► watch on from the last version
      ▲         │ 410 (status, or an object in the stream), or `resync_seconds` are over
      └─────────┘
    The loop waits for the API server, with back-off. Nobody waits for it but those who await `synced`.

Invariants (tests/control/kubernetes/test_kubernetes_mirror.py, tests/cases/test_cases_kubernetes.py):
- an expired version leads to a list whose state and version are taken over, and to no loop on 410;
- what a watch missed is there after the next list; an older event never undoes a newer one;
- `listed` is the number of the newest list that is in the mirror, `begun` of the newest that was begun.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from whippletree.errors import ClusterError
from whippletree.kubernetes.client import GONE, Cluster, Kind, WatchEvent, backoff
from whippletree.kubernetes.objects import Meta

log = logging.getLogger(__name__)

REMEMBERED = 1024  # deletions: as many as may happen between a create and its answer
REFUSED = (401, 403, 404)  # statuses that waiting does not mend


class HasMeta(Protocol):
    """Anything with metadata."""

    @property
    def metadata(self) -> Meta:
        """Name, uid, version."""
        ...


T = TypeVar("T", bound=HasMeta)


class Mirror(Generic[T]):
    """All objects of one kind with one label selector. `changed` is called after every change, and after every list;
    all is listed again after `resync` seconds."""

    def __init__(
        self, cluster: Cluster, kind: Kind, type: type[T], selector: str, changed: Callable[[], None], *, resync: float = 60.0
    ) -> None:
        self.objects: dict[str, T] = {}  # by uid
        self.gone: deque[str] = deque(maxlen=REMEMBERED)  # uids whose deletion was watched, newest last
        self.changes = 0  # counts up with each change of `objects`
        self.begun = 0
        self.listed = 0
        self.synced = asyncio.Event()
        self._cluster, self._kind, self._type, self._selector = cluster, kind, type, selector
        self._changed = changed
        self._resync = resync
        self._version = ""
        self._draw = random.Random()

    async def run(self) -> None:
        """For ever; end it by cancelling. Raises ClusterError when the very first list is refused for good."""
        troubles = 0
        while True:
            try:
                await self._list()
                troubles = await self._watch_until(time.monotonic() + self._resync, troubles)
            except ClusterError as error:
                if not self.listed and error.status in REFUSED:
                    raise
                troubles += 1
                pause = backoff(troubles, error.retry_after, self._draw.random())
                level = logging.WARNING if troubles > 1 or error.status != GONE else logging.INFO
                log.log(level, "%s are listed again in %.1f s: %s", self._kind.plural, pause, error)
                await asyncio.sleep(pause)

    async def _list(self) -> None:
        self.begun += 1
        number = self.begun
        found, self._version = await self._cluster.list_all(self._kind, self._type, self._selector)
        self.objects = {entry.metadata.uid: entry for entry in found}
        self.listed = number
        self.synced.set()
        self._tell()

    async def _watch_until(self, end: float, troubles: int) -> int:
        """Watch on and on; returns how many troubles came in a row. Raises ClusterError when a list is needed."""
        while (left := end - time.monotonic()) > 0:
            begun = time.monotonic()
            try:
                events = self._cluster.watch(self._kind, self._type, self._selector, self._version, left)
                async with aclosing(events):
                    async for event in events:
                        troubles = 0
                        self._apply(event)
                        if time.monotonic() > end:
                            return troubles
            except ClusterError as error:
                if error.status != 0:
                    raise
                troubles += 1
                log.info("the watch of %s is opened again: %s", self._kind.plural, error)
                await asyncio.sleep(backoff(troubles, 0.0, self._draw.random()))
            else:
                if time.monotonic() - begun < 1.0:  # a server that ends every watch at once is not asked in a busy loop
                    await asyncio.sleep(backoff(1, 0.0, self._draw.random()))
        return troubles

    def _apply(self, event: WatchEvent[T]) -> None:
        meta = event.object.metadata
        if event.type != "BOOKMARK":
            known = self.objects.get(meta.uid)
            if known is not None and _older(meta.resource_version, known.metadata.resource_version):
                return
            if event.type == "DELETED":
                self.objects.pop(meta.uid, None)
                self.gone.append(meta.uid)
            else:
                self.objects[meta.uid] = event.object
        self._version = meta.resource_version or self._version
        if event.type != "BOOKMARK":
            self._tell()

    def _tell(self) -> None:
        self.changes += 1
        self._changed()


def _older(version: str, than: str) -> bool:
    """Versions are decimal numbers on every server that we know; where they are not, the order of arrival counts."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
