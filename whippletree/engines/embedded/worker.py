"""The thread that owns the torch work, and the way between it and the event loop.

    event loop ── call(function) ──► inbox ──► engine thread: run functions, then one step, then again
    event loop ◄── call_soon_threadsafe(chunks) ──┘    idle or paused: it sleeps on the inbox

Who waits for whom: the thread never waits for the loop; the loop awaits only futures and queues that the thread fills.
A step in progress delays control functions by its own length (bounded by `prefill_tokens`).

Invariants (tests/engines/test_embedded_worker.py):
- every accepted request gets exactly one end: a chunk with a finish reason, or an EngineError;
- if the thread dies, every request in flight and every later one fails at once with the reason;
- while paused nothing is computed, nothing is lost, and aborting works.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.sequence import Sequence
from whippletree.engines.embedded.weights import Weights
from whippletree.errors import EngineError, RequestError, WhippletreeError
from whippletree.types import TokenChunk

T = TypeVar("T")
Delivery = TokenChunk | EngineError
Mailbox = asyncio.Queue[Delivery]


class _Order:
    """A function for the engine thread, and the future that says it ran."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.done: Future[None] = Future()

    def run(self) -> None:
        try:
            self._function()
        except WhippletreeError as error:
            self.done.set_exception(error)
        except BaseException as error:
            self.done.set_exception(EngineError(f"the engine failed: {error!r}", "read the engine's log, start it again"))
            raise
        else:
            self.done.set_result(None)


class EngineWorker:
    """Runs an EngineCore on a thread of its own. Its methods belong to the event loop."""

    def __init__(self, core: EngineCore, *, threads: int, stream_interval: float) -> None:
        self._core = core
        self._threads = threads
        self._interval = stream_interval
        self._inbox: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._readers: dict[str, tuple[Sequence, Mailbox]] = {}  # by request id, in flight; engine thread only
        self._paused = False
        self._stopped = False
        self._failure: EngineError | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> EngineError | None:
        """Why the engine thread died; None while it lives."""
        return self._failure

    @property
    def paused(self) -> bool:
        """Whether computing is stopped."""
        return self._paused

    @property
    def running(self) -> int:
        """Requests that own a slot."""
        return self._core.running

    @property
    def waiting(self) -> int:
        """Requests without a slot yet."""
        return self._core.waiting

    @property
    def policy_version(self) -> int:
        """Version of the weights served now."""
        return self._core.weights.version

    async def submit(self, sequence: Sequence) -> Mailbox:
        """Hand a request to the engine; its chunks arrive in the returned queue.

        Raises RequestError (status 409) when the request id is in flight.
        """
        mailbox: Mailbox = asyncio.Queue()

        def add() -> None:
            if sequence.request_id in self._readers:
                raise RequestError(
                    f"request id {sequence.request_id} is already in flight", "give each request its own id", status=409
                )
            self._readers[sequence.request_id] = (sequence, mailbox)
            self._core.submit(sequence)

        await self.call(add)
        return mailbox

    def abort(self, request_id: str) -> None:
        """End a request, if it is still there. Does not wait."""

        def end() -> None:
            sequence = self._core.abort(request_id)
            if sequence is not None:
                self._deliver([sequence])

        self._inbox.put(_Order(end))

    def abandon(self, sequence: Sequence) -> None:
        """Nobody reads this request's chunks any more: end it unless it is done. Does not wait.

        Unlike `abort` it never touches a later request with the same id.
        """

        def end() -> None:
            known = self._readers.get(sequence.request_id)
            if known is not None and known[0] is sequence:
                self._core.end(sequence)
                self._deliver([sequence])

        self._inbox.put(_Order(end))

    async def pause(self) -> None:
        """Return once nothing is being computed."""

        def stop() -> None:
            self._paused = True

        await self.call(stop)

    async def resume(self) -> None:
        """Go on computing."""

        def go() -> None:
            self._paused = False

        await self.call(go)

    async def swap(self, load: Callable[[], Weights]) -> None:
        """Load weights on the engine thread and serve them from the next step on. If `load` raises, nothing changes."""

        def change() -> None:
            self._core.swap(load())

        await self.call(change)

    async def stop(self) -> None:
        """Abort everything and end the thread."""

        def end() -> None:
            unfinished = self._core.drain()
            for sequence in unfinished:
                sequence.finish_reason = "abort"
            self._deliver(unfinished)
            self._stopped = True

        if self._failure is None:
            await self.call(end)
        await asyncio.to_thread(self._thread.join)

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine thread between two steps. Raises what it raises, or why the thread died."""
        if self._failure is not None:
            raise self._failure
        result: list[T] = []
        order = _Order(lambda: result.append(function()))
        self._inbox.put(order)
        await asyncio.wrap_future(order.done)
        return result[0]

    # --- engine thread ---

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while not self._stopped:
                self._take_orders()
                if self._core.busy and not self._paused and not self._stopped:
                    self._deliver(self._core.step())
        except BaseException as error:
            self._fail(EngineError(f"the engine thread died: {error!r}", "read the engine's log, start it again"))
            raise

    def _take_orders(self) -> None:
        """Run what is in the inbox; sleep on it when there is nothing to compute."""
        wait = self._paused or not self._core.busy
        while not self._stopped:
            try:
                order = self._inbox.get(block=wait)
            except queue.Empty:
                return
            order.run()
            wait = False

    def _deliver(self, touched: list[Sequence]) -> None:
        """Hand what is due to the event loop, all of it in one wake-up."""
        now = time.monotonic()
        version = self._core.weights.version
        letters: list[tuple[Mailbox, Delivery]] = []
        for sequence in touched:
            if not sequence.done and (not sequence.stream or now - sequence.delivered_at < self._interval):
                continue
            sequence.delivered_at = now
            _, mailbox = self._readers[sequence.request_id]
            letters.extend((mailbox, chunk) for chunk in sequence.take(version))
            if sequence.error is not None:
                letters.append((mailbox, sequence.error))
            if sequence.done:
                del self._readers[sequence.request_id]
        if letters:
            self._loop.call_soon_threadsafe(_post, letters)

    def _fail(self, failure: EngineError) -> None:
        self._failure = failure
        letters: list[tuple[Mailbox, Delivery]] = [(mailbox, failure) for _, mailbox in self._readers.values()]
        self._loop.call_soon_threadsafe(_post, letters)
        self._loop.call_soon_threadsafe(self._drain_inbox)

    def _drain_inbox(self) -> None:
        """After death, on the loop: fail what came in too late. `call` refuses everything from here on."""
        while not self._inbox.empty():
            self._inbox.get().done.set_exception(self._failure)


def _post(letters: list[tuple[Mailbox, Delivery]]) -> None:
    for mailbox, letter in letters:
        mailbox.put_nowait(letter)
