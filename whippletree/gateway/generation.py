"""Sampling one turn, across pauses, holds and the death of engines.

    gate (held? full?) ──► replica (down? wait a little) ──► engine ──chunks──► sampled
      ▲                                                        │
      └── EngineUnavailable, broken stream, "abort", misaligned, interrupted ◄──┘   go on from the ids that are already sampled

What blocks: the gate (until release), an engine that is down (until it is back, at most `engine_wait_limit` seconds without
a token; held time does not count), a silent engine (at most `engine_silence_limit`).
A chunk whose ids and logprobs do not line up is dropped, and the turn goes on from before it with a new request: a reply that
is fine otherwise still reaches the harness, and nothing of it was guessed. After `MISALIGNED_LIMIT` such chunks the call ends
with the error, which its record carries.
Invariants (tests/gateway/test_gateway_generation.py, test_gateway_pause.py):
- a turn that goes on elsewhere is resumed with prompt + sampled ids: nothing is sampled twice;
- sampled tokens ≤ min(the run's limit, the harness's, room in the context);
- a turn that ends, in whatever way, while no engine gives it anything says why (`Sampled.trouble`);
- an interrupted turn goes on after the hold, and its record says which tokens came from which policy version.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from whippletree.errors import AlignmentError, ContextOverflow, EngineUnavailable, RequestError
from whippletree.gateway.admission import Gate, Stay
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.feeding import Feed
from whippletree.gateway.replicas import Replica, Replicas
from whippletree.gateway.sources import SEED_RANGE, Sampled, Turn, Watch, speaks_tokens, stream_chat, stream_tokens
from whippletree.protocols import RoutedCall
from whippletree.types import RequestedSampling, Sampling

SEED_STRIDE = 1_000_003
MISALIGNED_LIMIT = 3  # chunks of one turn


def effective_sampling(spec: Sampling, requested: RequestedSampling, place: int, room: int) -> Sampling:
    """What a call is sampled with: the run's settings, under the smallest of the limits; `room` is in tokens.

    A seed makes each turn reproducible on its own: `place` counts the attempt's turns, so that no two share their draws.
    """
    limit = min(spec.max_tokens, room, requested.max_tokens if requested.max_tokens is not None else spec.max_tokens)
    seed = None if spec.seed is None else (spec.seed * SEED_STRIDE + place) % SEED_RANGE
    return msgspec.structs.replace(spec, max_tokens=limit, seed=seed)


class Generator:
    """Samples turns on the replicas, through the gate."""

    def __init__(self, config: GatewayConfig, gate: Gate, replicas: Replicas) -> None:
        self._config = config
        self._gate = gate
        self._replicas = replicas
        self.resumed = 0
        self.misaligned = 0

    async def sample(self, turn: Turn, sampled: Sampled, feed: Feed) -> None:
        """Sample `turn` to its end into `sampled`, which may hold the turn's first ids already; `feed` gets the new ids.

        Raises RequestError (503) when no engine answers for too long, ContextOverflow, AlignmentError, EngineError.
        """
        tries, idle, misaligned, waited = 0, 0, 0, 0.0
        while not sampled.ended():
            count, tries = len(sampled.ids), tries + 1
            reason: EngineUnavailable | AlignmentError = EngineUnavailable("the engine ended the turn early")
            interrupted = False
            async with self._gate.admitted() as stay:
                started = time.monotonic()
                try:
                    interrupted = await self._attempt(turn, sampled, tries, feed, stay)
                except EngineUnavailable as error:
                    reason = error
                except AlignmentError as error:
                    reason, misaligned = error, misaligned + 1
                    self.misaligned += 1
                    if misaligned >= MISALIGNED_LIMIT:
                        sampled.trouble = str(error)
                        raise
            progress = len(sampled.ids) > count
            sampled.trouble = "" if sampled.ended() or interrupted or progress else str(reason)
            if sampled.ended():
                return
            self.resumed += bool(sampled.ids)
            if interrupted:
                continue
            waited = 0.0 if progress else waited + time.monotonic() - started
            if waited >= self._config.engine_wait_limit:
                raise RequestError(str(reason), "try again later", status=503, code="engine_unavailable") from reason
            idle = 0 if progress else idle + 1
            pause = self._delay(idle)
            waited += pause
            await asyncio.sleep(pause)

    def _delay(self, idle: int) -> float:
        """Seconds to wait after `idle` tries without a token in a row: at least until a replica may be tried."""
        soonest = min((replica.down_until for replica in self._replicas.active), default=0.0)
        return max(min(1.0, 0.01 * 2.0 ** min(idle, 10)), soonest - time.monotonic())

    async def _attempt(self, turn: Turn, sampled: Sampled, tries: int, feed: Feed, stay: Stay) -> bool:
        """One engine request; whether it was interrupted."""
        call = RoutedCall(
            rollout_id=turn.rollout_id,
            preferred=turn.preferred,
            prompt_tokens=len(turn.prompt),
            shared_tokens=turn.shared,
        )
        async with self._replicas.chosen(call) as replica:
            turn.preferred = replica.place
            tokens = turn.own_prompt and speaks_tokens(replica)
            room = self._room(replica, turn) if tokens else turn.spec.max_tokens
            if not sampled.submitted:
                sampled.submitted = time.time()
                sampled.sampling = effective_sampling(turn.spec, turn.requested, turn.place, room)
            self._settle(turn, sampled, feed)
            if sampled.finish:
                return False
            sampled.replica = replica.engine.name
            sampled.logprob_source = replica.logprob_source
            request_id = f"{turn.call_id}-{tries}"
            stream = stream_tokens if tokens else stream_chat
            async with Watch(stay, self._config.engine_silence_limit) as watch:
                await stream(replica, turn, sampled, feed, request_id=request_id, watch=watch)
            return watch.interrupted

    def _room(self, replica: Replica, turn: Turn) -> int:
        """Tokens that may be sampled after the prompt. Raises ContextOverflow."""
        room = replica.context_length - len(turn.prompt)
        if room < 1:
            cause = f"the prompt has {len(turn.prompt)} tokens; the model's maximum context length is {replica.context_length}"
            raise ContextOverflow(cause, "shorten the messages")
        return room

    def _settle(self, turn: Turn, sampled: Sampled, feed: Feed) -> None:
        """A turn whose engine died between its last token and saying so is at its end."""
        if sampled.ids and (sampled.ids[-1] in turn.stop_token_ids or feed.stopped):
            sampled.finish = "stop"
        elif len(sampled.ids) >= sampled.sampling.max_tokens:
            sampled.finish = "length"
