"""Grade an engine by measurement, and check after a weight sync that it serves the learner's weights.

Deciding is pure (`decide`); `probe_engine` and `check_weights` only ask the engine for numbers.

How raw and processed logprobs are told apart: sample single tokens after one prompt at temperature T ≠ 1. For token i let r_i
be its logprob at temperature 1 (from `score`) and l_i the returned one. Raw: l_i - r_i = 0 for all i. Processed:
l_i = r_i / T - log Σ exp(r / T), so l_i - r_i / T is one constant for all i. At least two different tokens are needed.

Invariants (tests/engines/test_completions_probe.py):
- grade "tokens" is given only when ids and logprobs came, one each, and agree with the engine's own scores;
- raw or processed is never assumed: when the numbers fit neither, or cannot tell, the grade is below "tokens";
- check_weights returns the largest absolute difference; above the tolerance, or when it is not finite, WeightMismatch.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable, WeightMismatch
from whippletree.protocols import Engine
from whippletree.types import EngineReport, GenerateRequest, Sampling, Struct

PROBE_PROMPT = (10, 11, 12, 13, 14, 15)
PROBE_TEMPERATURES = (2.0, 8.0)  # the second for models so sure of themselves that the first gives one token only
PROBE_DRAWS = 8
PROBE_TOKENS = 8


class Observation(Struct):
    """What an engine sent for one turn, unchecked: any text, how many ids, how many logprobs.

    Example: Observation(text=True, token_ids=8, logprobs=8)
    """

    text: bool
    token_ids: int
    logprobs: int


@runtime_checkable
class Observable(Protocol):
    """An engine that can say what it receives even where `generate` refuses it."""

    async def observe(self, request: GenerateRequest) -> Observation:
        """One turn, unchecked."""
        ...


class Draw(Struct):
    """One token sampled after the probe's prompt: its id, the logprob returned with it, its score at temperature 1.

    Example: Draw(token_id=5, returned=-1.2, score=-2.1)
    """

    token_id: int
    returned: float
    score: float


class Measurement(Struct):
    """All numbers that the decision needs. `agreement` is the mean |returned - score| of a turn sampled at temperature 1.

    Example: Measurement(sampled=8, agreement=0.0, temperature=2.0, draws=(Draw(...), Draw(...)))
    """

    sampled: int
    agreement: float
    temperature: float
    draws: tuple[Draw, ...]


def decide(measured: Measurement, tolerance: float) -> EngineReport:
    """Grade an engine that returned ids and logprobs. `tolerance` is in nats, for the engine's own numerical noise."""
    if measured.sampled == 0:
        return EngineReport(grade="none", logprobs="none", detail="nothing was sampled")
    if not measured.agreement <= tolerance:
        return EngineReport(
            grade="text",
            logprobs="none",
            detail=f"at temperature 1, logprobs differ from the engine's own scores by {measured.agreement:.3g} on average",
        )
    if len({draw.token_id for draw in measured.draws}) < 2:
        detail = f"one token only at temperature {measured.temperature:g}: raw and processed logprobs cannot be told apart"
        return EngineReport(grade="logprobs", logprobs="none", detail=detail)
    raw = max(abs(draw.returned - draw.score) for draw in measured.draws)
    shifts = [draw.returned - draw.score / measured.temperature for draw in measured.draws]
    processed = (max(shifts) - min(shifts)) / 2
    detail = (
        f"{measured.sampled} tokens agree with their scores to {measured.agreement:.2g}; "
        f"at temperature {measured.temperature:g} raw misses by {raw:.2g}, processed by {processed:.2g}"
    )
    if processed <= tolerance and processed * 4 < raw:
        return EngineReport(grade="tokens", logprobs="processed", detail=detail)
    if raw <= tolerance and raw * 4 < processed:
        return EngineReport(grade="tokens", logprobs="raw", detail=detail)
    return EngineReport(grade="logprobs", logprobs="none", detail=f"{detail}: it is neither")


def grade_unaligned(seen: Observation, reason: str) -> EngineReport:
    """Grade an engine whose turns `generate` refuses."""
    if seen.logprobs and not seen.token_ids:
        return EngineReport(grade="logprobs", logprobs="none", detail=f"logprobs without token ids: {reason}")
    if seen.text or seen.token_ids:
        return EngineReport(grade="text", logprobs="none", detail=f"no logprob for each token id: {reason}")
    return EngineReport(grade="none", logprobs="none", detail=reason)


async def probe_engine(engine: Engine, *, prompt_ids: Sequence[int] = PROBE_PROMPT, tolerance: float = 0.1) -> EngineReport:
    """Measure and grade. `prompt_ids` must be ids of the model's vocabulary; `tolerance` (nats) suits bfloat16 engines.

    Raises EngineUnavailable when the engine does not answer, ContextOverflow when not even the probe fits.
    """
    prompt = list(prompt_ids)
    name = f"probe-{uuid.uuid4().hex[:8]}"  # other processes may probe the same engine at the same time
    request = GenerateRequest(request_id=f"{name}-turn", prompt_ids=prompt, sampling=Sampling(max_tokens=PROBE_TOKENS, seed=0))
    try:
        ids, logprobs, experts = await _sample(engine, request)
    except (EngineUnavailable, ContextOverflow):
        raise
    except EngineError as error:
        report = await _grade_refused(engine, request, error)
    else:
        report = replace(await _grade(engine, request, (ids, logprobs), tolerance), experts=experts)
    return replace(report, context_length=await _context_length(engine))


