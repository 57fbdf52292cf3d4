"""Keeping the machine of an attempt: a snapshot of its sandbox beside the attempt's other files, for people to open afterwards.

    seal ─► take ─► collect, verify ─► cleanup ─► settle: recorded and kept within the run's limit, or removed
    any earlier phase: failed ─► take ──┘

What is taken after the seal is what the agent left, before the verifier touches it. Which attempts end with a cause is known
only later, so with "failed" every attempt is taken and those that got a reward are dropped.

Invariants (tests/control/test_keeping.py):
- a snapshot that cannot be made is an event with the reason, and the attempt ends as it would have without;
- an attempt has at most one, of the moment at which it was sealed or failed; one that was cancelled has none;
- the snapshots of a run hold no more than its limit: the oldest go first; what was not finished does not stay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from pathlib import Path

from whippletree.control.config import ControlConfig
from whippletree.control.defending import note
from whippletree.control.phases import SNAPSHOT, Ended, Phases
from whippletree.errors import SandboxError, WhippletreeError
from whippletree.protocols import Sandbox, Snapshot, Store
from whippletree.sandboxes import load_snapshot
from whippletree.sandboxes.keeper import remove_folder
from whippletree.types import Attempt, Cause, CauseClass, Event, KeptSnapshot

log = logging.getLogger(__name__)

SKIPPED = "snapshot_skipped"  # kind of the events
NAME = "snapshot"  # of the directory, in the attempt's
GIB = 2**30


class Shelf:
    """The snapshots of one run, oldest first; one per controller. `most` in bytes."""

    def __init__(self, run: Path, most: float) -> None:
        self.run = run
        self._most = most
        self._sizes: OrderedDict[Path, int] | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Find what earlier controllers kept, and remove what they did not finish. Before this controller takes its first."""
        async with self._turn:
            if self._sizes is None:
                self._sizes = await asyncio.to_thread(self._find)

    def _find(self) -> OrderedDict[Path, int]:
        found: list[Snapshot] = []
        for directory in (self.run / "attempts").glob(f"*/*/{NAME}"):
            try:
                found.append(load_snapshot(directory))
            except SandboxError:
                remove_folder(directory)
        found.sort(key=lambda snapshot: snapshot.time)
        return OrderedDict((Path(snapshot.directory), _size(snapshot)) for snapshot in found)

    async def add(self, snapshot: Snapshot) -> bool:
        """Count a new one, and remove the oldest beyond the limit. False where it was too large itself."""
        async with self._turn:
            sizes = self._sizes = self._sizes if self._sizes is not None else OrderedDict()
            place = Path(snapshot.directory)
            sizes[place] = _size(snapshot)
            while sizes and sum(sizes.values()) > self._most:
                oldest, _ = sizes.popitem(last=False)
                log.info("%s: removed, for control.snapshots_gb", oldest)
                await asyncio.to_thread(remove_folder, oldest)
            return place in sizes


def _size(snapshot: Snapshot) -> int:
    return snapshot.files_bytes + snapshot.processes_bytes


class Keeping:
    """The snapshot of one attempt, in `directory`, which the attempt makes. `key` is kept out of what is recorded."""

    def __init__(
        self, config: ControlConfig, shelf: Shelf, store: Store, attempt: Attempt, directory: Path, *, key: str, hidden: str
    ) -> None:
        self.kept: KeptSnapshot | None = None  # once settled
        self._config = config
        self._shelf = shelf
        self._store = store
        self._attempt = attempt
        self._directory = directory / NAME
        self._key = key
        self._hidden = hidden
        self._after = ""  # the phase at whose end it was tried
        self._made: Snapshot | None = None

    async def take(self, box: Sandbox | None, phases: Phases) -> None:
        """Make the snapshot, unless none is wanted or one was tried before. Raises nothing but CancelledError."""
        if self._config.snapshots == "off" or self._after or box is None or box.handle is None:
            return
        self._after = phases.name
        try:
            async with phases.enter(SNAPSHOT, self._config.deadlines.snapshot):
                await self._shelf.open()
                await asyncio.to_thread(self._directory.parent.mkdir, parents=True, exist_ok=True)
                self._made = await box.snapshot(self._directory)
        except Ended as end:
            self._skip(f"{end.cause.message}: {end.cause.next_step}")
        except (WhippletreeError, OSError) as error:
            self._skip(str(error))

    async def settle(self, cause: Cause | None) -> None:
        """Once the sandbox is gone: keep the snapshot where it is wanted, else remove it. `cause`: why the attempt failed."""
        if self._config.snapshots == "off" or not self._after:
            return
        made, cancelled = self._made, cause is not None and cause.cause is CauseClass.CANCELLED
        if made is None or cancelled or (cause is None and self._config.snapshots == "failed"):
            await asyncio.to_thread(remove_folder, self._directory)
            return
        if not await self._shelf.add(made):
            self._skip(f"its {_size(made)} bytes are more than control.snapshots_gb allows for all")
            return
        self.kept = KeptSnapshot(
            directory=str(self._directory.relative_to(self._shelf.run)),
            holds=made.holds,
            bytes=_size(made),
            after=self._after,
            reason=made.reason.replace(self._key, self._hidden),
        )

    def _skip(self, reason: str) -> None:
        attempt = self._attempt
        log.warning("%s attempt %d: no snapshot: %s", attempt.rollout_id, attempt.attempt, reason)
        event = Event(
            event_id=f"{attempt.rollout_id}-{attempt.attempt}-{SKIPPED}",
            rollout_id=attempt.rollout_id,
            attempt=attempt.attempt,
            time=time.time(),
            kind=SKIPPED,
            data={"after": self._after, "reason": reason.replace(self._key, self._hidden)},
        )
        note(self._store, [event])
