"""One request to one engine: tokens in, tokens out; or an engine's own chat endpoint, where that is wanted or all that it has.

    tokens: prompt + sampled ids ──► engine.generate ──► ids, logprobs                      goes on from any token
    chat:   the request itself   ──► engine.chat     ──► deltas, or ids where it has them   begins anew or not at all

What blocks: the engine, at most `limit` seconds without a word (Watch); a hold that aborts ends it at once.
Invariants (tests/gateway/test_gateway_generation.py, test_gateway_sources.py):
- ids and logprobs line up after every chunk, or AlignmentError names the call and nothing of that chunk is kept;
- a turn has grade "tokens" only where every sampled token came with id and logprob, and the prompt's ids are known.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from whippletree.errors import AlignmentError, EngineError, EngineUnavailable
from whippletree.gateway.admission import Stay
from whippletree.gateway.feeding import Feed
from whippletree.gateway.replicas import Replica
from whippletree.protocols import ChatChunk, ChatEngine, Renderer
from whippletree.types import (
    ChatRequest,
    ChatTurn,
    GenerateRequest,
    Grade,
    RequestedSampling,
    RoutedExperts,
    Sampling,
    TokenChunk,
    TokenIds,
    VersionSpan,
)

SEED_RANGE = 2**31
T = TypeVar("T")


class Told(msgspec.Struct, kw_only=True):
    """What an engine's chat endpoint says of a turn. `whole`: every token of it came with id and logprob."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    prompt_ids: list[int] = []
    whole: bool = True


class Sampled(msgspec.Struct, kw_only=True):
    """A turn as far as it is sampled. Times are seconds since the epoch, 0.0 where not reached.

    `told`: set where an engine's chat endpoint made it; below grade "tokens" ids and logprobs stay out of the record.
    `constrained`: the engine held it to the request's schema. `trouble`: why the last try gave nothing, or "".
    """

    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[VersionSpan] = []
    finish: Literal["", "stop", "length"] = ""
    sampling: Sampling = Sampling()
    cached_tokens: int = 0
    replica: str = ""
    logprob_source: Literal["processed", "raw", "none"] = "processed"
    grade: Grade = "tokens"
    told: Told | None = None
    experts: RoutedExperts | None = None
    constrained: bool = False
    submitted: float = 0.0
    first_token: float = 0.0
    trouble: str = ""

    def ended(self) -> bool:
        """Whether the turn is sampled to its end."""
        return bool(self.finish)

    def cut(self, count: int) -> None:
        """A stop string ended the turn `count` tokens ago."""
        if count:
            del self.ids[-count:], self.logprobs[-count:]
            self.versions = [span for span in self.versions if span.start < len(self.ids)]
        self.finish, self.experts = "stop", None

    def take(self, chunk: TokenChunk, call_id: str, begun: int) -> None:
        """Append a chunk of the engine request that began at token `begun` of the turn. Raises AlignmentError."""
        check_alignment(chunk.token_ids, chunk.logprobs, call_id)
        if chunk.token_ids:
            if not self.versions or self.versions[-1].policy_version != chunk.policy_version:
                self.versions.append(VersionSpan(start=len(self.ids), policy_version=chunk.policy_version))
            self.first_token = self.first_token or time.time()
            self.ids += chunk.token_ids
            self.logprobs += chunk.logprobs
        if chunk.versions:  # this engine tells the versions of its whole request at its end
            earlier = [span for span in self.versions if span.start < begun]
            told = [VersionSpan(start=begun + span.start, policy_version=span.policy_version) for span in chunk.versions]
            self.versions = earlier + told
        if chunk.experts is not None:
            self.experts = chunk.experts
        if chunk.finish_reason in ("stop", "length"):
            self.finish = chunk.finish_reason


class Turn(msgspec.Struct, kw_only=True):
    """What is to be sampled. `prompt`: its ids [P]. `place` counts the attempt's turns; `preferred` is the replica that has the
    prefix, or -1, and `shared` that prefix's length in tokens. `own_prompt` is false where an engine is to render by itself."""

    call_id: str
    prompt: TokenIds
    request: ChatRequest
    spec: Sampling
    requested: RequestedSampling
    stop_token_ids: list[int]
    rollout_id: str = ""
    place: int = 0
    preferred: int = -1
    shared: int = 0
    own_prompt: bool = True


@runtime_checkable
class HasPolicy(Protocol):
    """A renderer that says how prompts are made (RenderingConfig.policy)."""

    policy: str


def engine_renders(renderer: Renderer) -> bool:
    """Whether the run wants the engine's own template."""
    return isinstance(renderer, HasPolicy) and renderer.policy == "engine"


def speaks_tokens(replica: Replica) -> bool:
    """Whether the engine takes token ids. One that was not probed yet counts as what the protocol promises."""
    below = replica.report is not None and replica.report.grade != "tokens"
    return not (below and isinstance(replica.engine, ChatEngine))


def check_alignment(token_ids: list[int], logprobs: list[float], call_id: str) -> None:
    """Raises AlignmentError unless there is one finite logprob per id."""
    if len(token_ids) != len(logprobs):
        counts = f"{len(token_ids)} ids with {len(logprobs)} logprobs"
        raise AlignmentError(f"call {call_id}: the engine sent {counts}", "probe the engine: it cannot be trained on")
    if not all(map(math.isfinite, logprobs)):
        raise AlignmentError(f"call {call_id}: the engine sent a logprob that is not finite", "check the engine's weights")


