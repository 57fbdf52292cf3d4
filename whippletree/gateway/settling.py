"""When a rollout's record stands still, so that reading it gives all of it.

    look ──busy, or changed since the last look──► wait `PAUSE` ──► look again        at most `limit` seconds

Invariants (tests/gateway/test_gateway_settling.py):
- settled means: at two looks in a row the record was the same and nothing was under way, no delivery being written;
- it takes no longer than its limit and one look, and says so when the rollout did not settle.
"""

from __future__ import annotations

import asyncio
import time
from weakref import WeakValueDictionary

from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.session import Session
from whippletree.protocols import Store

PAUSE = 0.05  # seconds between looks


class Presence:
    """The attempts that are in this process's memory. It keeps none of them there."""

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[AttemptKey, Session] = WeakValueDictionary()

    def note(self, session: Session) -> None:
        """A request of this attempt is being served."""
        self._sessions[session.key] = session

    def busy(self, key: AttemptKey) -> bool:
        """Whether a call of the attempt is under way, or a delivery is being written."""
        session = self._sessions.get(key)
        return session is not None and not session.idle


async def settle(presence: Presence, store: Store, key: AttemptKey, limit: float) -> bool:
    """Wait until the attempt's record stands still, at most `limit` seconds; whether it does."""
    deadline = time.monotonic() + limit
    before: tuple[int, int] | None = None
    while True:
        calls = await asyncio.to_thread(store.calls, key.rollout_id, key.attempt)
        now = (len(calls), sum(call.delivered for call in calls))
        if presence.busy(key):
            before = None
        elif now == before:
            return True
        else:
            before = now
        rest = deadline - time.monotonic()
        if rest <= 0.0:
            return False
        await asyncio.sleep(min(PAUSE, rest))
