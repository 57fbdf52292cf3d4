"""The gateway without HTTP: requests of attempts in, recorded and deliverable replies out.

    submit ─► same request under way? join ─► recorded, not delivered? replay ─► else: Calls.begin (prepare, sample, record)

Nothing here blocks the event loop: sessions are read on a thread, writes are the store's futures.
Invariants (tests/gateway/test_gateway_service.py, test_gateway_retries.py, test_gateway_seal.py, test_gateway_limits.py):
- one request, one sampling: a retry joins, replays or goes on from what was sampled for it;
- after `seal` no call of the attempt is recorded, and its counts do not change;
- an attempt that nobody asks for is dropped from memory, and read again when somebody does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.admission import Gate
from whippletree.gateway.calls import Calls
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.dialects import ReplyHead
from whippletree.gateway.generation import Generator
from whippletree.gateway.history import stored_request
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.leaves import Leaves
from whippletree.gateway.live import LiveCall, Reply
from whippletree.gateway.preparing import Preparer
from whippletree.gateway.recording import Incoming
from whippletree.gateway.replicas import Replicas
from whippletree.gateway.routing import load_router
from whippletree.gateway.session import Session, load_session
from whippletree.gateway.sources import Sampled
from whippletree.gateway.turnstile import Turnstile
from whippletree.gateway.wire import GatewayStatus, HoldReport, SealReport
from whippletree.protocols import Engine, Renderer, Store
from whippletree.types import Call, CallPayload, ChatRequest, EngineReport, ParsedMessage
from whippletree.watchdog import LoopWatch

logger = logging.getLogger(__name__)

CANCEL_LIMIT = 10.0  # seconds for a cancelled call to be recorded


class Gateway:
    """All attempts that this process serves. `turnstile`: heavy synchronous work on this loop waits there for its turn."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        store: Store,
        engines: Sequence[Engine],
        renderer: Renderer,
        reports: Mapping[str, EngineReport],
    ) -> None:
        self.config = config
        self.replicas = Replicas(engines, reports, load_router(config.router))
        self.turnstile = Turnstile()
        self.watch = LoopWatch(f"the event loop of gateway process {os.getpid()}", config.stall_seconds)
        self._store = store
        self._gate = Gate(config.max_in_flight, config.hold_limit)
        self._generator = Generator(config, self._gate, self.replicas)
        self._preparer = Preparer(store, renderer, self.replicas)
        self._leaves = Leaves(config.cache_bytes)
        self._calls = Calls(
            config.model,
            store=store,
            renderer=renderer,
            preparer=self._preparer,
            generator=self._generator,
            turnstile=self.turnstile,
            fenced=self._fenced,
        )
        self._sessions: OrderedDict[AttemptKey, Session] = OrderedDict()
        self._loading: dict[AttemptKey, asyncio.Task[Session]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    # --- sessions --------------------------------------------------------------------------------------------------------

    async def session(self, key: AttemptKey) -> Session:
        """The attempt that a key is for. Raises RequestError (401 unknown, 403 sealed)."""
        session = self._sessions.get(key)
        if session is None:
            session = await self._load(key)
        else:
            self._sessions.move_to_end(key)
        session.check_open()
        session.used = time.monotonic()
        if session.renewal_due:
            await self._renew(session)
            session.check_open()
        return session

    async def _renew(self, session: Session) -> None:
        """Begin its lease anew; where the attempt is lost, seal it here too."""
        now = time.monotonic()
        if await asyncio.wrap_future(self._store.renew(session.key.rollout_id, session.key.attempt)) is None:
            self._fenced(session)
        session.renewed = now

    async def renew_leases(self) -> None:
        """Renew those of attempts that have called, or wait for a reply, since their lease began."""
        await asyncio.gather(*(self._renew(session) for session in list(self._sessions.values()) if session.renewal_due))

    @property
    def shortest_lease(self) -> float:
        """Seconds; infinity where no attempt in memory has a lease."""
        return min((item.lease_seconds for item in self._sessions.values() if item.lease_seconds), default=math.inf)

    async def _load(self, key: AttemptKey) -> Session:
        loading = self._loading.get(key)
        if loading is None:
            loading = asyncio.create_task(asyncio.to_thread(load_session, self._store, key, self._leaves))
            self._loading[key] = loading
            loading.add_done_callback(lambda task: self._loaded(key, task))
        return await asyncio.shield(loading)

    def _loaded(self, key: AttemptKey, task: asyncio.Task[Session]) -> None:
        del self._loading[key]
        if task.cancelled() or task.exception() is not None or task.result().sealed:
            return
        self._sessions[key] = task.result()
        if len(self._sessions) > self.config.max_sessions:
            for old in [old for old, session in self._sessions.items() if session.idle]:
                if len(self._sessions) <= self.config.max_sessions:
                    break
                self._drop(old)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self.config.session_idle_limit / 4, self._drop_idle)

    def _drop(self, key: AttemptKey) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.dropped()

    def _drop_idle(self) -> None:
        """Drop the attempts that nobody has asked for lately; the longest unused come first."""
        self._sweep = None
        oldest = time.monotonic() - self.config.session_idle_limit
        for key, session in list(self._sessions.items()):
            if session.used > oldest:
                break
            if session.idle:
                self._drop(key)
        if self._sessions:
            self._sweep = asyncio.get_running_loop().call_later(self.config.session_idle_limit / 4, self._drop_idle)

    def _fenced(self, session: Session) -> None:
        session.sealed = True
        self._drop(session.key)

    @property
    def busy(self) -> bool:
        """Whether any attempt is in memory."""
        return bool(self._sessions)

    def serves(self, key: AttemptKey) -> bool:
        """Whether an attempt is in memory here."""
        return key in self._sessions

    # --- calls -----------------------------------------------------------------------------------------------------------

    async def submit(self, session: Session, incoming: Incoming) -> LiveCall:
        """The call that answers this request, new or not; its head is known. Follow it, then `deliver` it. Raises
        RequestError."""
        while True:
            session.check_open()
            live = session.live.get(incoming.digest) or await self._answered(session, incoming)
            if not live.abandoned:
                break
            await live.settled(CANCEL_LIMIT)  # nobody waited for it any more: what it had is recorded now, and gone on with
        await live.begun()
        return live

    async def _answered(self, session: Session, incoming: Incoming) -> LiveCall:
        """A request that is not under way: replayed, gone on with, or sampled."""
        earlier = session.latest.get(incoming.digest)
        sampled, cut = Sampled(), None
        if earlier is not None and not earlier.error:
            if earlier.finish_reason == "abort":
                if not earlier.delivered:
                    sampled, cut = _resumed(earlier, await asyncio.to_thread(self._store.payload, earlier)), earlier
            elif not earlier.delivered or (incoming.retry and not _wants_more(session, earlier, incoming)):
                return await self._replay(earlier, incoming)
            session.check_open()
            live = session.live.get(incoming.digest)  # a twin may have come while the payload was read
            if live is not None:
                return live
        return self._calls.begin(session, incoming, sampled, cut)

    async def _replay(self, call: Call, incoming: Incoming) -> LiveCall:
        payload = await asyncio.to_thread(self._store.payload, call)
        message = msgspec.json.decode(payload.reply_json, type=ParsedMessage)
        self._calls.counts["replayed"] += 1
        head = self._calls.head(call.call_id, incoming, call.times.received, call.prompt_tokens)
        reply = self._calls.reply(call, message, incoming, payload.sampled_ids.tolist(), payload.logprobs.tolist())
        return LiveCall.replay(head, reply)

    async def stored_reply(
        self, session: Session, call_id: str, parse: Callable[[bytes], ChatRequest]
    ) -> tuple[ReplyHead, Call, ParsedMessage]:
        """A recorded reply of this attempt, to be told again. `parse` reads the harness's request. Raises RequestError
        (404)."""
        node = session.lineage.nodes.get(call_id)
        if node is None:
            cause = f"{call_id!r} is no recorded reply of this rollout"
            raise RequestError(cause, "ask for a reply that this key has got", status=404, code="not_found")
        call = node.call
        body = await asyncio.to_thread(stored_request, self._store, call)
        payload = await asyncio.to_thread(self._store.payload, call)
        message = msgspec.json.decode(payload.reply_json, type=ParsedMessage)
        head = ReplyHead(
            call_id=call_id,
            model=self.config.model,
            created=int(call.times.received),
            request=parse(body),
            prompt_tokens=call.prompt_tokens,
        )
        return head, call, message

    def deliver(self, session: Session, reply: Reply) -> None:
        """The last byte of the reply was written. Recorded in the background; a seal waits for it."""
        call = reply.call
        if session.latest[call.digest].delivered and session.latest[call.digest].call_id == call.call_id:
            return
        self._calls.counts["delivered"] += 1
        session.delivered(call)
        mark = asyncio.wrap_future(self._store.mark_delivered(call.call_id))
        session.marks.add(mark)
        mark.add_done_callback(lambda mark: self._marked(session, mark, call.call_id))

    def _marked(self, session: Session, mark: asyncio.Future[None], call_id: str) -> None:
        session.marks.discard(mark)
        if not mark.cancelled() and (error := mark.exception()) is not None:
            logger.error("call %s was delivered, but the store could not note it: %s", call_id, error)

    # --- control ---------------------------------------------------------------------------------------------------------

    async def hold(self, limit: float | None, abort: bool = False) -> HoldReport:
        """Stop admitting; wait until nothing is in flight, at most `limit` seconds (the configuration's, where None).

        `abort`: engine requests that are in flight then are ended; their calls wait, and go on from what is sampled after
        `release`. Turns of an engine's own chat endpoint that have begun are left to end, since they cannot be gone on with.
        """
        await self._gate.hold(self.config.drain_limit if limit is None else limit, abort=abort)
        return self._hold_report()

    def release(self) -> HoldReport:
        """Admit again."""
        self._gate.release()
        return self._hold_report()

    def _hold_report(self) -> HoldReport:
        state = self._gate.state
        return HoldReport(held=state.holding, in_flight=len(state.in_flight), waiting=len(state.waiting))

    async def seal(self, key: AttemptKey, limit: float | None) -> SealReport:
        """End an attempt: no further call, those in flight recorded (or cancelled after `limit` seconds), then sealed for good.

        Raises StoreError when the store does not know the rollout.
        """
        session = self._sessions.get(key)
        if session is not None:
            session.sealed = True
            await self._settle(session, self.config.seal_limit if limit is None else limit)
        sealed = await asyncio.wrap_future(self._store.seal(key.rollout_id, key.attempt))
        self._drop(key)
        calls = await asyncio.to_thread(self._store.calls, key.rollout_id, key.attempt)
        return SealReport(
            sealed=sealed,
            calls=len(calls),
            delivered=sum(call.delivered for call in calls),
            unanswered=session.unanswered if session is not None else "",
        )

    async def _settle(self, session: Session, limit: float) -> None:
        """Wait for an attempt's calls; cancel those that wait for their turn, or that nobody waits for, at once, and the others
        at the limit."""
        for live in list(session.live.values()):
            if not live.sampled.submitted or not live.followed:
                live.abandon(_sealed())
        calls = list(session.live.values())
        if not all(await asyncio.gather(*(live.settled(limit) for live in calls))):
            for live in calls:
                live.abandon(_sealed())
            await asyncio.gather(*(live.settled(CANCEL_LIMIT) for live in calls))
        if session.marks:
            await asyncio.wait(session.marks, timeout=CANCEL_LIMIT)

    def status(self) -> GatewayStatus:
        """Counts, and the engines as last seen."""
        state, counts = self._gate.state, self._calls.counts
        return GatewayStatus(
            held=state.holding,
            in_flight=len(state.in_flight),
            waiting=len(state.waiting),
            sessions=len(self._sessions),
            calls=counts["calls"],
            delivered=counts["delivered"],
            aborted=counts["aborted"],
            replayed=counts["replayed"],
            resumed=self._generator.resumed,
            prefix_breaks=dict(self._calls.breaks),
            engines=tuple(replica.health() for replica in self.replicas.active),
            loop_lag=round(self.watch.lag, 4),
            loop_lag_worst=round(self.watch.worst, 4),
            loop_stalls=self.watch.stalls,
        )

    async def close(self) -> None:
        """Cancel what is under way (it is recorded as aborted) and wait for the store to have it."""
        sessions = list(self._sessions.values())
        for session in sessions:
            for live in list(session.live.values()):
                live.abandon(RequestError("the gateway is stopping", "try again", status=503, code="gateway_stopping"))
        await asyncio.gather(*(self._settle(session, CANCEL_LIMIT) for session in sessions))
        if self._sweep is not None:
            self._sweep.cancel()
        self._preparer.close()
        await self.replicas.close()


def _sealed() -> RequestError:
    return RequestError("the attempt was sealed while this call ran", "stop", status=403, code="sealed")


def _wants_more(session: Session, earlier: Call, incoming: Incoming) -> bool:
    """Whether a reply that was cut at its limit is asked for again under a larger one."""
    asked = incoming.request.requested.max_tokens
    limit = session.sampling.max_tokens if asked is None else min(asked, session.sampling.max_tokens)
    return earlier.finish_reason == "length" and limit > earlier.sampling.max_tokens


def _resumed(call: Call, payload: CallPayload) -> Sampled:
    """An aborted call's turn, to be gone on with."""
    return Sampled(
        ids=payload.sampled_ids.tolist(),
        logprobs=payload.logprobs.tolist(),
        versions=list(call.versions),
        first_token=call.times.first_token,
    )
