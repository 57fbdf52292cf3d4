"""Watching rollouts in the store until enough of them are terminal.

    loop ──creates──► store ◄──claims, finishes── controller
      └─── polls what changed since the last look; wakes when `until` holds ───┘

Who unblocks the loop: the controller, by finishing attempts (each phase of an attempt has its own deadline). If nothing at
all changes for `stall_limit` seconds, the wait ends with an error that says what it waited for; it never waits for ever.
Invariants (tests/loop/test_watch.py):
- a change is seen once it is durable, also by a watch that starts later (after a restart);
- a stalled wait raises, naming the rollouts that did not move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from whippletree.errors import StoreError
from whippletree.protocols import Store
from whippletree.types import Purpose, Rollout

OVERLAP_SECONDS = 2.0
POLL_SECONDS = 0.05


class Watch:
    """The rollouts of one purpose, kept current by reading only what changed."""

    def __init__(self, store: Store, purpose: Purpose, *, stall_limit: float) -> None:
        self.store = store
        self.purpose = purpose
        self.stall_limit = stall_limit
        self.rollouts: dict[str, Rollout] = {}
        self._cursor = 0.0

    def refresh(self) -> bool:
        """Read changes since the last look; true if there were any."""
        changed = False
        for rollout in self.store.rollouts(purpose=self.purpose, updated_after=self._cursor - OVERLAP_SECONDS):
            known = self.rollouts.get(rollout.spec.rollout_id)
            if known is None or known != rollout:
                self.rollouts[rollout.spec.rollout_id] = rollout
                changed = True
            self._cursor = max(self._cursor, rollout.updated)
        return changed

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition`, which depends on the rollouts alone, holds; it is asked again only when one has changed.

        Raises StoreError when nothing moved for `stall_limit` seconds.
        """
        moved = time.monotonic()
        self.refresh()
        holds = condition()
        while not holds:
            time.sleep(POLL_SECONDS)
            if self.refresh():
                moved = time.monotonic()
                holds = condition()
            elif time.monotonic() - moved > self.stall_limit:
                raise StoreError(
                    f"no {self.purpose} rollout changed for {self.stall_limit:.0f} s; unfinished: {_names(self.unfinished())}",
                    "is the controller alive? see logs/controller.log in the run directory",
                )

    def unfinished(self) -> list[Rollout]:
        """Rollouts that are not terminal."""
        return [rollout for rollout in self.rollouts.values() if not rollout.terminal]


def _names(rollouts: Iterable[Rollout]) -> str:
    names = [f"{rollout.spec.rollout_id} ({rollout.state})" for rollout in rollouts]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"
