"""Who may ask the engines now: a pure state machine, and the gate that calls wait at.

    arrive ──► waiting ──admit──► in flight ──leave──► (gone)
                  └──────forget (the harness went away)──┘

What keeps a call waiting is a hold (until `release`, or the hold's own limit) or `max_in_flight` (until another call leaves).
Nothing else blocks here: the gate never waits for the store, an engine or a socket.
Invariants (tests/gateway/test_gateway_admission.py):
- while held nobody is admitted; a release admits in order of arrival; a forgotten call is never admitted;
- a hold that aborts leaves nothing in flight that can be interrupted: those calls are back in line;
- in flight ≤ max_in_flight; a call leaves at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

ABORT_LIMIT = 10.0  # seconds for interrupted calls to leave
ABORT_PAUSE = 0.05  # seconds until those that could not be interrupted yet are asked again


class Admission:
    """Open or holding, the calls in flight, and those that wait. Tickets are plain numbers, given by `arrive`."""

    def __init__(self, max_in_flight: int = 0) -> None:
        self.max_in_flight = max_in_flight
        self.holding = False
        self.in_flight: set[int] = set()
        self.waiting: dict[int, None] = {}
        self._next = 0

    def can_admit(self) -> bool:
        """Whether the next one in line may go on."""
        return not self.holding and (not self.max_in_flight or len(self.in_flight) < self.max_in_flight)

    def arrive(self) -> int:
        """Take a ticket; it waits until `admit` returns it."""
        self._next += 1
        self.waiting[self._next] = None
        return self._next

    def admit(self) -> list[int]:
        """Move those who may go on from waiting to in flight, in order of arrival; returns their tickets."""
        admitted = []
        while self.waiting and self.can_admit():
            ticket = next(iter(self.waiting))
            del self.waiting[ticket]
            self.in_flight.add(ticket)
            admitted.append(ticket)
        return admitted

    def leave(self, ticket: int) -> None:
        """The call has ended, or its harness went away while it waited."""
        self.waiting.pop(ticket, None)
        self.in_flight.discard(ticket)

    @property
    def drained(self) -> bool:
        """Held, and nothing is in flight any more."""
        return self.holding and not self.in_flight


class Stay:
    """A call's time in flight. `interrupt` ends its engine request so that it comes back to the gate; None while it cannot
    be."""

    def __init__(self) -> None:
        self.interrupt: Callable[[], None] | None = None


class Gate:
    """Admission for coroutines of one event loop."""

    def __init__(self, max_in_flight: int, hold_limit: float) -> None:
        self.state = Admission(max_in_flight)
        self.holds_expired = 0
        self._hold_limit = hold_limit
        self._turns: dict[int, asyncio.Event] = {}
        self._stays: dict[int, Stay] = {}
        self._drained = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[Stay]:
        """Wait for one's turn; in flight while the body runs."""
        ticket = self.state.arrive()
        turn = self._turns[ticket] = asyncio.Event()
        try:
            self._admit()
            await turn.wait()
            stay = self._stays[ticket] = Stay()
            yield stay
        finally:
            self._turns.pop(ticket, None)
            self._stays.pop(ticket, None)
            self.state.leave(ticket)
            self._admit()

    async def hold(self, limit: float, *, abort: bool = False) -> int:
        """Stop admitting and wait until nothing is in flight, at most `limit` seconds. Returns how many still are.

        `abort`: those that are in flight then are interrupted and wait at the gate. A repeated hold starts its own limit anew.
        It ends by `release`, also while this waits.
        """
        self.state.holding = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(self._hold_limit, self._expire)
        self._note_drained()
        if not await self._wait_drained(limit) and abort:
            await self._interrupt()
        return len(self.state.in_flight)

    async def _wait_drained(self, limit: float) -> bool:
        """Wait at most `limit` seconds; whether nothing is in flight, or the hold has ended."""
        try:
            async with asyncio.timeout(limit):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    async def _interrupt(self) -> None:
        for _ in range(int(ABORT_LIMIT / ABORT_PAUSE)):
            for stay in list(self._stays.values()):
                if stay.interrupt is not None:
                    stay.interrupt()
            if await self._wait_drained(ABORT_PAUSE):
                return

    def release(self) -> None:
        """Admit again; no-op when open."""
        self.state.holding = False
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._drained.set()  # whoever still waits for a drain need not
        self._admit()

    def _expire(self) -> None:
        self.holds_expired += 1
        self.release()

    def _admit(self) -> None:
        for ticket in self.state.admit():
            self._turns[ticket].set()
        self._note_drained()

    def _note_drained(self) -> None:
        if self.state.drained:
            self._drained.set()
        elif self.state.holding:
            self._drained.clear()
