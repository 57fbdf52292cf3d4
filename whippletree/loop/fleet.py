"""The sampling side as the loop sees it: hold it, give it new weights, check that it serves them, let it go.

    learner ──weights directory──► engine replica(s)        gateway: hold ─► drained ─► ... ─► release
       └── logprobs of a known prompt ──compare──┘

Publishing blocks on each engine's swap (its HTTP request has a limit) and on the check; holding blocks on the calls in flight
(the gateway has a limit). A mismatch raises WeightMismatch: the run must not sample from unknown weights.
Invariants (tests/loop/test_fleet.py):
- only engines that return ids and logprobs at the run's temperature, as measured, are trained on;
- after `publish` every replica serves the learner's version, or an error was raised;
- `held` always releases, also when the update or the hold itself fails;
- an engine that does not answer is waited for, and given up after `patience`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from whippletree.engines.probe import check_weights, probe_engine
from whippletree.errors import EngineError, EngineUnavailable, RequestError
from whippletree.gateway.client import GatewayControl
from whippletree.protocols import Engine
from whippletree.types import EngineReport, EngineStatus, WeightUpdate

T = TypeVar("T")

RETRY_SECONDS = 0.2
CLOSE_SECONDS = 5.0


class Fleet:
    """Engine replicas and the gateway in front of them. Blocking; its event loop runs on a thread of its own."""

    def __init__(
        self, gateway: GatewayControl, engines: Sequence[Engine], *, limit: float = 900.0, patience: float = 300.0
    ) -> None:
        """`limit`: seconds that one verb may take. `patience`: seconds to wait for an engine that does not answer."""
        self.gateway = gateway
        self.engines = engines
        self.limit = limit
        self.patience = patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(self.limit)
        except TimeoutError as error:
            future.cancel()
            raise EngineUnavailable(
                f"no answer of the engines within {self.limit:g} s",
                "look at logs/engine.log, then `whippletree train --resume`",
            ) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """New calls wait at the gateway and running ones have ended while the body runs."""
        try:
            self.gateway.hold()
            yield
        finally:
            self.gateway.release()

    def publish(self, update: WeightUpdate) -> None:
        """Swap the weights of every replica; one that is being restarted is waited for. Raises EngineError."""
        self._wait(self._on_all(lambda engine: self._swap(engine, update)))

    async def _swap(self, engine: Engine, update: WeightUpdate) -> None:
        await engine.pause()
        try:
            await engine.update_weights(update)
        finally:
            await engine.resume()

    async def _on_all(self, action: Callable[[Engine], Coroutine[Any, Any, T]]) -> list[T]:
        return await asyncio.gather(*(self._patiently(action, engine) for engine in self.engines))

    async def _patiently(self, action: Callable[[Engine], Coroutine[Any, Any, T]], engine: Engine) -> T:
        """The action's result; repeated while the engine does not answer, up to `patience` seconds."""
        deadline = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                return await action(engine)
            except EngineUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def check(self, token_ids: Sequence[int], expected: Sequence[float], *, tolerance: float) -> float:
        """Largest difference over all replicas between their logprobs of a known prompt and the learner's.

        Raises WeightMismatch above `tolerance`.
        """
        return max(self._wait(self._on_all(lambda engine: check_weights(engine, token_ids, expected, tolerance))))

    def probe(self, temperature: float) -> list[EngineReport]:
        """Grade every replica by measurement. Raises EngineError for one that cannot be trained on at this temperature."""
        reports = self._wait(self._on_all(probe_engine))
        for report in reports:
            if report.grade != "tokens":
                raise EngineError(
                    f"an engine is graded {report.grade!r}, which can be evaluated but not trained on: {report.detail}",
                    "use an engine that returns the ids and logprobs of what it sampled",
                )
            if report.logprobs == "raw" and temperature != 1.0:
                raise EngineError(
                    f"an engine returns raw logprobs, but the run samples at temperature {temperature:g}: {report.detail}",
                    "start it with processed logprobs (vLLM: --logprobs-mode processed_logprobs), or sample at temperature 1",
                )
        return reports

    def statuses(self) -> list[EngineStatus]:
        """What each replica says of itself. Raises EngineUnavailable."""
        return self._wait(self._on_all(lambda engine: engine.status()))

    def missing(self) -> str:
        """Which of them does not answer at this moment, in words; "" where the gateway and one of its engines do."""
        try:
            self.gateway.status()
        except RequestError as error:
            return error.cause
        answers = self._wait(self._answers())
        if all(isinstance(answer, EngineUnavailable) for answer in answers):
            return f"no engine answers: {answers[0]}"
        return ""

    async def _answers(self) -> list[EngineStatus | BaseException]:
        return await asyncio.gather(*(engine.status() for engine in self.engines), return_exceptions=True)

    def close(self) -> None:
        """Close connections and end the thread."""
        for engine in self.engines:
            self._wait(engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()
