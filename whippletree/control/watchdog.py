"""Notices when an event loop stands still, and says where.

    loop:   beat ─► sleep ─► beat ...          (each late beat is a lag)
    thread: no beat for `limit` seconds ─► log the stack of the loop's thread, once per stall

Invariants (tests/control/test_watchdog.py):
- a loop that is blocked is reported while it is blocked, with the code that it is in; one that waits is not;
- `worst` is the longest lag so far, in seconds; nothing is left running once the watch has ended.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.1
STALL_SECONDS = 5.0


class LoopWatch:
    """What is known of a loop: `worst` lag in seconds, and how many `stalls` were reported."""

    def __init__(self, name: str, limit: float = STALL_SECONDS) -> None:
        """`name`: of the loop, for people. `limit`: seconds without a beat that are a stall."""
        self.worst = 0.0
        self.stalls = 0
        self._name = name
        self._limit = limit
        self._beat = time.monotonic()
        self._over = threading.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[LoopWatch]:
        """Watch the running loop while the body runs."""
        self._beat = time.monotonic()
        beating = asyncio.create_task(self._keep_beating(), name=f"watchdog of {self._name}")
        thread = threading.Thread(target=self._look, args=(threading.get_ident(),), name="watchdog", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            beating.cancel()
            await asyncio.wait({beating})
            thread.join()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            now = time.monotonic()
            self.worst = max(self.worst, now - self._beat - BEAT_SECONDS)
            self._beat = now

    def _look(self, loop_thread: int) -> None:
        reported = 0.0
        while not self._over.wait(min(self._limit / 4, 0.5)):
            beat = self._beat
            if time.monotonic() - beat < self._limit or beat == reported:
                continue
            reported = beat
            self.stalls += 1
            frame = sys._current_frames().get(loop_thread)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else "(its thread is gone)"
            log.error("%s has stood still for %g s; it is in:\n%s", self._name, self._limit, stack)
