"""Watching rollouts in the store until enough of them are terminal.

    loop ──creates──► store ◄──claims, finishes── controller ──► gateway ──► engine
      ├─── polls what changed since the last look; wakes when `until` holds ───┘
      └─── where nothing changes for a while: asks whether those are there at all

Who unblocks the loop: the controller, by finishing attempts (each phase of an attempt has its own deadline). If nothing at
all changes for `stall_limit` seconds, the wait ends with an error that says what it waited for; it never waits for ever. A
peer that is not there ends it sooner, after `peer_limit` seconds, which are for its restart.
Invariants (tests/loop/test_watch.py):
- a change is seen once it is durable, also by a watch that starts later (after a restart);
- a stalled wait raises, naming the rollouts that did not move;
- a peer that is missing all the time raises and is named; one that comes back in time does not.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable

from whippletree.errors import ProcessError, StoreError
from whippletree.protocols import Store
from whippletree.types import Purpose, Rollout

log = logging.getLogger(__name__)

OVERLAP_SECONDS = 2.0
POLL_SECONDS = 0.05
PEER_SECONDS = 2.0  # between looks for peers, while nothing changes


class Absence:
    """How long a peer has been missing: a pure state machine over seconds of any steady clock."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._since = math.inf

    @property
    def noticed(self) -> bool:
        """Whether somebody was missing at the last look."""
        return self._since < math.inf

    def look(self, now: float, missing: str) -> float:
        """Seconds that somebody has been missing at `now`; 0.0 where nobody is, or since this very look."""
        self._since = min(self._since, now) if missing else math.inf
        return now - self._since if missing else 0.0


class Watch:
    """The rollouts of one purpose, kept current by reading only what changed."""

    def __init__(
        self,
        store: Store,
        purpose: Purpose,
        *,
        stall_limit: float,
        missing: Callable[[], str] = str,
        peer_limit: float = math.inf,
    ) -> None:
        """`missing`: says which of those is not there whom the rollouts need, "" for none; it may take seconds."""
        self.store = store
        self.purpose = purpose
        self.stall_limit = stall_limit
        self.rollouts: dict[str, Rollout] = {}
        self._missing = missing
        self._peer_limit = peer_limit
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

    def until(self, condition: Callable[[], bool], *, seconds: float = math.inf, beside: Callable[[], bool] = bool) -> bool:
        """Poll until `condition`, which depends on the rollouts alone, holds; it is asked again only when one has changed.
        False where it does not hold after so many seconds. `beside` is called at every poll and must not wait; true where
        something else that the rollouts may wait for has moved, so that this is no stall.

        Raises StoreError when nothing moved for `stall_limit` seconds, ProcessError when a peer was missing for `peer_limit`.
        """
        began = moved = looked = time.monotonic()
        absence = Absence(self._peer_limit)
        self.refresh()
        holds = condition()
        while not holds:
            if time.monotonic() - began > seconds:
                return False
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if self.refresh():
                moved = now
                beside()
                looked = looked if absence.noticed else now  # what fails for want of a gateway changes too
                holds = condition()
            elif beside():
                moved = now
            elif now - moved > self.stall_limit:
                raise self._stalled()
            if not holds and now - looked > min(PEER_SECONDS, self._peer_limit / 4):
                self._look_for_peers(absence)
                looked = time.monotonic()
        return True

    def _look_for_peers(self, absence: Absence) -> None:
        """Raises ProcessError when one has been missing for too long."""
        said = self._missing()
        gone = absence.look(time.monotonic(), said)
        if said and gone == 0.0:
            log.warning("waiting for %s rollouts, but %s", self.purpose, said)
        elif gone > absence.limit:
            waited = f"the loop waited {gone:.0f} s for {self.purpose} rollouts, but {said}"
            raise ProcessError(
                f"{waited}; unfinished: {_names(self.unfinished())}", "start it again, then `whippletree train --resume`"
            )

    def _stalled(self) -> StoreError:
        return StoreError(
            f"no {self.purpose} rollout changed for {self.stall_limit:.0f} s; unfinished: {_names(self.unfinished())}",
            "is the controller alive? see logs/controller.log in the run directory",
        )

    def unfinished(self) -> list[Rollout]:
        """Rollouts that are not terminal."""
        return [rollout for rollout in self.rollouts.values() if not rollout.terminal]


def _names(rollouts: Iterable[Rollout]) -> str:
    names = [f"{rollout.spec.rollout_id} ({rollout.state})" for rollout in rollouts]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"