async def _context_length(engine: Engine) -> int:
    """In tokens; 0 where the engine does not say."""
    try:
        return (await engine.status()).context_length
    except EngineUnavailable:
        raise
    except EngineError:
        return 0


async def _grade(
    engine: Engine, request: GenerateRequest, turn: tuple[list[int], list[float]], tolerance: float
) -> EngineReport:
    """Grade an engine that gave `turn`, ids and logprobs, for `request`."""
    prompt, (ids, logprobs) = list(request.prompt_ids), turn
    if len(ids) != len(logprobs):
        seen = Observation(text=False, token_ids=len(ids), logprobs=len(logprobs))
        return grade_unaligned(seen, f"{len(ids)} ids came with {len(logprobs)} logprobs")
    if not ids:
        return EngineReport(grade="none", logprobs="none", detail="nothing was sampled")
    try:
        scores = (await engine.score(prompt + ids))[-len(ids) :]
        agreement = sum(abs(a - b) for a, b in zip(logprobs, scores, strict=True)) / len(ids)
        temperature, draws = await _draws(engine, prompt, request.request_id)
    except (EngineUnavailable, ContextOverflow):
        raise
    except EngineError as error:
        return EngineReport(
            grade="logprobs", logprobs="none", detail=f"the engine cannot score ids, so nothing is known: {error}"
        )
    return decide(Measurement(sampled=len(ids), agreement=agreement, temperature=temperature, draws=draws), tolerance)


async def check_weights(
    engine: Engine, token_ids: Sequence[int], expected_logprobs: Sequence[float], tolerance: float
) -> float:
    """Largest |engine's logprob - expected| over token_ids[1:], at temperature 1. Raises WeightMismatch above `tolerance`.

    `expected_logprobs` are the learner's, length len(token_ids) - 1. Called after each weight sync, on every backend.
    """
    scores = await engine.score(token_ids)
    if not scores or len(scores) != len(expected_logprobs):
        raise EngineError(
            f"{engine.name}: {len(scores)} scores for {len(expected_logprobs)} expected logprobs",
            "check with at least two ids and one expected logprob for each id but the first",
        )
    differences = [abs(a - b) for a, b in zip(scores, expected_logprobs, strict=True)]
    worst = math.inf if any(map(math.isnan, differences)) else max(differences)
    if worst > tolerance:
        raise WeightMismatch(
            f"{engine.name} does not serve the learner's weights: logprobs of a known prompt differ by up to {worst:.3g}"
            f" (tolerance {tolerance:g})",
            "stop the run and restart the engine from the last checkpoint; samples since the last good sync are suspect",
        )
    return worst


async def _grade_refused(engine: Engine, request: GenerateRequest, error: EngineError) -> EngineReport:
    if not isinstance(engine, Observable):
        return EngineReport(grade="none", logprobs="none", detail=str(error))
    try:
        seen = await engine.observe(request)
    except (EngineUnavailable, ContextOverflow):
        raise
    except EngineError as again:
        return EngineReport(grade="none", logprobs="none", detail=str(again))
    return grade_unaligned(seen, error.cause)


async def _draws(engine: Engine, prompt: list[int], name: str) -> tuple[float, tuple[Draw, ...]]:
    """Single tokens at a temperature that gives at least two different ones, with their scores at temperature 1."""
    draws: tuple[Draw, ...] = ()
    for temperature in PROBE_TEMPERATURES:
        requests = [
            GenerateRequest(
                request_id=f"{name}-{temperature:g}-{seed}",
                prompt_ids=prompt,
                sampling=Sampling(temperature=temperature, max_tokens=1, seed=seed),
            )
            for seed in range(PROBE_DRAWS)
        ]
        draws = tuple(await asyncio.gather(*(_draw(engine, request) for request in requests)))
        if len({draw.token_id for draw in draws}) > 1:
            return temperature, draws
    return PROBE_TEMPERATURES[-1], draws


async def _draw(engine: Engine, request: GenerateRequest) -> Draw:
    ids, logprobs, _ = await _sample(engine, request)
    if len(ids) != 1 or len(logprobs) != 1:
        raise EngineError(f"{engine.name}: {len(ids)} tokens instead of 1", "check max_tokens handling of the server")
    return Draw(token_id=ids[0], returned=logprobs[0], score=(await engine.score([*request.prompt_ids, *ids]))[-1])


async def _sample(engine: Engine, request: GenerateRequest) -> tuple[list[int], list[float], bool]:
    ids: list[int] = []
    logprobs: list[float] = []
    experts = False
    async for chunk in engine.generate(request):
        ids += chunk.token_ids
        logprobs += chunk.logprobs
        experts = experts or chunk.experts is not None
    return ids, logprobs, experts
