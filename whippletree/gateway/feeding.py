"""Sampled ids on their way to the followers: parsed and published in batches. Pure, but for the event loop's clock.

    engine ──ids──► Feed ──(the first at once, then at most every PAUSE)──► parser ──deltas──► publish

An engine's answer comes in many small pieces; parsing them, waking followers and writing to sockets once for several of them
costs a fraction. Where a stop string must be met exactly, ids are parsed one by one, at once.
Invariants (tests/gateway/test_gateway_feeding.py):
- what is published, joined, is the turn that `finish` returns;
- with stop strings nothing after the id that completed one is kept;
- the ids that begin a forced turn are parsed first, and published no sooner than what was sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from whippletree.gateway.turns import message_of
from whippletree.protocols import StreamDelta, StreamParser
from whippletree.types import FinishReason, ParsedMessage

Finish = Literal["stop", "length", "abort"]
PAUSE = 0.01  # seconds between two batches of a turn


class Feed:
    """One turn. `exact`: there are stop strings."""

    def __init__(self, parser: StreamParser, publish: Callable[[list[StreamDelta]], None], *, exact: bool) -> None:
        self._parser = parser
        self._publish = publish
        self._exact = exact
        self._ids: list[int] = []
        self._first: list[StreamDelta] = []
        self._told: list[StreamDelta] | None = None  # everything that was published, where an engine parses by itself
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.Handle | None = None
        self._flushed = 0.0  # when, by the loop's clock
        self.started = False

    @property
    def stopped(self) -> bool:
        """A stop string was met: sampling should end."""
        return self._exact and bool(self._parser.stopped)

    def force(self, ids: Sequence[int]) -> None:
        """The turn begins with these ids of the prompt."""
        self._first = self._parser.feed(ids)

    def take(self, ids: Sequence[int]) -> int:
        """Further ids; how many of them belong to the turn."""
        if not self._exact:
            self._ids += ids
            if self._due is None and self._ids:
                self._due = self._schedule()
            return len(ids)
        deltas: list[StreamDelta] = []
        count = 0
        for token in ids:
            if self.stopped:
                break
            deltas += self._parser.feed([token])
            count += 1
        if count:
            self._pass_on(deltas)
        return count

    def _schedule(self) -> asyncio.Handle:
        wait = self._flushed + PAUSE - self._loop.time()
        return self._loop.call_later(wait, self.flush) if wait > 0 else self._loop.call_soon(self.flush)

    def tell(self, deltas: Sequence[StreamDelta]) -> None:
        """Deltas of an engine that parses by itself."""
        self.flush()
        if self._told is None:
            self._told = []
        self._pass_on(list(deltas))

    def flush(self) -> None:
        """Parse and publish what is there."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._ids:
            self._flushed = self._loop.time()
            ids, self._ids = self._ids, []
            self._pass_on(self._parser.feed(ids))

    def _pass_on(self, deltas: list[StreamDelta]) -> None:
        first, self._first = self._first, []
        if first or deltas:
            self.started = True
            if self._told is not None:
                self._told += first + deltas
            self._publish(first + deltas)

    def finish(self, reason: Finish) -> ParsedMessage:
        """The whole turn; its rest is published."""
        self.flush()
        deltas, message = self._parser.finish(reason)
        self._pass_on(deltas)
        if self._told is None:
            return message
        finish: FinishReason = reason
        return message_of(self._told, finish)
