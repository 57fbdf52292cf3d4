"""The engines behind the gateway: chosen, registered once, left alone for a while after they failed.

Invariants (tests/gateway/test_gateway_replicas.py):
- an engine is asked for tokens only after it was registered (its context length is known);
- after a failure another replica is used; the failed one is tried again, later and later, at most a second apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from whippletree.errors import EngineUnavailable
from whippletree.gateway.routing import ReplicaView, choose, retry_delay
from whippletree.protocols import Engine
from whippletree.types import EngineReport, EngineStatus, Struct


class ReplicaHealth(Struct):
    """One replica as the gateway sees it.

    Example: ReplicaHealth(name="embedded", answering=True, in_flight=3, policy_version=7, grade="tokens")
    """

    name: str
    answering: bool
    in_flight: int = 0
    policy_version: int = -1
    grade: str = ""
    last_error: str = ""


class Replica:
    """One engine and what is known of it."""

    def __init__(self, place: int, engine: Engine, report: EngineReport | None) -> None:
        self.place = place
        self.engine = engine
        self.in_flight = 0
        self.failures = 0
        self.down_until = 0.0
        self.last_error = ""
        self.policy_version = -1
        self.status: EngineStatus | None = None
        self.grade = report.grade if report is not None else ""
        self.logprob_source = report.logprobs if report is not None else "processed"  # what protocols.Engine promises
        self._registering = asyncio.Lock()

    async def register(self) -> None:
        """Learn its context length, once. Raises EngineUnavailable."""
        async with self._registering:
            if self.status is None:
                status = await self.engine.status()
                self.policy_version = status.policy_version
                self.status = status

    def failed(self, error: EngineUnavailable) -> None:
        """Leave it alone for a while."""
        self.failures += 1
        self.down_until = time.monotonic() + retry_delay(self.failures)
        self.last_error = str(error)

    def answered(self, policy_version: int) -> None:
        """It sent tokens."""
        self.failures = 0
        self.policy_version = policy_version

    @property
    def context_length(self) -> int:
        """In tokens; 0 before it was registered."""
        return self.status.context_length if self.status is not None else 0

    def health(self) -> ReplicaHealth:
        """For the status route."""
        return ReplicaHealth(
            name=self.engine.name,
            answering=self.failures == 0,
            in_flight=self.in_flight,
            policy_version=self.policy_version,
            grade=self.grade,
            last_error=self.last_error if self.failures else "",
        )


class Replicas:
    """All engines of the gateway."""

    def __init__(self, engines: Sequence[Engine], reports: Mapping[str, EngineReport]) -> None:
        """`reports`: what a probe found, by the engine's name; an engine without one counts as what the protocol promises."""
        self.all = [Replica(place, engine, reports.get(engine.name)) for place, engine in enumerate(engines)]

    @property
    def context_length(self) -> int:
        """Of the first registered replica, in tokens; 0 before there is one."""
        return next((replica.context_length for replica in self.all if replica.status is not None), 0)

    @asynccontextmanager
    async def chosen(self, preferred: int) -> AsyncIterator[Replica]:
        """A registered replica, busy with one more call while the body runs. Raises EngineUnavailable when all are down.

        EngineUnavailable out of the body counts as the replica's failure.
        """
        views = [ReplicaView(place=item.place, in_flight=item.in_flight, down_until=item.down_until) for item in self.all]
        place = choose(views, preferred, time.monotonic())
        if place is None:
            errors = "; ".join(f"{item.engine.name}: {item.last_error}" for item in self.all)
            raise EngineUnavailable(f"no engine answers: {errors}", "start the engine; calls wait and go on by themselves")
        replica = self.all[place]
        replica.in_flight += 1
        try:
            await replica.register()
            yield replica
        except EngineUnavailable as error:
            replica.failed(error)
            raise
        finally:
            replica.in_flight -= 1
