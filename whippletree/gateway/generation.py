"""Sampling one turn, across pauses, holds and the death of engines.

    gate (held? full?) ──► replica (down? wait a little) ──► engine ──chunks──► sampled
      ▲                                                        │
      └────── EngineUnavailable, broken stream, "abort" ◄──────┘   go on from the ids that are already sampled

What blocks: the gate (until release), an engine that is down (until it is back, at most `engine_wait_limit` seconds without
a token; held time does not count), a silent engine (at most `engine_silence_limit`).
Invariants (tests/gateway/test_gateway_generation.py):
- ids and logprobs line up after every chunk, or AlignmentError names the call and nothing of that chunk is kept;
- a turn that goes on elsewhere is resumed with prompt + sampled ids: nothing is sampled twice;
- sampled tokens ≤ min(the run's limit, the harness's, room in the context).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Literal

import msgspec

from whippletree.errors import AlignmentError, ContextOverflow, EngineUnavailable, RequestError
from whippletree.gateway.admission import Gate
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.replicas import Replica, Replicas
from whippletree.types import GenerateRequest, RequestedSampling, Sampling, TokenChunk, VersionSpan

SEED_STRIDE = 1_000_003
SEED_RANGE = 2**31


class Sampled(msgspec.Struct, kw_only=True):
    """A turn as far as it is sampled. Times are seconds since the epoch, 0.0 where not reached."""

    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[VersionSpan] = []
    finish: Literal["", "stop", "length"] = ""
    sampling: Sampling = Sampling()
    cached_tokens: int = 0
    replica: str = ""
    logprob_source: Literal["processed", "raw", "none"] = "processed"
    submitted: float = 0.0
    first_token: float = 0.0

    def ended(self) -> bool:
        """Whether the turn is sampled to its end."""
        return bool(self.finish)

    def take(self, chunk: TokenChunk, call_id: str, begun: int) -> None:
        """Append a chunk of the engine request that began at token `begun` of the turn. Raises AlignmentError."""
        check_alignment(chunk, call_id)
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
        if chunk.finish_reason in ("stop", "length"):
            self.finish = chunk.finish_reason


def check_alignment(chunk: TokenChunk, call_id: str) -> None:
    """Raises AlignmentError unless the chunk has one finite logprob per id."""
    if len(chunk.token_ids) != len(chunk.logprobs):
        counts = f"{len(chunk.token_ids)} ids with {len(chunk.logprobs)} logprobs"
        raise AlignmentError(f"call {call_id}: the engine sent {counts}", "probe the engine: it cannot be trained on")
    if not all(map(math.isfinite, chunk.logprobs)):
        raise AlignmentError(f"call {call_id}: the engine sent a logprob that is not finite", "check the engine's weights")


def effective_sampling(spec: Sampling, requested: RequestedSampling, place: int, room: int) -> Sampling:
    """What a call is sampled with: the run's settings, under the smallest of the limits; `room` is in tokens.

    A seed makes each turn reproducible on its own: `place` counts the attempt's turns, so that no two share their draws.
    """
    limit = min(spec.max_tokens, room, requested.max_tokens if requested.max_tokens is not None else spec.max_tokens)
    seed = None if spec.seed is None else (spec.seed * SEED_STRIDE + place) % SEED_RANGE
    return msgspec.structs.replace(spec, max_tokens=limit, seed=seed)


class Turn(msgspec.Struct, kw_only=True):
    """What is to be sampled. `place` counts the attempt's turns; `preferred` is the replica that has the prefix, or -1."""

    call_id: str
    prompt: list[int]
    spec: Sampling
    requested: RequestedSampling
    stop_token_ids: list[int]
    place: int = 0
    preferred: int = -1


