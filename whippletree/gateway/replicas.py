"""The engines behind the gateway: registered and graded once, chosen by a router, kept away from while they fail.

    start, or first use ──► status ──► probe (where no report was given) ──► calls
    failure ──► breaker ──open──► health checks in the background ──► half-open: one trial call ──► closed
    add ──► registered and graded in the background         retire ──► no new call ──► its last call ends ──► closed for good

Who waits for whom: a call waits for the registration of its replica, if that is under way. Nothing waits for health checks.

Invariants (tests/gateway/test_gateway_replicas.py):
- an engine is asked for tokens only after it was registered (its context length is known);
- an engine that has nothing but a chat endpoint is graded before its first call, any other once `start` was called;
- after a failure another replica is used; the failed one is tried again, later and later, and kept away from while it is open;
- no health check or probe holds up a call to another replica, or the status;
- a retired replica gets no new call, and is closed when its last one has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Protocol, runtime_checkable

from whippletree.errors import EngineError, EngineUnavailable
from whippletree.gateway.breaker import Breaker, admits, answered, failed, healthy, left, retry_delay, taken, trial_delay
from whippletree.gateway.routing import StickyRouter
from whippletree.protocols import Engine, ReplicaView, RoutedCall, Router
from whippletree.types import EngineReport, EngineStatus, Struct

CHECK_SECONDS = 10.0  # of one health check
PROBE_SECONDS = 120.0


class ReplicaHealth(Struct):
    """One replica as the gateway sees it. `circuit`: "open" while calls are kept away. `report`: what a probe found.

    Example: ReplicaHealth(name="embedded", answering=True, in_flight=3, policy_version=7, grade="tokens", circuit="closed")
    """

    name: str
    answering: bool
    in_flight: int = 0
    policy_version: int = -1
    grade: str = ""
    last_error: str = ""
    circuit: str = "closed"
    context_length: int = 0
    report: EngineReport | None = None


@runtime_checkable
class ChatOnly(Protocol):
    """An engine that has nothing but a chat endpoint: what it can be used for must be known before its first call."""

    chat_only: bool


class Replica:
    """One engine and what is known of it."""

    def __init__(self, place: int, engine: Engine, report: EngineReport | None) -> None:
        self.place = place
        self.engine = engine
        self.in_flight = 0
        self.last_error = ""
        self.policy_version = -1
        self.status: EngineStatus | None = None
        self.report = report
        self.breaker = Breaker()
        self.retired = False
        self.to_probe = isinstance(engine, ChatOnly) and engine.chat_only
        self._registering = asyncio.Lock()

    async def register(self) -> None:
        """Learn its context length and, where that is wanted, its grade; once. Raises EngineUnavailable."""
        if self.registered:
            return
        async with self._registering:
            if self.status is None:
                status = await self.engine.status()
                self.policy_version = status.policy_version
                self.status = status
            if self.to_probe and self.report is None:
                self.report = await self._probe()

    async def _probe(self) -> EngineReport:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self.engine.probe()
        except TimeoutError as error:
            raise EngineUnavailable(
                f"{self.engine.name}: the probe took more than {PROBE_SECONDS:g} s", "look at its log"
            ) from error
        except EngineUnavailable:
            raise
        except EngineError as error:
            return EngineReport(grade="none", logprobs="none", detail=str(error))

    @property
    def registered(self) -> bool:
        """Whether all is known that has to be."""
        return self.status is not None and (self.report is not None or not self.to_probe)

    def failed(self, error: EngineUnavailable) -> None:
        """Leave it alone for a while."""
        self.breaker = failed(self.breaker, time.monotonic(), error.retry_after)
        self.last_error = str(error)

    def answered(self, policy_version: int) -> None:
        """It sent something."""
        self.policy_version = policy_version
        if not self.breaker.fine:
            self.breaker = answered(self.breaker)

    @property
    def grade(self) -> str:
        """What the probe found; "" before that."""
        return self.report.grade if self.report is not None else ""

    @property
    def logprob_source(self) -> Literal["processed", "raw", "none"]:
        """What the probe found; before that, what protocols.Engine promises."""
        return self.report.logprobs if self.report is not None else "processed"

    @property
    def context_length(self) -> int:
        """In tokens; 0 before it was registered."""
        return self.status.context_length if self.status is not None else 0

    @property
    def down_until(self) -> float:
        """No call before this moment, seconds of a monotonic clock."""
        return self.breaker.until

    def view(self) -> ReplicaView:
        """For the router."""
        return ReplicaView(
            place=self.place,
            name=self.engine.name,
            in_flight=self.in_flight,
            down_until=self.breaker.until,
            open=not self.breaker.open and not self.retired,
        )

    def health(self) -> ReplicaHealth:
        """For the status route."""
        return ReplicaHealth(
            name=self.engine.name,
            answering=self.breaker.fine,
            in_flight=self.in_flight,
            policy_version=self.policy_version,
            grade=self.grade,
            last_error="" if self.breaker.fine else self.last_error,
            circuit=self.breaker.state,
            context_length=self.context_length,
            report=self.report,
        )


def _check_delay(replica: Replica, tries: int) -> float:
    """Seconds before the next look at a replica in the background; the first comes at once where nothing is known yet."""
    if replica.breaker.state == "open":
        return max(trial_delay(replica.breaker.openings), replica.down_until - time.monotonic())
    return retry_delay(tries) if tries else 0.0


class Replicas:
    """All engines of the gateway."""

    def __init__(self, engines: Sequence[Engine], reports: Mapping[str, EngineReport], router: Router | None = None) -> None:
        """`reports`: what a probe found, by the engine's name. `router` None: sticky by rollout, least busy first."""
        self.all = [Replica(place, engine, reports.get(engine.name)) for place, engine in enumerate(engines)]
        self._router = router or StickyRouter()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._given = len(self.all)  # those are closed by whoever made them

    @property
    def active(self) -> list[Replica]:
        """Those that are not retired."""
        return [replica for replica in self.all if not replica.retired]

    def add(self, engine: Engine) -> Replica:
        """One more, registered and graded in the background."""
        replica = Replica(len(self.all), engine, None)
        replica.to_probe = True
        self.all.append(replica)
        self._watch(replica)
        return replica

    def retire(self, replica: Replica) -> None:
        """No new call goes to it."""
        replica.retired = True
        task = self._tasks.pop(replica.place, None)
        if task is not None:
            task.cancel()
        self._close_if_done(replica)

    def _close_if_done(self, replica: Replica) -> None:
        if replica.retired and replica.in_flight == 0:
            closing = asyncio.create_task(replica.engine.close(), name=f"close-{replica.engine.name}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def start(self) -> None:
        """Register and grade every replica in the background; those that do not answer are tried until they do."""
        for replica in self.all:
            replica.to_probe = True
            if not replica.registered:
                self._watch(replica)

    async def close(self) -> None:
        """End what goes on in the background."""
        for task in self._tasks.values():
            task.cancel()
        added = [replica.engine.close() for replica in self.all[self._given :] if not replica.retired]
        await asyncio.gather(*self._tasks.values(), *self._closing, *added, return_exceptions=True)
        self._tasks.clear()

    @property
    def context_length(self) -> int:
        """Of the first registered replica, in tokens; 0 before there is one."""
        return next((replica.context_length for replica in self.active if replica.status is not None), 0)

    @asynccontextmanager
    async def chosen(self, call: RoutedCall) -> AsyncIterator[Replica]:
        """A registered replica, busy with one more call while the body runs. Raises EngineUnavailable when none may be asked.

        EngineUnavailable out of the body counts as the replica's failure.
        """
        now = time.monotonic()
        place = self._router.choose([item.view() for item in self.active], call, now)
        if place is None or not (0 <= place < len(self.all) and self._takes(self.all[place], now)):
            errors = "; ".join(f"{item.engine.name}: {item.last_error}" for item in self.active) or "none is registered"
            raise EngineUnavailable(f"no engine answers: {errors}", "start the engine; calls wait and go on by themselves")
        replica = self.all[place]
        trial = replica.breaker.state == "half_open"
        replica.breaker = taken(replica.breaker)
        replica.in_flight += 1
        try:
            await replica.register()
            yield replica
        except EngineUnavailable as error:
            replica.failed(error)
            if replica.breaker.state == "open" and not replica.retired:
                self._watch(replica)
            raise
        else:
            if replica.breaker.fine:
                replica.breaker = answered(replica.breaker)
        finally:
            replica.in_flight -= 1
            if trial:
                replica.breaker = left(replica.breaker)
            self._close_if_done(replica)

    @staticmethod
    def _takes(replica: Replica, now: float) -> bool:
        return not replica.retired and admits(replica.breaker, now)

    def _watch(self, replica: Replica) -> None:
        """Look after a replica in the background until calls may go to it."""
        task = self._tasks.get(replica.place)
        if task is None or task.done():
            self._tasks[replica.place] = asyncio.create_task(self._heal(replica), name=f"replica-{replica.engine.name}")

    async def _heal(self, replica: Replica) -> None:
        """Register it, then check an open breaker until it answers."""
        tries = 0
        while not replica.registered or replica.breaker.state == "open":
            await asyncio.sleep(_check_delay(replica, tries))
            tries += 1
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await replica.engine.status()
                await replica.register()
            except (EngineError, TimeoutError) as error:
                replica.last_error = str(error) or f"{replica.engine.name}: no answer to a health check"
                continue
            replica.breaker = healthy(replica.breaker)
