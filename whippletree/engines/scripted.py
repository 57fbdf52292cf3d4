"""An engine without a model: answers from a seeded random distribution or a script. For tests and dry runs.

It lives in the process that makes it; scripted_server.py serves it over HTTP.

The distribution of the next token depends on the seed, the weights' directory and the last two tokens only, so it is cheap,
and `score` agrees with what was sampled. A script decides the ids; their logprobs are still those of the distribution.

Invariants (tests/engines/test_scripted.py and the shared suite):
- without faults it obeys the engine suite that real engines obey;
- each fault of `Faults` does what its docstring says and nothing else.
"""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from whippletree.engines.config import Faults, ScriptedConfig
from whippletree.engines.script_file import load_script
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable
from whippletree.types import (
    EngineReport,
    EngineStatus,
    GenerateRequest,
    Sampling,
    TokenChunk,
    WeightUpdate,
)

Script = Callable[[Sequence[int]], Sequence[int]]
Float64 = npt.NDArray[np.float64]

SHARPNESS = 2.0
"""Standard deviation of the logits."""

REMEMBERED = 256
"""Sequences that count as cached."""

KEPT_LOGPROBS = 4_000_000
"""Entries of the distributions that are kept, so that a long answer or a repeated script is cheap."""

__all__ = ["Faults", "Script", "ScriptedEngine"]


