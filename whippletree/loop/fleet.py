"""The sampling side as the loop sees it: hold it, give it new weights, check that it serves them, let it go.

    learner ──weights directory──► engine replica(s)        gateway: hold ─► drained ─► ... ─► release
       └── logprobs of a known prompt ──compare──┘

Publishing blocks on each engine's swap (its HTTP request has a limit) and on the check; holding blocks on the calls in flight
(the gateway has a limit). A mismatch raises WeightMismatch: the run must not sample from unknown weights.
Invariants (tests/loop/test_fleet.py):
- after `publish` every replica serves the learner's version, or an error was raised;
- `held` always releases, also when the update fails.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from whippletree.engines.probe import check_weights
from whippletree.gateway.client import GatewayControl
from whippletree.protocols import Engine
from whippletree.types import EngineStatus, WeightUpdate

T = TypeVar("T")


class Fleet:
    """Engine replicas and the gateway in front of them. Blocking; its event loop runs on a thread of its own."""

    def __init__(self, gateway: GatewayControl, engines: Sequence[Engine], *, limit: float = 600.0) -> None:
        self.gateway = gateway
        self.engines = engines
        self.limit = limit
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self.limit)

    @contextmanager
    def held(self) -> Iterator[None]:
        """New calls wait at the gateway and running ones have ended while the body runs."""
        self.gateway.hold()
        try:
            yield
        finally:
            self.gateway.release()

    def publish(self, update: WeightUpdate) -> None:
        """Swap the weights of every replica. Raises EngineError."""
        self._wait(self._publish(update))

    async def _publish(self, update: WeightUpdate) -> None:
        async def swap(engine: Engine) -> None:
            await engine.pause()
            try:
                await engine.update_weights(update)
            finally:
                await engine.resume()

        await asyncio.gather(*(swap(engine) for engine in self.engines))

    def check(self, token_ids: Sequence[int], expected: Sequence[float], *, tolerance: float) -> float:
        """Largest difference over all replicas between their logprobs of a known prompt and the learner's.

        Raises WeightMismatch above `tolerance`.
        """
        return max(self._wait(check_weights(engine, token_ids, expected, tolerance)) for engine in self.engines)

    def statuses(self) -> list[EngineStatus]:
        """What each replica says of itself. Raises EngineUnavailable."""
        return [self._wait(engine.status()) for engine in self.engines]

    def close(self) -> None:
        """Close connections."""
        for engine in self.engines:
            self._wait(engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