class Watch:
    """The time limit of an engine request: it ends after `limit` seconds of silence (EngineUnavailable), or when it is
    interrupted (`interrupted` is true then, and nothing is raised)."""

    def __init__(self, stay: Stay, limit: float) -> None:
        self.interrupted = False
        self._stay = stay
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._scope = asyncio.timeout(limit)
        self._renew = self._loop.time() + limit / 8

    def heard(self) -> None:
        """The engine said something."""
        now = self._loop.time()
        if now >= self._renew and not self.interrupted:
            self._renew = now + self._limit / 8
            self._scope.reschedule(now + self._limit)

    def keep(self) -> None:
        """From here on it cannot be interrupted without a loss."""
        self._stay.interrupt = None

    def _interrupt(self) -> None:
        self.interrupted = True
        self._stay.interrupt = None
        self._scope.reschedule(self._loop.time())

    async def __aenter__(self) -> Watch:
        await self._scope.__aenter__()
        self._stay.interrupt = self._interrupt
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._stay.interrupt = None
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as silence:
            if self.interrupted:
                return True
            cause = f"the engine sent nothing for {self._limit:g} s"
            raise EngineUnavailable(cause, "look at its log") from silence
        return False


async def stream_tokens(replica: Replica, turn: Turn, sampled: Sampled, feed: Feed, *, request_id: str, watch: Watch) -> None:
    """Sample on from prompt + sampled ids."""
    wanted = turn.request.schema
    structured = wanted is not None and replica.report is not None and replica.report.structured
    sampled.constrained = sampled.constrained or structured
    request = GenerateRequest(
        request_id=request_id,
        prompt_ids=[*turn.prompt, *sampled.ids] if sampled.ids else turn.prompt,
        sampling=_rest(sampled),
        stop_token_ids=turn.stop_token_ids,
        schema=wanted if structured else None,
    )
    begun = len(sampled.ids)
    source = replica.engine.generate(request)
    try:
        async for chunk in source:
            watch.heard()
            sampled.take(chunk, turn.call_id, begun)
            kept = feed.take(chunk.token_ids)
            if feed.stopped:
                sampled.cut(len(chunk.token_ids) - kept)
                return
            replica.answered(chunk.policy_version)
            sampled.cached_tokens = sampled.cached_tokens or (0 if begun else chunk.cached_tokens)
            if chunk.finish_reason is not None:
                return
    finally:
        await _closed(source, replica, request_id)


def _rest(sampled: Sampled) -> Sampling:
    """The sampling of what is left of a turn; its draws are not those of the part that is done."""
    sampling, done = sampled.sampling, len(sampled.ids)
    if not done:
        return sampling
    seed = None if sampling.seed is None else (sampling.seed + done) % SEED_RANGE
    return msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - done, seed=seed)


async def _closed(source: AsyncIterator[T], replica: Replica, request_id: str) -> None:
    if isinstance(source, AsyncGenerator):
        await source.aclose()
    else:
        await replica.engine.abort(request_id)


async def stream_chat(replica: Replica, turn: Turn, sampled: Sampled, feed: Feed, *, request_id: str, watch: Watch) -> None:
    """Sample under the engine's own template. Raises EngineError where the engine cannot chat, or breaks off in mid-turn."""
    engine = replica.engine
    if not isinstance(engine, ChatEngine):
        raise EngineError(f"{engine.name} has no chat endpoint", "set rendering.policy to exact or keep")
    if turn.request.schema is not None and replica.report is not None:
        sampled.constrained = replica.report.structured
    told = sampled.told = Told()
    request = ChatTurn(request_id=request_id, request=turn.request, sampling=sampled.sampling)
    source = engine.chat(request)
    try:
        async for chunk in source:
            watch.heard()
            _take_chat(chunk, turn, sampled, told, feed)
            replica.answered(chunk.policy_version)
            if feed.started:
                watch.keep()
            if sampled.finish:
                break
    except EngineUnavailable as error:
        if feed.started:
            raise EngineError(f"{engine.name} broke off in mid-turn: {error.cause}", "the harness may ask again") from error
        raise
    finally:
        await _closed(source, replica, request_id)
    sampled.grade = _grade(replica, sampled, told)
    if sampled.grade != "tokens":
        sampled.logprob_source = "none"


def _take_chat(chunk: ChatChunk, turn: Turn, sampled: Sampled, told: Told, feed: Feed) -> None:
    told.prompt_ids = told.prompt_ids or chunk.prompt_ids
    told.prompt_tokens = chunk.prompt_tokens or told.prompt_tokens
    told.sampled_tokens = chunk.sampled_tokens or told.sampled_tokens
    sampled.cached_tokens = chunk.cached_tokens or sampled.cached_tokens
    if chunk.token_ids:
        told.whole = told.whole and len(chunk.token_ids) == len(chunk.logprobs)
        logprobs = chunk.logprobs if told.whole else [0.0] * len(chunk.token_ids)
        piece = TokenChunk(token_ids=chunk.token_ids, logprobs=logprobs, policy_version=chunk.policy_version)
        sampled.take(piece, turn.call_id, 0)
        kept = feed.take(chunk.token_ids)
        if feed.stopped:
            sampled.cut(len(chunk.token_ids) - kept)
    if chunk.deltas:
        told.whole = False
        sampled.first_token = sampled.first_token or time.time()
        feed.tell(chunk.deltas)
    if not sampled.finish and chunk.finish_reason not in (None, "abort"):
        sampled.finish = "length" if chunk.finish_reason == "length" else "stop"


def _grade(replica: Replica, sampled: Sampled, told: Told) -> Grade:
    if told.whole and sampled.ids:
        return "tokens" if told.prompt_ids else "logprobs"
    known = replica.report.grade if replica.report is not None else "text"
    return "logprobs" if known in ("tokens", "logprobs") else "text"
