"""One call under way, and everyone who waits for its reply.

    preparing ──► sampling ──► recording ──► done(Reply)     followers read deltas while sampling, and the reply when it is done
        └─────────────┴─ abandon ─► recording (abort) ─► done(error)

A call is a task of its own, so that a retry can join it and a disconnect can end it. Followers block on it; it blocks on what
calls.py and generation.py say, then on the store. The last follower that leaves while it samples abandons it, at once or once
nobody has come back for a while; recording is never cut short. Its head is known once its prompt is (`begun`).
Invariants (tests/gateway/test_gateway_live_calls.py):
- `done` resolves only after the store has the call;
- a follower that joins late sees every delta, from the first;
- an abandoned call with sampled ids is recorded as aborted; one without leaves no record;
- a call that lingers ends as if it had been followed, or is abandoned `linger` seconds after the last follower left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal

from whippletree.errors import RequestError, WhippletreeError
from whippletree.gateway.dialects import ReplyHead, TokenText
from whippletree.gateway.sources import Sampled
from whippletree.gateway.turns import replayed_deltas
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ParsedMessage, Struct

logger = logging.getLogger(__name__)


class Reply(Struct):
    """A recorded call and its turn. `tokens`: its sampled tokens, for a harness that asked for logprobs."""

    call: Call
    message: ParsedMessage
    tokens: tuple[TokenText, ...] = ()


class LiveCall:
    """A call under way, or a recorded one that is told again (`LiveCall.replay`)."""

    def __init__(self, digest: str, sampled: Sampled, head: ReplyHead | None = None) -> None:
        self.sampled = sampled
        self.digest = digest
        self._head = head
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.deltas: list[StreamDelta] = []
        self.done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_look)  # a failure that nobody follows any more is not a programming error
        self._phase: Literal["sampling", "recording"] = "sampling"
        self._abandoned: RequestError | None = None
        self._followers = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._ears: set[asyncio.Future[bool]] = set()  # of followers that wait for something new
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def replay(cls, head: ReplyHead, reply: Reply) -> LiveCall:
        """A call that is done already."""
        live = cls(reply.call.digest, Sampled(), head)
        live._phase = "recording"
        live.deltas = replayed_deltas(reply.message)
        live.done.set_result(reply)
        return live

    @property
    def head(self) -> ReplyHead:
        """What the reply says of itself; known once `begun` has returned."""
        assert self._head is not None
        return self._head

    def prepared(self, head: ReplyHead) -> None:
        """The prompt is known."""
        self._head = head
        _tell(self._ready, True)

    async def begun(self) -> None:
        """Follow the call until its head is known. Raises what ended it before."""
        if self._head is not None:
            return
        self.join()
        try:
            await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            self.leave()
            raise
        self._followers -= 1  # whoever asked joins it now
        if self._head is None:
            await asyncio.shield(self.done)

    def start(self, sample: Callable[[], Awaitable[None]], record: Callable[[bool], Awaitable[Reply | None]]) -> None:
        """Run the call: `sample` to its end, then `record`, which is told whether sampling was cut short."""
        self._task = asyncio.create_task(self._run(sample, record))
        self._task.add_done_callback(self._ended)

    async def _run(self, sample: Callable[[], Awaitable[None]], record: Callable[[bool], Awaitable[Reply | None]]) -> None:
        complete = False
        try:
            await sample()
            complete = True
        except asyncio.CancelledError:
            if self._abandoned is None:
                raise
        finally:
            self._phase = "recording"
            reply = await record(complete)
        if complete and reply is not None:
            self.done.set_result(reply)
            self._tell()
        else:
            raise self._abandoned or RequestError("the call was not recorded", status=500, code="internal_error")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.done.done():
            self.done.set_exception(_reason(task))
        _tell(self._ready, True)
        self._tell()

    def publish(self, deltas: list[StreamDelta]) -> None:
        """Tell the followers what is new."""
        if deltas:
            self.deltas += deltas
            self._tell()

    def _tell(self) -> None:
        for ear in self._ears:
            _tell(ear, True)

    def abandon(self, error: RequestError) -> None:
        """Stop sampling; followers get `error`. No-op once it is recording."""
        if self._phase == "sampling" and self._abandoned is None and self._task is not None:
            self._abandoned = error
            self._task.cancel()

    @property
    def abandoned(self) -> bool:
        """It was told to stop: whoever asks for the same now is not to join it."""
        return self._abandoned is not None

    def join(self) -> None:
        """One more follower, until `leave`."""
        self._followers += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def leave(self, linger: float = 0.0) -> None:
        """A follower has its reply or went away; the last one takes the call with it, unless another comes within `linger`
        seconds."""
        self._followers -= 1
        if self.followed:
            return
        if linger and not self.done.done():
            self._lingering = asyncio.get_running_loop().call_later(linger, self._left)
        else:
            self._left()

    def _left(self) -> None:
        self.abandon(RequestError("the client went away", status=499, code="client_closed_request"))

    @property
    def followed(self) -> bool:
        """Somebody waits for it."""
        return self._followers > 0

    async def follow(self, keepalive: float) -> AsyncGenerator[StreamDelta | None, None]:
        """Every delta from the first, and None after each `keepalive` seconds without one; ends when the call is done."""
        seen = 0
        while True:
            while seen < len(self.deltas):
                seen += 1
                yield self.deltas[seen - 1]
            if self.done.done():
                return
            if not await self._news(keepalive):
                yield None

    async def _news(self, limit: float) -> bool:
        """Wait until there is something new (True), at most `limit` seconds (False)."""
        loop = asyncio.get_running_loop()
        ear: asyncio.Future[bool] = loop.create_future()
        late = loop.call_later(limit, _tell, ear, False)
        self._ears.add(ear)
        try:
            return await ear
        finally:
            self._ears.discard(ear)
            late.cancel()

    async def settled(self, limit: float) -> bool:
        """Wait until the call's task has ended, at most `limit` seconds; whether it has."""
        if self._task is None:
            return True
        done, _ = await asyncio.wait({self._task}, timeout=limit)
        return bool(done)


def _tell(ear: asyncio.Future[bool], news: bool) -> None:
    if not ear.done():
        ear.set_result(news)


def _reason(task: asyncio.Task[None]) -> WhippletreeError:
    """Why a call's task ended without a reply; what is none of our errors is logged in full."""
    if task.cancelled():
        return RequestError("the gateway is stopping", "try again", status=503, code="gateway_stopping")
    error = task.exception()
    if isinstance(error, WhippletreeError):
        return error
    logger.error("a call ended with an error of the gateway itself", exc_info=error)
    return RequestError("the gateway failed on this call", "look at its log", status=500, code="internal_error")


def _look(done: asyncio.Future[Reply]) -> None:
    if not done.cancelled():
        done.exception()
