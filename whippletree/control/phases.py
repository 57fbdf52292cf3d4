"""The phases of one attempt: each timed, named in the record, and held to a limit of its own and to what is left of the total.

Invariants (tests/control/test_attempt.py):
- a phase that overruns ends with a cause that names it and the setting to raise; the record says so too;
- the total covers every phase from its begin on but the snapshot and clean-up, which always have their own time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from whippletree.control.policy import MESSAGE_LIMIT
from whippletree.types import Cause, CauseClass, Phase

CLEANUP = "cleanup"
SNAPSHOT = "snapshot"
UNCOUNTED = (SNAPSHOT, CLEANUP)  # phases that take nothing of the total


class Ended(Exception):
    """A phase found the cause that ends the attempt."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Phases:
    """What an attempt has gone through. `name` is the phase that it is in ("" before the first)."""

    def __init__(self, total: float, report: Callable[[Phase], None]) -> None:
        """`total`: seconds from `begin` on; `report` is called with each phase that has ended."""
        self.name = ""
        self.done: list[Phase] = []
        self._total = total
        self._report = report
        self._end = float("inf")

    def begin(self) -> None:
        """From here on the total counts."""
        self._end = time.monotonic() + self._total

    @property
    def left(self) -> float:
        """Seconds that are left of the total."""
        return self._end - time.monotonic()

    @asynccontextmanager
    async def enter(self, name: str, limit: float, step: str = "", *, begins: bool = False) -> AsyncIterator[None]:
        """Time a phase and hold it to `limit` seconds. Raises Ended when it overruns. `begins`: the first part of a phase that
        is entered again; on the record only where it is the part that failed."""
        self.name = name
        whole = name not in UNCOUNTED and self.left < limit
        held = max(self.left, 0.0) if whole else limit
        started, begin = time.time(), time.monotonic()
        scope = asyncio.timeout(held)
        done = False
        try:
            async with scope:
                yield
            done = True
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise Ended(self._overrun(limit, whole=whole)) from error
        finally:
            seconds = time.monotonic() - begin
            if name in UNCOUNTED:
                self._end += seconds
            phase = Phase(name=name, started=started, seconds=seconds, limit=held, step=step, overran=scope.expired())
            if not (begins and done):
                self.done.append(phase)
                self._report(phase)

    def _overrun(self, limit: float, *, whole: bool) -> Cause:
        if whole:
            what = f"the attempt was not done within {self._total:g} s; this phase was under way"
            return self.cause(CauseClass.DEADLINE, what, "raise deadlines.total")
        kind = CauseClass.VERIFIER if self.name == "verify" else CauseClass.DEADLINE
        return self.cause(kind, f"not done within {limit:g} s", f"raise deadlines.{self.name}")

    def cause(self, kind: CauseClass, message: str, next_step: str = "") -> Cause:
        """A cause of the phase that is under way."""
        return Cause(cause=kind, phase=self.name, message=message[-MESSAGE_LIMIT:], next_step=next_step)
