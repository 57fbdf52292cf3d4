"""The images of attempts: each is made once, on threads, while all that need it wait.

    attempt ── on(task) ──┐                                                       ┌─ podman, killed when it is stopped
    attempt ── on(task) ──┼──► one making per image ──► a thread of its own ──────┤
    ahead (of attempts) ──┘    stopped when nobody waits for it any more          └─ the cache's lock: other processes wait
                               (cancelled, over its limit, the controller's end)

An attempt waits before its boot, within a limit of its own; the event loop waits for nothing. Of the slots for makings one is
kept from what is made ahead, so that an attempt that waits never queues behind rollouts that do not run yet.

Invariants (tests/control/test_imaging.py):
- attempts that need the same image at the same time share one making; an image that an attempt runs on is not removed;
- a making that nobody waits for any more ends soon, with everything that it started;
- once `close` returns nothing is being made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from whippletree import sandboxes
from whippletree.errors import ConfigurationError, SandboxError
from whippletree.sandboxes import Build, ImageCache, Reference, RootImage, Stop
from whippletree.sandboxes.config import SandboxConfig
from whippletree.tasks import Backing, Task, load_task
from whippletree.tasks.images import BuiltImage, ImageSource, MadeImage, NamedImage

_TRIES = 3  # images can be removed between being found and being held


def backing_of(config: SandboxConfig, wanted: Literal["needed", "always"] = "needed") -> Backing:
    """What the sandboxes of these settings can be, for reading tasks. May try a backend: call it outside an event loop.

    Raises ConfigurationError where every task is to be an image and there are none.
    """
    why_not, next_step = sandboxes.no_images(config)
    if why_not and wanted == "always":
        raise ConfigurationError(f'control.images = "always", and {why_not}', next_step)
    try:
        kind: str = sandboxes.choose(config).kind
    except ConfigurationError:
        kind = config.kind
    return Backing(
        kind=kind, images="never" if why_not else wanted, why_not=why_not, next_step=next_step, sized=kind != "process"
    )


@dataclass
class _Making:
    work: asyncio.Future[RootImage]
    stop: Stop = field(default_factory=Stop)
    waiting: int = 0


class Imaging:
    """The tasks and images of one controller. Use it on one event loop, and `close` it."""

    def __init__(
        self,
        config: SandboxConfig,
        *,
        wanted: Literal["needed", "always"] = "needed",
        at_once: int = 4,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`wanted`: which tasks are made images of; `at_once`: makings; `variables`: of tasks."""
        self._config = config
        self._wanted: Literal["needed", "always"] = wanted
        self._variables = variables or {}
        self._threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="image")
        self.ahead_at_once = max(1, at_once - 1)
        self._makings: dict[ImageSource, _Making] = {}
        self._named: dict[ImageSource, RootImage] = {}  # to look a name up takes podman
        self._backing: Backing | None = None
        self._cache: ImageCache | None = None
        self._trying = asyncio.Lock()

    async def backing(self) -> Backing:
        """What its sandboxes can be; found out once. Raises ConfigurationError."""
        async with self._trying:
            if self._backing is None:
                self._backing = await asyncio.to_thread(backing_of, self._config, self._wanted)
            return self._backing

    async def read(self, path: Path) -> Task:
        """The task in that directory, for the sandboxes that there are. Raises TaskError, ConfigurationError."""
        return await asyncio.to_thread(load_task, path, self._variables, await self.backing())

    async def get(self, source: ImageSource) -> tuple[RootImage, int]:
        """An image, made if it is not there, and a descriptor that holds it. Raises SandboxError."""
        cache = await self._opened()
        for _ in range(_TRIES):
            image = self._named.pop(source, None) or await self._found(cache, source)
            if (lock := cache.hold(image)) >= 0:
                if isinstance(source, NamedImage):
                    self._named[source] = image
                return image, lock
        raise SandboxError(f"the image {image.key} is removed as soon as it is made", "raise sandbox.images_gb")

    def waiting(self, source: ImageSource) -> int:
        """How many wait for an image that is being made."""
        return self._makings[source].waiting if source in self._makings else 0

    async def _opened(self) -> ImageCache:
        if self._cache is None:
            self._cache = await asyncio.to_thread(ImageCache, self._config)
            await asyncio.to_thread(self._cache.tidy)
        return self._cache

    async def _found(self, cache: ImageCache, source: ImageSource) -> RootImage:
        match source:
            case BuiltImage():
                recipe: Build | Reference = Build(context=source.context, file=source.file)
            case NamedImage():
                recipe = Reference(name=source.name)
        return await asyncio.to_thread(cache.find, recipe) or await self._made(cache, source, recipe)

    async def _made(self, cache: ImageCache, source: ImageSource, recipe: Build | Reference) -> RootImage:
        """Wait for the one making of an image; the last one that gives up waiting stops it."""
        making = self._makings.get(source)
        if making is None:
            stop = Stop()
            get = partial(cache.get, recipe, seconds=source.seconds, stop=stop)
            making = _Making(asyncio.get_running_loop().run_in_executor(self._threads, get), stop)
            self._makings[source] = making
            making.work.add_done_callback(partial(self._forget, source))
        making.waiting += 1
        try:
            return await asyncio.shield(making.work)
        finally:
            making.waiting -= 1
            if not making.waiting and not making.work.done():
                making.stop.ask()
                self._makings.pop(source, None)  # whoever asks now begins anew

    def _forget(self, source: ImageSource, work: asyncio.Future[RootImage]) -> None:
        if not work.cancelled():
            work.exception()  # taken note of: those who wait are told
        making = self._makings.get(source)
        if making is not None and making.work is work:
            del self._makings[source]

    async def close(self) -> None:
        """Stop what is being made, and wait for its end."""
        for making in self._makings.values():
            making.stop.ask()
        await asyncio.to_thread(self._threads.shutdown)


class HeldImages:
    """The images of one attempt, which are not removed while it runs."""

    def __init__(self, imaging: Imaging) -> None:
        self._imaging = imaging
        self._locks: list[int] = []

    async def on(self, task: Task) -> Task:
        """The task on its images, which are made if they are not there. Raises SandboxError, TaskError."""
        made: dict[ImageSource, MadeImage] = {}
        for source in task.images:
            image, lock = await self._imaging.get(source)
            self._locks.append(lock)
            made[source] = MadeImage(rootfs=image.rootfs, environment=image.environment, workdir=image.workdir, user=image.user)
        return task.on(made)

    def close(self) -> None:
        """Hold them no longer."""
        while self._locks:
            os.close(self._locks.pop())