class ScriptedEngine:
    """Engine protocol in process. `script` is a function prompt ids → answer ids, or answers that are used up in order."""

    name = "scripted"

    def __init__(
        self,
        script: Script | Sequence[Sequence[int]] | None = None,
        *,
        vocabulary: int = 512,
        context: int = 1024,
        seed: int = 0,
        faults: Faults | None = None,
        model: str = "policy",
        name: str = "",
        chunk_tokens: int = 1,
    ) -> None:
        """`chunk_tokens`: tokens given out at once, the last ones excepted."""
        self.name = name or self.name
        self.faults = faults or Faults()
        self.model = model
        self.vocabulary = vocabulary
        self._context = context
        self._seed = seed
        self._script: Script | None = script if callable(script) else _in_order(script) if script is not None else None
        self.policy_version = 0
        self._directory = ""
        self._going = asyncio.Event()
        self._going.set()
        self._running: dict[str, bool] = {}  # request id → aborted
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._distributions: OrderedDict[tuple[float, str, int, int], Float64] = OrderedDict()
        self._chunk_tokens = chunk_tokens

    @classmethod
    def configured(cls, config: ScriptedConfig, *, name: str = "") -> ScriptedEngine:
        """The engine that a configuration describes. Raises ConfigurationError when its script cannot be used."""
        script = load_script(config)
        answers = script.repeated() if config.repeat else script.answers
        return cls(
            answers if script.answers else None,
            vocabulary=script.vocabulary,
            context=config.context,
            seed=config.seed,
            faults=config.faults,
            model=config.name,
            name=name,
            chunk_tokens=config.chunk_tokens,
        )

    # --- Engine ---

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Sample one turn (see protocols.Engine)."""
        if request.request_id in self._running:
            raise EngineError(f"scripted: request id {request.request_id} is already in flight", "give each request its own id")
        self._check(request.prompt_ids)
        self._running[request.request_id] = False
        try:
            await self._fail_first()
            async for chunk in self._turn(request):
                yield self._spoil(chunk)
        finally:
            del self._running[request.request_id]

    async def abort(self, request_id: str) -> None:
        """End a request; its last chunk has finish_reason "abort"."""
        if request_id in self._running:
            self._running[request_id] = True

    async def pause(self) -> None:
        """Sample nothing until `resume`."""
        self._going.clear()

    async def resume(self) -> None:
        """Go on sampling."""
        self._going.set()

    async def update_weights(self, update: WeightUpdate) -> None:
        """Another directory is another distribution; nothing is read from it."""
        self._directory = update.directory
        self.policy_version = update.policy_version
        self._seen.clear()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of token_ids[1:] at temperature 1 (length len - 1)."""
        ids = list(token_ids)
        if len(ids) < 2:
            return []
        self._check(ids)
        return [float(self._logprobs(ids[:index], 1.0)[ids[index]]) for index in range(1, len(ids))]

    async def status(self) -> EngineStatus:
        """What the engine says of itself."""
        return EngineStatus(
            name=self.name,
            model=self.model,
            policy_version=self.policy_version,
            context_length=self._context,
            paused=not self._going.is_set(),
            running=len(self._running),
        )

    async def probe(self) -> EngineReport:
        """Grade it by measurement, like any other engine; faults show."""
        from whippletree.engines.probe import probe_engine

        return await probe_engine(self)

    async def close(self) -> None:
        """Nothing to close."""

    # --- inside ---

    def _check(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise EngineError("scripted: the prompt is empty", "give at least one token id")
        if min(prompt) < 0 or max(prompt) >= self.vocabulary:
            raise EngineError(f"scripted: a token id is outside 0..{self.vocabulary - 1}", "use ids of its vocabulary")
        if len(prompt) >= self._context:
            raise ContextOverflow(
                f"scripted: {len(prompt)} prompt tokens leave no room in a context of {self._context}", "shorten the prompt"
            )

    async def _fail_first(self) -> None:
        faults = self.faults
        if faults.unavailable > 0:
            self.faults = replace(faults, unavailable=faults.unavailable - 1)
            raise EngineUnavailable("scripted: unavailable, as its faults say", "retry")
        if faults.broken > 0:
            self.faults = replace(faults, broken=faults.broken - 1)
            raise EngineError("scripted: broken, as its faults say", "nothing; this is a test")
        if faults.first_token_seconds:
            await asyncio.sleep(faults.first_token_seconds)

    async def _turn(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        sampling = request.sampling
        tokens = list(request.prompt_ids)
        seed = f"{self._seed}:{request.request_id}" if sampling.seed is None else sampling.seed
        uniforms = random.Random(seed)
        answer = None if self._script is None else list(self._script(request.prompt_ids))
        if answer == []:
            raise EngineError("scripted: the script gave an empty answer", "an answer has at least one id, the stop id say")
        limit = min(sampling.max_tokens, self._context - len(tokens))
        cached = self._cached(tokens)
        ids: list[int] = []
        values: list[float] = []
        for count in range(1, limit + 1):
            await self._tick(request.request_id)
            if self._running[request.request_id]:
                yield self._chunk(ids, values, "abort", cached)
                return
            logprobs = self._logprobs(tokens, sampling.temperature or 1.0)
            token = self._draw(logprobs, sampling, uniforms) if answer is None else answer.pop(0)
            tokens.append(token)
            ids.append(token)
            values.append(float(logprobs[token]))
            stops = token in request.stop_token_ids or answer == []
            reason = "stop" if stops else "length" if count == limit else None
            if reason is not None:
                self._remember(tokens[:-1])
            fault = None if reason is not None else self._fail_midway(count)
            if reason is not None or fault is not None or len(ids) >= self._chunk_tokens:
                yield self._chunk(ids, values, reason, cached)
                ids, values = [], []
            if fault is not None:
                raise fault
            if reason is not None:
                return

    def _fail_midway(self, count: int) -> EngineError | None:
        """The error that a stream has after `count` tokens, as the faults say."""
        faults = self.faults
        if count == faults.reset_after:
            if faults.resets:
                self.faults = replace(faults, resets=faults.resets - 1, reset_after=count if faults.resets > 1 else 0)
            return EngineUnavailable(f"scripted: the stream broke after {count} tokens, as its faults say", "retry")
        if count == faults.error_after:
            if faults.errors:
                self.faults = replace(faults, errors=faults.errors - 1, error_after=count if faults.errors > 1 else 0)
            return EngineError(f"scripted: failed after {count} tokens, as its faults say", "nothing; this is a test")
        return None

    async def _tick(self, request_id: str) -> None:
        """Let others run, and wait while paused unless this request is aborted."""
        await asyncio.sleep(self.faults.token_seconds)
        while not self._going.is_set() and not self._running[request_id]:
            try:
                await asyncio.wait_for(self._going.wait(), 0.02)
            except TimeoutError:
                continue

    def _chunk(self, ids: list[int], logprobs: list[float], reason: str | None, cached: int) -> TokenChunk:
        return TokenChunk(
            token_ids=ids,
            logprobs=logprobs,
            policy_version=self.policy_version,
            finish_reason=reason,  # type: ignore[arg-type]
            cached_tokens=cached if reason is not None else 0,
        )

    def _spoil(self, chunk: TokenChunk) -> TokenChunk:
        faults = self.faults
        if faults.drop_ids:
            return replace(chunk, token_ids=[])
        if faults.no_logprobs:
            return replace(chunk, logprobs=[])
        return chunk

    def _logprobs(self, tokens: Sequence[int], temperature: float) -> Float64:
        """Log-distribution of the token after `tokens`: [vocabulary]."""
        known = (temperature, self._directory, tokens[-2] if len(tokens) > 1 else -1, tokens[-1])
        if known in self._distributions:
            return self._distributions[known]
        key = f"{self._seed}:{self._directory}:{list(tokens[-2:])}".encode()
        logits = np.random.default_rng(zlib.crc32(key)).normal(scale=SHARPNESS, size=self.vocabulary) / temperature
        shifted: Float64 = logits - logits.max()
        distribution: Float64 = shifted - math.log(float(np.exp(shifted).sum()))
        self._distributions[known] = distribution
        while len(self._distributions) * self.vocabulary > KEPT_LOGPROBS:
            self._distributions.popitem(last=False)
        return distribution

    @staticmethod
    def _draw(logprobs: Float64, sampling: Sampling, uniforms: random.Random) -> int:
        uniform = uniforms.random()
        if sampling.temperature == 0.0:
            return int(logprobs.argmax())
        order = np.argsort(-logprobs, kind="stable")
        mass = np.exp(logprobs[order])
        if 0 < sampling.top_k < len(mass):
            mass[sampling.top_k :] = 0.0
        mass[np.cumsum(mass) - mass >= sampling.top_p * mass.sum()] = 0.0
        cumulative = np.cumsum(mass)
        index = int(np.searchsorted(cumulative, uniform * cumulative[-1] * (1.0 - 2.0**-52), side="right"))
        return int(order[index])

    def _cached(self, tokens: Sequence[int]) -> int:
        """Longest prefix of `tokens`, shorter than they are, that an earlier turn has computed."""
        best = 0
        for seen in self._seen:
            limit = min(len(seen), len(tokens) - 1)
            length = next((i for i in range(limit) if seen[i] != tokens[i]), limit)
            best = max(best, length)
        return best

    def _remember(self, tokens: Sequence[int]) -> None:
        self._seen[tuple(tokens)] = None
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)


def _in_order(answers: Sequence[Sequence[int]]) -> Script:
    """A script that gives these answers one after another, whatever the prompt."""
    left = iter(answers)

    def script(prompt_ids: Sequence[int]) -> Sequence[int]:
        answer = next(left, None)
        if answer is None:
            raise EngineError(f"scripted: all {len(answers)} answers are used up", "give the script more answers")
        return answer

    return script
