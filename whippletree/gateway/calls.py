"""One call from its request to its record.

    begin ─► [turn] Preparer ─► Draft ─► Generator ─► [turn] finish, record ─► store ─► Reply

The lineage is touched on the event loop only; `[turn]` is the turnstile's. What blocks: the turnstile, the rendering thread,
and what generation.py and the store say.
Invariants (tests/gateway/test_gateway_service.py, test_gateway_retries.py):
- a reply exists only for a call that the store has;
- what was sampled for a request that was cut short is gone on with only under the prompt that it was sampled under.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from whippletree.errors import FencedError, RequestError, WhippletreeError
from whippletree.gateway.deltas import pack
from whippletree.gateway.dialects import ReplyHead, TokenText
from whippletree.gateway.feeding import Feed
from whippletree.gateway.generation import Generator
from whippletree.gateway.live import LiveCall, Reply
from whippletree.gateway.preparing import Preparer
from whippletree.gateway.prompts import Prompt, blank, leaf_of, told
from whippletree.gateway.recording import Draft, Incoming
from whippletree.gateway.roles import Opening
from whippletree.gateway.session import Session
from whippletree.gateway.sources import Sampled, Told, Turn
from whippletree.gateway.turnstile import Turnstile
from whippletree.protocols import Renderer, Store
from whippletree.types import Call, CallPayload, FinishReason, Int32, ParsedMessage, TokenIds


class Begun:
    """A call under way: what is there of it between its request and its record."""

    def __init__(self, session: Session, incoming: Incoming, sampled: Sampled, earlier: Call | None) -> None:
        self.session = session
        self.incoming = incoming
        self.sampled = sampled
        self.earlier = earlier  # a call of the same request that was cut short; `sampled` has its ids
        self.place = session.turns  # counts the attempt's turns
        self.live = LiveCall(incoming.digest, sampled)
        self.draft: Draft | None = None
        self.feed: Feed | None = None


class Calls:
    """Begins and records the calls of every attempt. `fenced` is told when the store says that an attempt has ended."""

    def __init__(
        self,
        model: str,
        *,
        store: Store,
        renderer: Renderer,
        preparer: Preparer,
        generator: Generator,
        turnstile: Turnstile,
        fenced: Callable[[Session], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.breaks: Counter[str] = Counter()
        self._model = model
        self._store = store
        self._renderer = renderer
        self._preparer = preparer
        self._generator = generator
        self._turnstile = turnstile
        self._fenced = fenced

    def head(self, call_id: str, incoming: Incoming, received: float, prompt_tokens: int) -> ReplyHead:
        """What a reply to this request says of itself."""
        return ReplyHead(
            call_id=call_id,
            model=self._model,
            created=int(received),
            request=incoming.request,
            prompt_tokens=prompt_tokens,
            target=incoming.target,
        )

    def begin(self, session: Session, incoming: Incoming, sampled: Sampled, earlier: Call | None = None) -> LiveCall:
        """A new call, under way. `sampled` has what was sampled for `earlier`."""
        begun = Begun(session, incoming, sampled, earlier)
        session.turns += 1
        session.live[incoming.digest] = begun.live
        begun.live.start(lambda: self._sample(begun), lambda complete: self._finish(begun, complete))
        return begun.live

    async def _sample(self, begun: Begun) -> None:
        await self._turnstile.turn()
        session, incoming, sampled = begun.session, begun.incoming, begun.sampled
        draft = await self._preparer.draft(session, incoming, sampled)
        if begun.earlier is not None and not _same_prompt(session, begun.earlier, draft.prompt):
            sampled.ids, sampled.logprobs, sampled.versions, sampled.first_token = [], [], [], 0.0
        begun.draft, begun.feed = draft, self._feed(draft, begun.live)
        begun.live.prepared(self.head(draft.call_id, incoming, incoming.received, len(draft.prompt.ids)))
        turn = self._turn(begun, draft)
        try:
            await self._generator.sample(turn, sampled, begun.feed)
        except Exception as error:
            draft.error = str(error) if isinstance(error, WhippletreeError) else f"internal error: {error!r}"
            raise
        finally:
            session.preferred, session.unanswered = turn.preferred, sampled.trouble

    def _feed(self, draft: Draft, live: LiveCall) -> Feed:
        request, prompt = draft.request, draft.prompt
        stops = request.requested.stop
        parser = self._renderer.parser(() if request.tool_choice == "none" else request.tools, stops)
        feed = Feed(parser, live.publish, exact=bool(stops))
        if prompt.forced:
            feed.force(prompt.ids[len(prompt.ids) - prompt.forced :].tolist())
        feed.take(draft.sampled.ids)
        return feed

    def _turn(self, begun: Begun, draft: Draft) -> Turn:
        prompt, session = draft.prompt, begun.session
        return Turn(
            call_id=draft.call_id,
            prompt=TokenIds(prompt.ids, prompt.json),
            request=draft.request,
            spec=session.sampling,
            requested=begun.incoming.request.requested,
            stop_token_ids=self._renderer.stop_token_ids,
            rollout_id=session.key.rollout_id,
            place=begun.place,
            preferred=session.preferred,
            shared=prompt.parent.length if prompt.parent is not None else 0,
            own_prompt=self._preparer.own_prompt(),
        )

    async def _finish(self, begun: Begun, complete: bool) -> Reply | None:
        draft, feed, sampled = begun.draft, begun.feed, begun.sampled
        try:
            if draft is None or feed is None or not (complete or sampled.ids or feed.started):
                return None
            await self._turnstile.turn()
            finish: Literal["stop", "length", "abort"] = (sampled.finish or "abort") if complete else "abort"
            message = feed.finish(finish)
            reason = message.finish_reason if complete else ("error" if draft.error else "abort")
            return await self._record(begun.session, draft, message, reason)
        finally:
            del begun.session.live[begun.incoming.digest]

    async def _record(self, session: Session, draft: Draft, message: ParsedMessage, reason: FinishReason) -> Reply:
        sampled = draft.sampled
        if sampled.told is not None:  # the engine has made the prompt
            draft.prompt = self._told(session, draft, sampled.told)
        base_id, skeleton = session.skeleton(draft.prompt.base)
        stored, own = pack(draft.incoming.body, draft.incoming.fields, skeleton, base_id)
        call = draft.call(session.next_index, message, reason, time.time())
        session.next_index += 1
        payload = draft.payload(message, stored)
        try:
            call = await asyncio.wrap_future(self._store.record_call(call, payload))
        except FencedError as error:
            self._fenced(session)
            raise RequestError(str(error), "stop; this attempt has ended", status=403, code="sealed") from error
        session.recorded(call)
        session.keep_skeleton(call.call_id, own)
        if not call.error:
            self._remember(session, draft, call, payload)
        self.counts["aborted" if reason in ("abort", "error") else "calls"] += 1
        self.breaks[call.prefix_break] += 1
        return self.reply(call, message, draft.incoming, sampled.ids, sampled.logprobs)

    def _told(self, session: Session, draft: Draft, said: Told) -> Prompt:
        if not draft.trainable:
            return blank(draft.prompt)
        ids: Int32 = np.asarray(said.prompt_ids, dtype=np.int32)
        return told(session.lineage, draft.prompt, ids, self._renderer.to_bytes(said.prompt_ids))

    def _remember(self, session: Session, draft: Draft, call: Call, payload: CallPayload) -> None:
        """The call as what the next ones go on from."""
        prompt = draft.prompt
        session.lineage.add(draft.node(call, payload), draft.forms, draft.known)
        ids = draft.sampled.ids if draft.trainable else []
        leaf = leaf_of(prompt, draft.request, ids, self._renderer.to_bytes(ids))
        session.recent.add(call.call_id, leaf, call.base_call_id)
        if draft.look:
            session.threads.begun(call.role, Opening(tools=bool(draft.request.tools), look=draft.look), call.client)

    def reply(
        self, call: Call, message: ParsedMessage, incoming: Incoming, ids: Sequence[int], logprobs: Sequence[float]
    ) -> Reply:
        """What is delivered; with its tokens where the harness asked for logprobs."""
        if not incoming.request.wants_logprobs or call.grade != "tokens":
            return Reply(call=call, message=message)
        pairs = zip(ids, logprobs, strict=True)
        tokens = tuple(TokenText(text=self._renderer.decode([token]), logprob=logprob) for token, logprob in pairs)
        return Reply(call=call, message=message, tokens=tokens)


def _same_prompt(session: Session, earlier: Call, prompt: Prompt) -> bool:
    """Whether an earlier call was fed this prompt."""
    node = session.lineage.nodes.get(earlier.call_id)
    return node is not None and node.has_ids and np.array_equal(session.lineage.prompt(node), prompt.ids)
