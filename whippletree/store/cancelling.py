"""Who was cancelled since the last look: for every process that has to end something then.

Invariant (tests/control/test_controller.py, tests/gateway/test_rollout_api.py): a rollout that is cancelled after the first
look is in a later one.
"""

from __future__ import annotations

import time

from whippletree.protocols import Store
from whippletree.store.transitions import cancelled
from whippletree.types import Rollout

CLOCK_SLACK = 60.0  # seconds by which clocks of the store's writers may differ


class Cancellations:
    """A place in the order of changes; it begins a little before now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked = time.time() - CLOCK_SLACK  # the newest change that was looked at

    def look(self) -> list[Rollout]:
        """Rollouts that were cancelled since the last look. Raises StoreError."""
        failed = self._store.rollouts(states=("failed",), updated_after=self._looked)
        self._looked = max((rollout.updated for rollout in failed), default=self._looked)
        return [rollout for rollout in failed if cancelled(rollout)]
