"""Grading engines by measurement, and catching weights that are not the learner's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_parts import Replay, recording, serving

from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.probe import Draw, Measurement, check_weights, decide, probe_engine
from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable, WeightMismatch
from whippletree.types import GenerateRequest, TokenChunk, WeightUpdate


def draws(logits: Sequence[float], temperature: float, *, raw: bool, noise: float = 0.0) -> tuple[Draw, ...]:
    """Every token of a small vocabulary once, with exact logprobs and alternating noise."""

    def logprob(token: int, divisor: float) -> float:
        return logits[token] / divisor - math.log(sum(math.exp(logit / divisor) for logit in logits))

    return tuple(
        Draw(
            token_id=token,
            returned=logprob(token, 1.0 if raw else temperature) + noise * (-1) ** token,
            score=logprob(token, 1.0),
        )
        for token in range(len(logits))
    )


class RawEngine(ScriptedEngine):
    """Returns logprobs of the logits before the temperature, as servers in raw mode do."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        ids = list(request.prompt_ids)
        async for chunk in super().generate(request):
            ids += chunk.token_ids
            scores = (await self.score(ids))[-len(chunk.token_ids) :] if chunk.token_ids else []
            yield TokenChunk(token_ids=chunk.token_ids, logprobs=scores, policy_version=0, finish_reason=chunk.finish_reason)


class ShiftedEngine(ScriptedEngine):
    """Returns logprobs that belong to other ids."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in super().generate(request):
            wrong = [(token + 1) % 512 for token in chunk.token_ids]
            yield TokenChunk(token_ids=wrong, logprobs=chunk.logprobs, policy_version=0, finish_reason=chunk.finish_reason)


# --- deciding ---


@given(
    st.lists(st.floats(-8, 8), min_size=3, max_size=9).filter(lambda xs: max(xs) - min(xs) > 1.5),
    st.sampled_from([2.0, 8.0, 0.5]),
    st.booleans(),
)
def test_raw_and_processed_are_told_apart_under_noise(logits: list[float], temperature: float, raw: bool) -> None:
    measured = Measurement(
        sampled=8, agreement=0.01, temperature=temperature, draws=draws(logits, temperature, raw=raw, noise=0.02)
    )
    report = decide(measured, tolerance=0.1)
    assert report.grade == "tokens"
    assert report.logprobs == ("raw" if raw else "processed")


def test_numbers_that_fit_neither_or_cannot_tell_are_below_tokens() -> None:
    neither = draws([0.0, 2.0, 4.0], 2.0, raw=True, noise=1.0)
    alike = draws([1.0, 1.0, 1.0], 2.0, raw=True)
    single = draws([0.0, 2.0, 4.0], 2.0, raw=True)[:1] * 8
    for numbers in (neither, alike, single):
        report = decide(Measurement(sampled=8, agreement=0.0, temperature=2.0, draws=numbers), tolerance=0.1)
        assert (report.grade, report.logprobs) == ("logprobs", "none")


@pytest.mark.parametrize("agreement", [0.5, math.nan, math.inf])
def test_ids_that_disagree_with_their_scores_are_text(agreement: float) -> None:
    numbers = draws([0.0, 2.0, 4.0], 2.0, raw=False)
    assert decide(Measurement(sampled=8, agreement=agreement, temperature=2.0, draws=numbers), 0.1).grade == "text"


def test_nothing_sampled_is_no_grade() -> None:
    assert decide(Measurement(sampled=0, agreement=0.0, temperature=2.0, draws=()), 0.1).grade == "none"


# --- probing ---


async def test_an_engine_with_processed_logprobs_can_be_trained_on() -> None:
    report = await probe_engine(ScriptedEngine(seed=3))
    assert (report.grade, report.logprobs) == ("tokens", "processed")


async def test_an_engine_with_raw_logprobs_is_found_out() -> None:
    report = await probe_engine(RawEngine(seed=3))
    assert (report.grade, report.logprobs) == ("tokens", "raw")


async def test_logprobs_of_other_ids_are_found_out() -> None:
    assert (await probe_engine(ShiftedEngine(seed=3))).grade == "text"


async def test_missing_ids_or_logprobs_lower_the_grade() -> None:
    assert (await probe_engine(ScriptedEngine(faults=Faults(drop_ids=True)))).grade == "logprobs"
    assert (await probe_engine(ScriptedEngine(faults=Faults(no_logprobs=True)))).grade == "text"


async def test_an_engine_that_is_away_is_not_graded() -> None:
    with pytest.raises(EngineUnavailable):
        await probe_engine(ScriptedEngine(faults=Faults(unavailable=1)))


async def test_an_engine_that_only_fails_has_no_grade() -> None:
    report = await probe_engine(ScriptedEngine(faults=Faults(broken=1)))
    assert report.grade == "none"
    assert report.detail


@pytest.mark.parametrize(
    ("name", "grade"),
    [
        ("completion_without_ids", "logprobs"),
        ("completion_without_logprobs", "text"),
        ("completion_text_only", "text"),
        ("completion_unknown_model", "none"),
    ],
)
async def test_servers_that_send_less_are_graded_by_what_they_send(name: str, grade: str) -> None:
    async with serving(Replay({"/v1/completions": recording(name)}).handle) as url:
        engine = CompletionsEngine(url)
        report = await engine.probe()
        await engine.close()
    assert (report.grade, report.logprobs) == (grade, "none")
    assert report.detail


# --- checking weights ---


async def test_the_learners_weights_pass_and_the_largest_difference_is_returned() -> None:
    engine = ScriptedEngine(seed=1)
    ids = [5, 9, 2, 40, 7]
    expected = await engine.score(ids)
    expected[2] += 0.004
    assert await check_weights(engine, ids, expected, tolerance=0.01) == pytest.approx(0.004)
    with pytest.raises(WeightMismatch, match=r"0\.004"):
        await check_weights(engine, ids, expected, tolerance=0.001)


async def test_other_weights_are_a_mismatch() -> None:
    engine = ScriptedEngine(seed=1)
    ids = [5, 9, 2, 40, 7]
    expected = await engine.score(ids)
    await engine.update_weights(WeightUpdate(directory="elsewhere", policy_version=1))
    with pytest.raises(WeightMismatch):
        await check_weights(engine, ids, expected, tolerance=0.01)


async def test_what_is_not_finite_is_a_mismatch() -> None:
    engine = ScriptedEngine(seed=1)
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(WeightMismatch):
            await check_weights(engine, [5, 9, 2], [-1.0, value], tolerance=100.0)


async def test_a_check_that_compares_nothing_is_an_error() -> None:
    engine = ScriptedEngine(seed=1)
    for ids, expected in (([5], []), ([5, 9, 2], [-1.0])):
        with pytest.raises(EngineError, match="expected logprobs") as caught:
            await check_weights(engine, ids, expected, tolerance=1.0)
        assert not isinstance(caught.value, WeightMismatch)