class Generator:
    """Samples turns on the replicas, through the gate."""

    def __init__(self, config: GatewayConfig, gate: Gate, replicas: Replicas) -> None:
        self._config = config
        self._gate = gate
        self._replicas = replicas
        self.resumed = 0

    async def sample(self, turn: Turn, sampled: Sampled, on_ids: Callable[[list[int]], None]) -> None:
        """Sample `turn` to its end into `sampled`, which may hold the turn's first ids already; `on_ids` sees new ids.

        Raises RequestError (503) when no engine answers for too long, ContextOverflow, AlignmentError, EngineError.
        """
        tries, idle, waited = 0, 0, 0.0
        while not sampled.ended():
            count, tries = len(sampled.ids), tries + 1
            async with self._gate.admitted():
                started = time.monotonic()
                try:
                    await self._attempt(turn, sampled, tries, on_ids)
                except EngineUnavailable as error:
                    reason = error
                else:
                    reason = EngineUnavailable("the engine ended the turn early")
            if sampled.ended():
                return
            self.resumed += bool(sampled.ids)
            waited = 0.0 if len(sampled.ids) > count else waited + time.monotonic() - started
            if waited >= self._config.engine_wait_limit:
                raise RequestError(str(reason), "try again later", status=503, code="engine_unavailable") from reason
            idle = 0 if len(sampled.ids) > count else idle + 1
            pause = self._delay(idle)
            waited += pause
            await asyncio.sleep(pause)

    def _delay(self, idle: int) -> float:
        """Seconds to wait after `idle` tries without a token in a row: at least until a replica may be tried."""
        soonest = min((replica.down_until for replica in self._replicas.all), default=0.0)
        return max(min(1.0, 0.01 * 2.0 ** min(idle, 10)), soonest - time.monotonic())

    async def _attempt(self, turn: Turn, sampled: Sampled, tries: int, on_ids: Callable[[list[int]], None]) -> None:
        async with self._replicas.chosen(turn.preferred) as replica:
            turn.preferred = replica.place
            room = replica.context_length - len(turn.prompt)
            if room < 1:
                cause = (
                    f"the prompt has {len(turn.prompt)} tokens; the model's maximum context length is {replica.context_length}"
                )
                raise ContextOverflow(cause, "shorten the messages")
            if not sampled.submitted:
                sampled.submitted = time.time()
                sampled.sampling = effective_sampling(turn.spec, turn.requested, turn.place, room)
            self._settle(turn, sampled)
            if not sampled.finish:
                await self._stream(replica, turn, sampled, tries, on_ids)

    def _settle(self, turn: Turn, sampled: Sampled) -> None:
        """A turn whose engine died between its last token and saying so is at its end."""
        if sampled.ids and sampled.ids[-1] in turn.stop_token_ids:
            sampled.finish = "stop"
        elif len(sampled.ids) >= sampled.sampling.max_tokens:
            sampled.finish = "length"

    async def _stream(
        self, replica: Replica, turn: Turn, sampled: Sampled, tries: int, on_ids: Callable[[list[int]], None]
    ) -> None:
        sampled.replica = replica.engine.name
        sampled.logprob_source = replica.logprob_source
        request = GenerateRequest(
            request_id=f"{turn.call_id}-{tries}",
            prompt_ids=turn.prompt + sampled.ids,
            sampling=_rest(sampled),
            stop_token_ids=turn.stop_token_ids,
        )
        begun = len(sampled.ids)
        source = replica.engine.generate(request)
        try:
            while (chunk := await self._next(source)) is not None:
                sampled.take(chunk, turn.call_id, begun)
                replica.answered(chunk.policy_version)
                sampled.cached_tokens = sampled.cached_tokens or (chunk.cached_tokens if tries == 1 else 0)
                if chunk.token_ids:
                    on_ids(chunk.token_ids)
                if chunk.finish_reason is not None:
                    return
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
            else:
                await replica.engine.abort(request.request_id)

    async def _next(self, source: AsyncIterator[TokenChunk]) -> TokenChunk | None:
        """The next chunk, None when there is none. Raises EngineUnavailable after too long a silence."""
        limit = self._config.engine_silence_limit
        try:
            async with asyncio.timeout(limit):
                return await anext(source, None)
        except TimeoutError as error:
            raise EngineUnavailable(f"the engine sent nothing for {limit:g} s", "look at its log") from error


def _rest(sampled: Sampled) -> Sampling:
    """The sampling of what is left of a turn; its draws are not those of the part that is done."""
    sampling, done = sampled.sampling, len(sampled.ids)
    if not done:
        return sampling
    seed = None if sampling.seed is None else (sampling.seed + done) % SEED_RANGE
    return msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - done, seed=seed)
