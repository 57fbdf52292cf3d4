"""The scripted engine obeys the shared suite, follows its script and fails as its faults say."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from suite import EngineSuite, Served, prompt_of, request, run, scored

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.protocols import Engine


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    yield ScriptedEngine(vocabulary=256, context=512)


@pytest.fixture
def served() -> Served:
    return Served(vocabulary=256, context=512, old="", new="other", tolerance=1e-6)


class TestScriptedSuite(EngineSuite):
    """Every behaviour of the suite."""


async def test_a_script_decides_the_ids_and_score_agrees_with_its_logprobs() -> None:
    engine = ScriptedEngine(lambda prompt: [prompt[-1] + 1, 2], vocabulary=64)
    turn = await run(engine, request("a", [5, 6], stop=[2]))
    assert (turn.token_ids, turn.finish_reason) == ([7, 2], "stop")
    assert turn.logprobs == await scored(engine, turn)


async def test_listed_answers_are_used_in_order_and_running_out_is_an_error() -> None:
    engine = ScriptedEngine([[3], [4, 5]])
    assert (await run(engine, request("a", [1]))).token_ids == [3]
    assert (await run(engine, request("b", [1]))).token_ids == [4, 5]
    with pytest.raises(EngineError, match="used up"):
        await run(engine, request("c", [1]))


async def test_the_length_limit_cuts_a_script() -> None:
    turn = await run(ScriptedEngine([[3, 4, 5]]), request("a", [1], max_tokens=2))
    assert (turn.token_ids, turn.finish_reason) == ([3, 4], "length")


async def test_an_empty_answer_is_an_error() -> None:
    with pytest.raises(EngineError, match="empty answer"):
        await run(ScriptedEngine([[]]), request("a", [1]))


async def test_unavailable_and_broken_requests_come_first_and_are_counted() -> None:
    engine = ScriptedEngine(faults=Faults(unavailable=1, broken=1))
    with pytest.raises(EngineUnavailable):
        await run(engine, request("a", [1], max_tokens=1))
    with pytest.raises(EngineError) as raised:
        await run(engine, request("a", [1], max_tokens=1))
    assert not isinstance(raised.value, EngineUnavailable)
    assert (await run(engine, request("a", [1], max_tokens=1))).finish_reason == "length"


async def test_a_stream_breaks_after_the_given_tokens() -> None:
    engine = ScriptedEngine(faults=Faults(reset_after=3))
    seen: list[int] = []
    with pytest.raises(EngineUnavailable):
        async for chunk in engine.generate(request("a", [1], max_tokens=8)):
            seen += chunk.token_ids
    assert len(seen) == 3
    assert (await engine.status()).running == 0


@pytest.mark.parametrize(
    ("faults", "counts", "grade"), [(Faults(drop_ids=True), (0, 1), "logprobs"), (Faults(no_logprobs=True), (1, 0), "text")]
)
async def test_missing_columns_are_graded_down(faults: Faults, counts: tuple[int, int], grade: str) -> None:
    engine = ScriptedEngine(faults=faults)
    chunks = [chunk async for chunk in engine.generate(request("a", [1], max_tokens=1))]
    assert (len(chunks[0].token_ids), len(chunks[0].logprobs)) == counts
    assert (await engine.probe()).grade == grade


async def test_slowness_delays_and_changes_nothing() -> None:
    slow = ScriptedEngine(faults=Faults(first_token_seconds=0.02, token_seconds=0.001))
    asked = request("a", prompt_of(4), max_tokens=4)
    assert (await run(slow, asked)).token_ids == (await run(ScriptedEngine(), asked)).token_ids
