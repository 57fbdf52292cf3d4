"""One request inside the engine: its tokens, what was sampled, and how much of that was handed out.

Invariants (tests/engines/test_embedded_sequence.py):
- chunks taken one after another hold every sampled token exactly once, in order;
- no chunk mixes policy versions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from whippletree.engines.experts import routed_experts
from whippletree.errors import EngineError
from whippletree.types import RoutedExperts, Sampling, TokenChunk, VersionSpan


@dataclass(eq=False, slots=True)
class Sequence:
    """State of one request. `tokens` is prompt + sampled ids; the last sampled one is not in the cache yet. `experts`: of a
    mixture, which each computed token went to, [tokens - 1, layers, experts used], once the request has ended."""

    request_id: str
    prompt_length: int
    tokens: list[int]
    sampling: Sampling
    stop_ids: frozenset[int]
    uniforms: random.Random
    score_prompt: bool = False
    stream: bool = True
    slot: int = -1
    computed: int = 0
    cached: int = 0
    wait_for: Sequence | None = None
    wait_until: int = 0
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "abort"] | None = None
    stop_token: int | None = None
    experts: npt.NDArray[np.int16] | None = None
    error: EngineError | None = None
    delivered: int = 0
    delivered_at: float = 0.0

    @property
    def done(self) -> bool:
        """True once nothing more will be sampled."""
        return self.finish_reason is not None or self.error is not None

    @property
    def pending(self) -> int:
        """Tokens that are known but not in the cache."""
        return len(self.tokens) - self.computed

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return len(self.tokens) - self.prompt_length

    def ids(self) -> npt.NDArray[np.int32]:
        """Prompt + sampled ids."""
        return np.asarray(self.tokens, dtype=np.int32)

    def add(self, token: int, logprob: float, version: int, context: int) -> None:
        """Record a sampled token and decide whether it is the last one."""
        if not self.spans or self.spans[-1].policy_version != version:
            self.spans.append(VersionSpan(start=self.sampled, policy_version=version))
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.stop_ids:
            self.finish_reason = "stop"
            self.stop_token = token
        elif self.sampled >= self.sampling.max_tokens or len(self.tokens) >= context:
            self.finish_reason = "length"

    def take(self, version: int) -> list[TokenChunk]:
        """What was sampled since the last call, cut where the policy version changes. The last chunk of a finished request has
        its finish reason; a request that ends without new tokens gives one empty chunk under `version`."""
        chunks: list[TokenChunk] = []
        for index, span in enumerate(self.spans):
            stop = self.spans[index + 1].start if index + 1 < len(self.spans) else self.sampled
            start = max(self.delivered, span.start)
            if start < stop:
                chunks.append(self._chunk(start, stop, span.policy_version))
                self.delivered = stop
        if self.finish_reason is not None:
            if not chunks:
                chunks.append(self._chunk(self.sampled, self.sampled, self.spans[-1].policy_version if self.spans else version))
            chunks[-1] = replace(chunks[-1], finish_reason=self.finish_reason, experts=self._routed())
        return chunks

    def _routed(self) -> RoutedExperts | None:
        return None if self.experts is None else routed_experts(self.experts, "embedded")

    def _chunk(self, start: int, stop: int, version: int) -> TokenChunk:
        ids = self.tokens[self.prompt_length + start : self.prompt_length + stop]
        return TokenChunk(token_ids=ids, logprobs=self.logprobs[start:stop], policy_version=version, cached_tokens=self.cached)
