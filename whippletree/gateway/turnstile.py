"""Heavy synchronous work takes turns: a few pieces per iteration of the event loop.

    piece ─► free? go on at once ─► else wait in line ─► a few are let through per iteration, in order of arrival

Parsing a request, preparing its prompt and recording its turn each take a millisecond or so that no other coroutine can use.
When thousands of requests arrive at once, the loop would run thousands of such pieces before it looked at a socket again. A
piece waits for nothing but its turn; whoever is cancelled while it waits loses its place and holds nobody up.
Invariants (tests/gateway/test_gateway_turnstile.py):
- at most PIECES pieces begin per iteration of the loop; they begin in order of arrival;
- with nobody in line a piece begins without giving up control.
"""

from __future__ import annotations

import asyncio
from collections import deque

PIECES = 2
"""Let through per iteration: a millisecond or two of work. One would mean a look at every socket between any two pieces."""


class Turnstile:
    """One line for all heavy pieces of one event loop."""

    def __init__(self) -> None:
        self._left = PIECES
        self._renewing = False
        self._line: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait until this piece may run; it ends at the caller's next await."""
        loop = asyncio.get_running_loop()
        if not self._renewing:
            self._renewing = True
            loop.call_soon(self._renew)
        if self._left and not self._line:
            self._left -= 1
            return
        place: asyncio.Future[None] = loop.create_future()
        self._line.append(place)
        await place

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return len(self._line)

    def _renew(self) -> None:
        """A new iteration of the loop."""
        self._left = PIECES
        while self._line and self._left:
            place = self._line.popleft()
            if not place.done():  # else cancelled while it waited
                place.set_result(None)
                self._left -= 1
        self._renewing = self._left < PIECES or bool(self._line)
        if self._renewing:
            asyncio.get_running_loop().call_soon(self._renew)
