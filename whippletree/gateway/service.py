"""The gateway without HTTP: requests of attempts in, recorded and deliverable replies out.

    submit ─► same request under way? join ─► recorded, not delivered? replay ─► else: prompt ids ─► LiveCall (sample, record)

Nothing here blocks the event loop: sessions are read on a thread, writes are the store's futures.
Invariants (tests/gateway/test_gateway_service.py, test_gateway_retries.py, test_gateway_seal.py):
- one request, one sampling: a retry joins, replays or goes on from what was sampled for it;
- a reply exists only for a call that the store has;
- after `seal` no call of the attempt is recorded, and its counts do not change.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal

from whippletree.errors import FencedError, RequestError, WhippletreeError
from whippletree.gateway.admission import Gate
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.dialects import Dialect, ReplyHead
from whippletree.gateway.generation import Generator, Sampled, Turn
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.live import LiveCall, Reply
from whippletree.gateway.prompts import Prompt, prepare
from whippletree.gateway.recording import Draft, Incoming
from whippletree.gateway.replicas import Replicas
from whippletree.gateway.session import Session, load_session
from whippletree.gateway.wire import GatewayStatus, HoldReport, SealReport
from whippletree.protocols import Engine, Renderer, Store
from whippletree.types import Call, CallPayload, EngineReport, FinishReason, ParsedMessage

logger = logging.getLogger(__name__)

CANCEL_LIMIT = 10.0  # seconds for a cancelled call to be recorded


class Gateway:
    """All attempts that this process serves."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        store: Store,
        engines: Sequence[Engine],
        renderer: Renderer,
        dialects: Mapping[str, Dialect],
        reports: Mapping[str, EngineReport],
    ) -> None:
        self.config = config
        self.replicas = Replicas(engines, reports)
        self._store = store
        self._renderer = renderer
        self._dialects = dialects
        self._gate = Gate(config.max_in_flight, config.hold_limit)
        self._generator = Generator(config, self._gate, self.replicas)
        self._sessions: OrderedDict[AttemptKey, Session] = OrderedDict()
        self._loading: dict[AttemptKey, asyncio.Task[Session]] = {}
        self._counts: Counter[str] = Counter()
        self._breaks: Counter[str] = Counter()

    # --- sessions --------------------------------------------------------------------------------------------------------

    async def session(self, key: AttemptKey) -> Session:
        """The attempt that a key is for. Raises RequestError (401 unknown, 403 sealed)."""
        session = self._sessions.get(key)
        if session is None:
            session = await self._load(key)
        else:
            self._sessions.move_to_end(key)
        session.check_open()
        return session

    async def _load(self, key: AttemptKey) -> Session:
        loading = self._loading.get(key)
        if loading is None:
            loading = asyncio.create_task(asyncio.to_thread(load_session, self._store, self._dialects, key))
            self._loading[key] = loading
            loading.add_done_callback(lambda task: self._loaded(key, task))
        return await asyncio.shield(loading)

    def _loaded(self, key: AttemptKey, task: asyncio.Task[Session]) -> None:
        del self._loading[key]
        if task.cancelled() or task.exception() is not None:
            return
        if not task.result().sealed:
            self._sessions[key] = task.result()
            for old in [old for old, session in self._sessions.items() if session.idle]:
                if len(self._sessions) <= self.config.max_sessions:
                    break
                del self._sessions[old]

    # --- calls -----------------------------------------------------------------------------------------------------------

    async def submit(self, session: Session, incoming: Incoming) -> LiveCall:
        """The call that answers this request, new or not. Follow it, then `deliver` it. Raises RequestError."""
        session.check_open()
        live = session.live.get(incoming.digest)
        if live is not None:
            return live
        earlier = session.latest.get(incoming.digest)
        sampled = Sampled()
        if earlier is not None and not earlier.error:
            if earlier.finish_reason == "abort":
                if not earlier.delivered:
                    sampled = _resumed(earlier, await asyncio.to_thread(self._store.payload, earlier))
            elif not earlier.delivered or incoming.retry:
                return await self._replay(earlier)
            session.check_open()
            live = session.live.get(incoming.digest)  # a twin may have come while the payload was read
        return live or self._begin(session, incoming, sampled)

    async def _replay(self, call: Call) -> LiveCall:
        payload = await asyncio.to_thread(self._store.payload, call)
        message = self._dialects[call.dialect].read_reply(payload.reply_json)
        self._counts["replayed"] += 1
        return LiveCall.replay(self._head(call.call_id, call.times.received), Reply(call=call, message=message))

    def _head(self, call_id: str, received: float) -> ReplyHead:
        return ReplyHead(call_id=call_id, model=self.config.model, created=int(received))

    def _begin(self, session: Session, incoming: Incoming, sampled: Sampled) -> LiveCall:
        request = incoming.request
        prompt = prepare(session.lineage, self._renderer, request)
        draft = Draft(
            head=self._head(f"c-{secrets.token_hex(12)}", incoming.received),
            key=session.key,
            incoming=incoming,
            prompt=prompt,
            sampled=sampled,
            streamed=request.stream,
        )
        live = LiveCall(draft.head, incoming.digest, sampled)
        parser = self._renderer.parser(() if request.tool_choice == "none" else request.tools)
        if sampled.ids:
            live.publish(parser.feed(sampled.ids))
        turn = self._turn(session, draft, prompt)

        async def sample() -> None:
            try:
                await self._generator.sample(turn, sampled, lambda ids: live.publish(parser.feed(ids)))
            except Exception as error:
                draft.error = str(error) if isinstance(error, WhippletreeError) else f"internal error: {error!r}"
                raise
            finally:
                session.preferred = turn.preferred

        async def record(complete: bool) -> Reply | None:
            try:
                if not complete and not sampled.ids:
                    return None
                finish: Literal["stop", "length", "abort"] = sampled.finish or "abort" if complete else "abort"
                deltas, message = parser.finish(finish)
                live.publish(deltas)
                reason = message.finish_reason if complete else ("error" if draft.error else "abort")
                return await self._record(session, draft, message, reason)
            finally:
                del session.live[incoming.digest]

        session.live[incoming.digest] = live
        live.start(sample, record)
        return live

    def _turn(self, session: Session, draft: Draft, prompt: Prompt) -> Turn:
        session.turns += 1
        return Turn(
            call_id=draft.head.call_id,
            prompt=prompt.ids,
            spec=session.sampling,
            requested=draft.incoming.request.requested,
            stop_token_ids=self._renderer.stop_token_ids,
            place=session.turns - 1,
            preferred=session.preferred,
        )

    async def _record(self, session: Session, draft: Draft, message: ParsedMessage, reason: FinishReason) -> Reply:
        call = draft.call(session.next_index, message, reason, time.time())
        session.next_index += 1
        payload = draft.payload(call, message)
        try:
            call = await asyncio.wrap_future(self._store.record_call(call, payload))
        except FencedError as error:
            session.sealed = True
            self._sessions.pop(session.key, None)
            raise RequestError(str(error), "stop; this attempt has ended", status=403, code="sealed") from error
        session.recorded(call)
        if not call.error:
            first = draft.prompt.base.messages if draft.prompt.base is not None else 0
            session.lineage.add(draft.node(call, payload, message), draft.incoming.request.messages[first:], first)
        self._counts["aborted" if reason in ("abort", "error") else "calls"] += 1
        self._breaks[call.prefix_break] += 1
        return Reply(call=call, message=message)

    def deliver(self, session: Session, reply: Reply) -> None:
        """The last byte of the reply was written. Recorded in the background; a seal waits for it."""
        call = reply.call
        if session.latest[call.digest].delivered and session.latest[call.digest].call_id == call.call_id:
            return
        self._counts["delivered"] += 1
        session.delivered(call)
        mark = asyncio.wrap_future(self._store.mark_delivered(call.call_id))
        session.marks.add(mark)
        mark.add_done_callback(lambda mark: self._marked(session, mark, call.call_id))

    def _marked(self, session: Session, mark: asyncio.Future[None], call_id: str) -> None:
        session.marks.discard(mark)
        if not mark.cancelled() and (error := mark.exception()) is not None:
            logger.error("call %s was delivered, but the store could not note it: %s", call_id, error)

    # --- control ---------------------------------------------------------------------------------------------------------

    async def hold(self, limit: float | None) -> HoldReport:
        """Stop admitting; wait until nothing is in flight, at most `limit` seconds (the configuration's, where None)."""
        await self._gate.hold(self.config.drain_limit if limit is None else limit)
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
        self._sessions.pop(key, None)
        calls = await asyncio.to_thread(self._store.calls, key.rollout_id, key.attempt)
        return SealReport(sealed=sealed, calls=len(calls), delivered=sum(call.delivered for call in calls))

    async def _settle(self, session: Session, limit: float) -> None:
        """Wait for an attempt's calls; cancel those that wait for their turn at once, and the others at the limit."""
        ended = RequestError("the attempt was sealed while this call ran", "stop", status=403, code="sealed")
        for live in list(session.live.values()):
            if not live.sampled.submitted:
                live.abandon(ended)
        calls = list(session.live.values())
        if not all(await asyncio.gather(*(live.settled(limit) for live in calls))):
            for live in calls:
                live.abandon(ended)
            await asyncio.gather(*(live.settled(CANCEL_LIMIT) for live in calls))
        if session.marks:
            await asyncio.wait(session.marks, timeout=CANCEL_LIMIT)

    def status(self) -> GatewayStatus:
        """Counts, and the engines as last seen."""
        state = self._gate.state
        return GatewayStatus(
            held=state.holding,
            in_flight=len(state.in_flight),
            waiting=len(state.waiting),
            sessions=len(self._sessions),
            calls=self._counts["calls"],
            delivered=self._counts["delivered"],
            aborted=self._counts["aborted"],
            replayed=self._counts["replayed"],
            resumed=self._generator.resumed,
            prefix_breaks=dict(self._breaks),
            engines=tuple(replica.health() for replica in self.replicas.all),
        )

    async def close(self) -> None:
        """Cancel what is under way (it is recorded as aborted) and wait for the store to have it."""
        stopping = RequestError("the gateway is stopping", "try again", status=503, code="gateway_stopping")
        sessions = list(self._sessions.values())
        for session in sessions:
            for live in list(session.live.values()):
                live.abandon(stopping)
        await asyncio.gather(*(self._settle(session, CANCEL_LIMIT) for session in sessions))


def _resumed(call: Call, payload: CallPayload) -> Sampled:
    """An aborted call's turn, to be gone on with."""
    return Sampled(
        ids=payload.sampled_ids.tolist(),
        logprobs=payload.logprobs.tolist(),
        versions=list(call.versions),
        first_token=call.times.first_token,
    )
