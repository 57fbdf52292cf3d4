"""Snapshots on the controller's side: reading one, restoring it, and forking it.

Invariants (tests/sandboxes/test_sandbox_snapshots.py): a snapshot is restored by the backend and on the root file system that
it was made with, or refused; forks are independent of each other and of what they were made from; when one fails, none is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from whippletree.errors import SandboxError, words_of
from whippletree.protocols import Sandbox, SandboxSpec, Snapshot
from whippletree.sandboxes.box import RECORD
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.support import build_any, choose

_AT_ONCE = 4


def load_snapshot(directory: Path) -> Snapshot:
    """The snapshot in `directory`. Raises SandboxError where there is none, or one that was not finished."""
    try:
        return msgspec.structs.replace(
            msgspec.json.decode((directory / RECORD).read_bytes(), type=Snapshot), directory=str(directory)
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise SandboxError(
            f"{directory}: no snapshot: {words_of(error)}", "give the directory of a finished snapshot"
        ) from error


def restore(
    config: SandboxConfig, snapshot: Snapshot, spec: SandboxSpec, *, gateway: tuple[str, int], processes: bool = True
) -> Sandbox:
    """A sandbox that begins as the snapshot ended, not started yet. Its id, environment, network and limits are the spec's.

    Without `processes` only the files come back: where there is no CRIU, or another kernel.

    Raises SandboxError where the spec differs from what the snapshot was made of, and for `files`: those are the snapshot's.
    """
    backend = choose(config)
    if backend.kind != snapshot.backend:
        raise SandboxError(
            f"a snapshot of {snapshot.backend} cannot be restored by {backend.kind}", f'set sandbox.kind = "{snapshot.backend}"'
        )
    for name in ("workdir", "rootfs", "read_only"):
        wanted, made = getattr(spec, name), getattr(snapshot, name)
        if wanted != made:
            raise SandboxError(f"{name} is {made!r} in the snapshot and {wanted!r} in the spec", "give the spec what it had")
    if spec.files:
        raise SandboxError("a restored sandbox has the snapshot's files", "leave `files` empty and use `put`")
    if not Path(snapshot.directory, RECORD).exists():
        raise SandboxError(f"{snapshot.directory}: the snapshot is gone", "make another")
    if snapshot.rootfs and not Path(snapshot.rootfs).is_dir():
        raise SandboxError(f"{snapshot.rootfs}: the root file system of the snapshot is gone", "make its image again")
    return build_any(config, spec, backend, gateway=gateway, snapshot=snapshot, processes=processes)


async def fork(
    config: SandboxConfig, snapshot: Snapshot, specs: Sequence[SandboxSpec], *, gateway: tuple[str, int]
) -> list[Sandbox]:
    """Start one sandbox for each spec from the same snapshot, a few at a time. Raises the first error, with none left."""
    boxes = [restore(config, snapshot, spec, gateway=gateway) for spec in specs]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def start(box: Sandbox) -> None:
        async with slots:
            await box.start()

    try:
        async with asyncio.TaskGroup() as group:
            for box in boxes:
                group.create_task(start(box))
    except* SandboxError as errors:
        await asyncio.gather(*(box.stop() for box in boxes))
        raise errors.exceptions[0] from None
    except* asyncio.CancelledError:
        await asyncio.gather(*(box.stop() for box in boxes))
        raise
    return boxes
