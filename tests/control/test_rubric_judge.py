"""Asking a judge over a real socket: votes, faults, limits, and what is not asked twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge_parts import judging, points, rubric, shown

from whippletree.control.rubrics import judge as judge_module
from whippletree.control.rubrics.config import RubricConfig
from whippletree.control.rubrics.judge import Judge
from whippletree.control.rubrics.prompt import Evidence, Part
from whippletree.control.rubrics.replies import Replies
from whippletree.errors import ConfigurationError, VerifierError
from whippletree.types import RubricScore


def evidence(*texts: str) -> list[Evidence]:
    return [Evidence(instruction="Say hello.", parts=(Part(title="last message", text=text),)) for text in texts]


async def ask(path: Path, settings: RubricConfig, *texts: str, seed: str = "g1") -> list[RubricScore]:
    with Replies(path / "rubrics.sqlite") as replies:
        judge = Judge(settings, replies)
        try:
            return [score for score, _ in await judge.scores(evidence(*texts), settings.criteria, seed=seed)]
        finally:
            await judge.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "FIRST_DELAY", 0.01)


async def test_the_request_is_the_rubrics(tmp_path: Path) -> None:
    async with judging(points(hello=4)) as server:
        settings = rubric(server.url, temperature=0.25, max_tokens=77, votes=2)
        (score,) = await ask(tmp_path, settings, "hello")
    first, second = sorted(server.asked, key=lambda body: body["seed"])
    assert (first["model"], first["temperature"], first["max_tokens"], first["seed"], second["seed"]) == (
        "judge-1",
        0.25,
        77,
        0,
        1,
    )
    assert first["response_format"]["json_schema"]["schema"]["properties"].keys() == {"A"}
    assert (score.score, score.votes, len(score.requests), score.cached) == (1.0, (1.0, 1.0), 2, False)


@pytest.mark.parametrize(("combine", "expected"), [("mean", 0.5), ("median", 0.25)])
async def test_votes_are_combined(tmp_path: Path, combine: str, expected: float) -> None:
    async with judging(points()) as server:
        server.faults = [json.dumps({"good": number}) for number in (1, 1, 4)]
        (score,) = await ask(tmp_path, rubric(server.url, votes=3, combine=combine, at_once=1), "hello")
    assert score.score == expected and sorted(score.votes) == [0.25, 0.25, 1.0]


@pytest.mark.parametrize(
    "fault",
    [
        500,
        503,
        (429, {"Retry-After": "0"}),
        "drop",
        "no JSON at all",
        json.dumps({"A": {"bad": 1}}),
        json.dumps({"A": {"good": 5}}),
        json.dumps({"B": {"good": 1}}),
        json.dumps({"A": {"good": 1}})[:-4],
    ],
    ids=str,
)
async def test_a_fault_is_outlived(tmp_path: Path, fault: object) -> None:
    async with judging(points(hello=3)) as server:
        server.faults = [fault, fault]
        (score,) = await ask(tmp_path, rubric(server.url), "hello")
        again = await ask(tmp_path, rubric(server.url), "hello")
    assert score.score == 0.75 and len(server.asked) == 3
    assert (again[0].score, again[0].cached) == (0.75, True)


async def test_an_unusable_answer_is_told_to_the_judge_with_what_is_wrong(tmp_path: Path) -> None:
    async with judging(points(hello=3)) as server:
        server.faults = ['{"A": {"good": 9}}']
        await ask(tmp_path, rubric(server.url), "hello")
    said = [message["content"] for message in server.asked[1]["messages"]][2:]
    assert said[0] == '{"A": {"good": 9}}'
    assert "the points for good are not from 0 to 4" in said[1]


async def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    async with judging(points(hello=3)) as server:
        server.faults = [(429, {"Retry-After": "1"})]
        began = time.monotonic()
        await ask(tmp_path, rubric(server.url), "hello")
    assert time.monotonic() - began >= 1.0


async def test_an_endpoint_that_refuses_schemas_is_asked_without_from_then_on(tmp_path: Path) -> None:
    async with judging(points(hello=3, hi=1)) as server:
        stream = server._stream

        async def strict(request: Any, text: str) -> Any:
            if "response_format" in server.asked[-1]:
                from aiohttp import web

                return web.json_response({"error": {"message": "response_format is not supported"}}, status=400)
            return await stream(request, text)

        server._stream = strict  # type: ignore[method-assign]
        scores = await ask(tmp_path, rubric(server.url, at_once=1, votes=2), "hello")
    assert scores[0].score == 0.75
    assert ["response_format" in body for body in server.asked] == [True, False, False]


@pytest.mark.parametrize(
    ("fault", "settings", "said", "asked"),
    [
        ("I would rather not.", {"tries": 2}, "2 answers of the judge were unusable: there is no JSON object", 2),
        ((401, {}), {}, "the judge refuses the question: .*401", 2),
        (503, {"limit": 3.0}, "no usable answer within 3 s; the last trouble: .*503", None),
    ],
)
async def test_a_judge_that_fails_gives_no_score_and_says_why(
    tmp_path: Path, fault: object, settings: dict[str, Any], said: str, asked: int | None
) -> None:
    async with judging(points(hello=3)) as server:
        server.faults = [fault] * 99
        with pytest.raises(VerifierError, match=said):
            await ask(tmp_path, rubric(server.url, **settings), "hello")
    assert asked is None or len(server.asked) == asked


async def test_an_absent_judge_gives_no_score(tmp_path: Path, unused_tcp_port: int) -> None:
    with pytest.raises(VerifierError, match="no usable answer within 3 s; the last trouble"):
        await ask(tmp_path, rubric(f"http://127.0.0.1:{unused_tcp_port}/v1", limit=3.0), "hello")


async def test_a_question_that_is_too_long_is_not_asked_again(tmp_path: Path) -> None:
    async with judging(points(hello=3)) as server:

        async def full(request: Any, text: str) -> Any:
            from aiohttp import web

            message = "This model's maximum context length is 10 tokens"
            return web.json_response({"error": {"message": message, "code": "context_length_exceeded"}}, status=400)

        server._stream = full  # type: ignore[method-assign]
        with pytest.raises(VerifierError, match="too long for the judge"):
            await ask(tmp_path, rubric(server.url), "hello")
    assert len(server.asked) == 1


async def test_no_more_tokens_than_allowed_are_used(tmp_path: Path) -> None:
    async with judging(points(hello=3)) as server:
        settings = rubric(server.url, most_tokens=200)
        for text in ("one", "two"):
            await ask(tmp_path, settings, text)  # 110 tokens each
        with pytest.raises(VerifierError, match=r"has used 220 tokens .*most_tokens \(200\)"):
            await ask(tmp_path, settings, "three")
        assert (await ask(tmp_path, settings, "one"))[0].cached  # what is known costs nothing
    assert len(server.asked) == 2


async def test_what_is_being_asked_is_not_asked_again(tmp_path: Path) -> None:
    async with judging(points(hello=3)) as server:
        settings = rubric(server.url)
        with Replies(tmp_path / "r.sqlite") as replies:
            judge = Judge(settings, replies)
            found = await asyncio.gather(
                *(judge.scores(evidence("hello"), settings.criteria, seed=str(number)) for number in range(5))
            )
            await judge.close()
    assert len(server.asked) == 1
    assert sorted(scores[0][0].cached for scores in found) == [False, True, True, True, True]


async def test_no_more_requests_are_in_flight_than_allowed(tmp_path: Path) -> None:
    here = most = 0
    async with judging(points()) as server:
        stream = server._stream

        async def counted(request: Any, text: str) -> Any:
            nonlocal here, most
            here += 1
            most = max(most, here)
            await asyncio.sleep(0.02)
            here -= 1
            return await stream(request, text)

        server._stream = counted  # type: ignore[method-assign]
        await ask(tmp_path, rubric(server.url, votes=6, at_once=2), "hello")
    assert most == 2 and len(server.asked) == 6


def placed(say: Callable[[dict[str, str]], object]) -> Callable[[str], str]:
    return lambda question: json.dumps(say({name: one["last message"] for name, one in shown(question).items()}))


async def test_the_order_of_a_group_is_shuffled_by_its_seed_and_undone(tmp_path: Path) -> None:
    texts = [f"{number}" for number in range(5)]
    orders = []

    def say(told: dict[str, str]) -> object:
        orders.append(list(told.values()))
        return {name: {"good": int(text)} for name, text in told.items()}

    async with judging(placed(say)) as server:
        settings = rubric(server.url, group_wise=True, explain=False)
        for seed in ("g1", "g2", "g1"):
            scores = await ask(tmp_path, settings, *texts, seed=seed)
            assert [score.score for score in scores] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(orders) == 2 and orders[0] != orders[1]  # the third was known
    assert all(sorted(order) == texts for order in orders) and any(order != texts for order in orders)


async def test_rankings_of_votes_are_undone_and_combined(tmp_path: Path) -> None:
    async with judging(placed(lambda told: {"ranking": sorted(told, key=lambda name: -int(told[name]))})) as server:
        settings = rubric(server.url, group_wise=True, gives="ranking", votes=3, explain=False)
        scores = await ask(tmp_path, settings, "1", "3", "2")
        assert [score.score for score in scores] == [0.0, 1.0, 0.5]
        asked = len(server.asked)
        assert [score.score for score in await ask(tmp_path, settings, "alone")] == [0.5]
        assert len(server.asked) == asked == 3


async def test_a_rubric_without_criteria_for_a_task_gives_no_score(tmp_path: Path) -> None:
    async with judging(points()) as server:
        settings = rubric(server.url, criteria=(), task_criteria="tests/rubric.toml")
        with pytest.raises(VerifierError, match="no criteria for this task"):
            await ask(tmp_path, settings, "hello")
    assert server.asked == []


async def test_the_key_is_sent_and_is_in_no_error(tmp_path: Path) -> None:
    from msgspec.structs import replace

    (tmp_path / "key").write_text("sk-secret\n")
    async with judging(points(hello=3)) as server:
        settings = rubric(server.url, tries=1)
        settings = replace(settings, judge=replace(settings.judge, api_key_file=str(tmp_path / "key")))
        keys: list[str] = []
        stream = server._stream

        async def seen(request: Any, text: str) -> Any:
            keys.append(request.headers["Authorization"])
            return await stream(request, text)

        server._stream = seen  # type: ignore[method-assign]
        server.faults = ["sk-secret is a nice key"]
        with pytest.raises(VerifierError) as raised:
            await ask(tmp_path, settings, "hello")
        with pytest.raises(ConfigurationError):
            await ask(tmp_path, replace(settings, judge=replace(settings.judge, api_key_file="/nonexistent")), "hello")
    assert keys == ["Bearer sk-secret"]
    assert "[key] is a nice key" in str(raised.value)
    assert b"sk-secret" not in (tmp_path / "rubrics.sqlite").read_bytes()
