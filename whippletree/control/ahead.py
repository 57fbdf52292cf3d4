"""Images of rollouts that queue, made ahead of their attempts.

    look (each second): the tasks of the next rollouts ──► one preparation per task, as many as there are slots ──► Imaging
    a task that two looks in a row have not seen: nobody needs its image, or an attempt waits for it by now ──► given up

The reconcile loop waits for none of it. What fails is logged once; the attempt reports its own failure.

Invariants (tests/control/test_imaging.py):
- the image of a queuing rollout is made before it is claimed, where there is time;
- nothing is made for sandboxes without images, nor any longer for rollouts that were cancelled;
- once the body of `ahead` has ended, nothing is made ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from whippletree.control.imaging import Imaging
from whippletree.errors import ConfigurationError, SandboxError, StoreError, TaskError
from whippletree.protocols import Store
from whippletree.tasks.images import ImageSource

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks
ROLLOUTS = 128  # that one look looks at, for each purpose
REMEMBERED = 4096  # tasks that are passed over because their images were there, or could not be made
_ABSENT = 2  # looks: one alone may fall between a claim and its attempt's first question


@contextlib.asynccontextmanager
async def ahead(imaging: Imaging, store: Store) -> AsyncIterator[None]:
    """While the body runs, make the images of queuing rollouts, where sandboxes take images."""
    task = asyncio.create_task(_Ahead(imaging, store).run(), name="images ahead")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("no images were made ahead any more: %r", error)


class _Ahead:
    def __init__(self, imaging: Imaging, store: Store) -> None:
        self._imaging = imaging
        self._store = store
        self._slots = asyncio.Semaphore(imaging.ahead_at_once)
        self._done: dict[str, None] = {}  # paths of tasks
        self._failed: set[ImageSource] = set()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._absent: dict[str, int] = {}

    async def run(self) -> None:
        if (await self._imaging.backing()).images == "never":
            return
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    self._look(await asyncio.to_thread(_next_tasks, self._store), group)
                except StoreError as error:
                    log.warning("no look at what is queuing: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    def _look(self, paths: Sequence[str], group: asyncio.TaskGroup) -> None:
        for path in paths:
            if path not in self._done and path not in self._under_way:
                task = self._under_way[path] = group.create_task(self._prepare(path))
                task.add_done_callback(partial(self._forget, path))
        for path, task in self._under_way.items():
            self._absent[path] = 0 if path in paths else self._absent.get(path, 0) + 1
            if self._absent[path] >= _ABSENT:
                task.cancel()
        while len(self._done) > REMEMBERED:
            del self._done[next(iter(self._done))]

    async def _prepare(self, path: str) -> None:
        """Make the images of one task."""
        try:
            async with self._slots:
                for source in (await self._imaging.read(Path(path))).images:
                    if source not in self._failed:
                        await self._make(path, source)
            self._done[path] = None
        except (TaskError, ConfigurationError) as error:
            self._done[path] = None
            log.debug("%s: %s", path, error)  # its attempt says so

    def _forget(self, path: str, _: asyncio.Task[None]) -> None:
        del self._under_way[path]
        self._absent.pop(path, None)

    async def _make(self, path: str, source: ImageSource) -> None:
        try:
            _, lock = await self._imaging.get(source)
            os.close(lock)
        except SandboxError as error:
            self._failed.add(source)
            log.warning("%s: its image cannot be made ahead: %s", path, error)


def _next_tasks(store: Store) -> list[str]:
    """Directories of the tasks of the next rollouts, those that are claimed first in front; each once."""
    found = (store.rollouts(states=("queuing",), purpose=purpose, limit=ROLLOUTS) for purpose in ("eval", ""))
    return list(dict.fromkeys(rollout.spec.task_path for rollouts in found for rollout in rollouts))
