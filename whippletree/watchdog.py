"""Notices when an event loop stands still, and says where.

    loop:   beat ─► sleep ─► beat ...          (each late beat is a lag)
    thread: no beat for `limit` seconds ─► log the stack of the loop's thread, once per stall

Invariants (tests/test_watchdog.py):
- a loop that is blocked is reported while it is blocked, with the code that it is in; one that waits is not;
- `worst` is the longest lag so far, `lag` that of the last minute, in seconds; nothing is left running once the watch is over.
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
INNERMOST = 3  # lines of the stacks of other threads
WINDOW_SECONDS = 30.0  # `lag` looks back over this one and the one before


class Window:
    """The largest of the values that were added within the last one to two windows; 0.0 for none. Times of a steady clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = 0
        self._now = self._before = 0.0

    def add(self, now: float, value: float) -> None:
        """Count a value."""
        self._turn(now)
        self._now = max(self._now, value)

    def most(self, now: float) -> float:
        """The largest."""
        self._turn(now)
        return max(self._now, self._before)

    def _turn(self, now: float) -> None:
        number = int(now / self._seconds)
        if number != self._number:
            self._before = self._now if number == self._number + 1 else 0.0
            self._now = 0.0
            self._number = number


class LoopWatch:
    """What is known of a loop: the lags, in seconds, and how many `stalls` were reported."""

    def __init__(self, name: str, limit: float = STALL_SECONDS) -> None:
        """`name`: of the loop, for people. `limit`: seconds without a beat that are a stall."""
        self.stalls = 0
        self._name = name
        self._limit = limit
        self._beat = time.monotonic()
        self._window = Window(WINDOW_SECONDS)
        self._over = threading.Event()
        self._worst = 0.0

    @property
    def lag(self) -> float:
        """The longest lag of the last minute or so. A stall that goes on counts: whoever asks from another thread sees it."""
        now = time.monotonic()
        return max(self._window.most(now), now - self._beat - BEAT_SECONDS, 0.0)

    @property
    def worst(self) -> float:
        """The longest lag so far; a stall that goes on counts here too."""
        return max(self._worst, self.lag)

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
            lag = now - self._beat - BEAT_SECONDS
            self._worst = max(self._worst, lag)
            self._window.add(now, lag)
            self._beat = now

    def _look(self, loop_thread: int) -> None:
        reported = 0.0
        while not self._over.wait(min(self._limit / 4, 0.5)):
            beat = self._beat
            if time.monotonic() - beat < self._limit or beat == reported:
                continue
            reported = beat
            self.stalls += 1
            log.error("%s has stood still for %g s; it is in:\n%s", self._name, self._limit, _stacks(loop_thread))


def _stacks(loop_thread: int) -> str:
    """The loop's stack, and where the other threads are: one of them may be keeping the interpreter from it."""
    frames = sys._current_frames()
    frame = frames.pop(loop_thread, None)
    lines = traceback.format_stack(frame) if frame is not None else ["(its thread is gone)"]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, other in frames.items():
        if ident != threading.get_ident():
            lines.append(f"meanwhile thread {names.get(ident, ident)} is in:\n")
            lines += traceback.format_stack(other)[-INNERMOST:]
    return "".join(lines)
