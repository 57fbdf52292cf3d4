"""Closing an attempt: at the gateway, or in the store alone when the gateway does not answer.

Invariants (tests/control/test_seal.py):
- once `seal` returns, the store accepts no call of the attempt, whether or not the gateway answered;
- it returns within its limit and a little, and raises nothing but StoreError;
- it says whether the gateway, or every engine behind it, was at fault for what a harness complains of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from whippletree.control.policy import SealReport
from whippletree.errors import RequestError
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.wire import SealReport as Sealed
from whippletree.protocols import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.25
THREADS = 16  # requests to the gateway at the same time
ABSENT = 503  # status of a RequestError that says that nobody answered
PATIENCE = 0.0  # seconds that one try waits for a gateway that is not there: its absence is to be noticed


class GatewaySealer:
    """Asks the gateway, again and again within a limit; then seals in the store, which refuses every later record."""

    def __init__(self, url: str, key: str, store: Store) -> None:
        """`url` is the gateway's root, `key` its control key."""
        self._control = GatewayControl(url, key, patience=PATIENCE)
        self._store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="seal")

    async def seal(self, rollout_id: str, attempt: int, limit: float, *, crashed: bool) -> SealReport:
        """See attempt.Sealer. The gateway counts as silent when a first try failed, even if a later one did not."""
        silence = ""
        engines = ""
        done, refused, unanswered = False, 0, ""
        try:
            async with asyncio.timeout(limit):
                while isinstance(answer := await self._try_seal(rollout_id, attempt, limit / 2), str):
                    silence = answer
                    await asyncio.sleep(RETRY_SECONDS)
                done, refused, unanswered = True, answer.refused_keys, answer.unanswered
                if crashed and not silence:
                    engines = await self._engine_trouble()
        except TimeoutError:
            silence = silence or f"no answer within {limit:g} s"
            log.warning("%s attempt %d: sealed without the gateway: %s", rollout_id, attempt, silence)
        except RequestError as refusal:
            log.warning("%s attempt %d: the gateway refused to seal it: %s", rollout_id, attempt, refusal)
        if not done:
            await asyncio.wrap_future(self._store.seal(rollout_id, attempt))
        return SealReport(gateway_trouble=silence, engine_trouble=engines, refused_keys=refused, unanswered=unanswered)

    def close(self) -> None:
        """Drop what is still being asked."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _try_seal(self, rollout_id: str, attempt: int, limit: float) -> Sealed | str:
        """The gateway's answer once it is sealed, or why nobody answered. Raises RequestError when the gateway refuses."""
        try:
            return await self._in_thread(lambda: self._control.seal(rollout_id, attempt, limit))
        except RequestError as error:
            if error.status != ABSENT:
                raise
            return error.cause

    async def _engine_trouble(self) -> str:
        """What the engines' last errors were if none of them answers; else ""."""
        try:
            engines = (await self._in_thread(self._control.status)).engines
        except RequestError as error:
            return f"the gateway's status cannot be read: {error}"
        if not engines or any(engine.answering for engine in engines):
            return ""
        return "; ".join(f"{engine.name}: {engine.last_error}" for engine in engines)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
