"""Rubrics in the controller: real rollouts, a real judge server, kills in between."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from control_world import REWARD, World, until, write_task
from judge_parts import judging, points, rubric, shown

from whippletree.control.grading import KIND, Grader
from whippletree.control.rubrics.replies import Replies
from whippletree.errors import ConfigurationError
from whippletree.types import CauseClass, RubricScore

HALF = f"#!/bin/sh\necho 'the tests say half'; echo 0.5 {REWARD}\n"
MIX = "0.5 * reward + 0.5 * style"


def scores(world: World, name: str) -> tuple[RubricScore, ...]:
    result = world.store.attempts(name)[-1].result
    assert result is not None
    return result.rubrics


async def test_a_reward_of_a_test_and_a_rubric_comes_when_both_are_in(world: World, tmp_path: Path) -> None:
    async with judging(points(done=2)) as judge:
        names = world.add(1, write_task(tmp_path / "t", HALF))
        async with world.controlling(world.spec(rubrics=(rubric(judge.url),), reward=MIX)):
            (rollout,) = await world.finished(names)
        (question,) = judge.questions
    attempt = world.store.attempts(names[0])[-1]
    assert (rollout.state, rollout.reward) == ("succeeded", 0.5)
    assert attempt.result is not None and attempt.result.scores == {"reward": 0.5, "style": 0.5}
    assert (attempt.result.expression, attempt.result.pending) == (MIX, ())
    (score,) = attempt.result.rubrics
    assert (score.score, score.criteria, score.model, score.why, score.cached) == (0.5, {"good": 0.5}, "judge-1", "seen", False)
    assert "make a file called done" in question and "it is good" in question and "(0 to 4)" in question
    assert [phase.name for phase in attempt.phases][-2:] == ["cleanup", "rubric"]
    (event,) = [event for event in world.store.events(names[0]) if event.kind == KIND]
    assert json.loads(event.data["reply"]) == {"A": {"why": "seen", "good": 2}}
    with Replies(world.directory / "rubrics.sqlite") as replies:
        assert replies.find(score.requests[0]) == event.data["reply"]
        assert replies.tokens("style") == 110


async def test_a_waiting_rollout_holds_neither_slot_nor_sandbox_and_is_not_over(world: World, tmp_path: Path) -> None:
    async with judging(points(done=4)) as judge:
        judge.gate = gate = asyncio.Event()
        names = world.add(5, write_task(tmp_path / "t"))
        async with world.controlling(world.spec(concurrency=1, rubrics=(rubric(judge.url),), reward="style")):
            await until(lambda: len(world.store.held_by("local-rubrics")) == 5)  # one slot, and all five agents are over
            assert world.boxes() == []
            assert {world.store.rollout(name).state for name in names} == {"running"}
            gate.set()
            rollouts = await world.finished(names)
    assert {rollout.reward for rollout in rollouts} == {1.0}
    assert len(judge.asked) == 1  # five equal answers are one question
    assert sorted(scores(world, name)[0].cached for name in names) == [False, True, True, True, True]


async def test_a_group_is_one_question_once_all_of_it_are_over_and_orders_are_undone(world: World, tmp_path: Path) -> None:
    answers = iter(range(100))
    world.say = lambda prompt: f"answer {next(answers)}"
    seen: list[list[str]] = []

    def say(question: str) -> str:
        told = shown(question)
        seen.append([one["last message"] for one in told.values()])
        return json.dumps({name: {"good": int(one["last message"].split()[1])} for name, one in told.items()})

    async with judging(say) as judge:
        names = world.add(5, write_task(tmp_path / "t"))
        settings = rubric(judge.url, group_wise=True, votes=2, explain=False)
        async with world.controlling(world.spec(concurrency=2, rubrics=(settings,), reward="style")):
            rollouts = await world.finished(names)
    assert len(seen) == 2 and all(sorted(order) == [f"answer {n}" for n in range(5)] for order in seen)
    assert seen[0] != seen[1]  # each vote has an order of its own
    said = {name: world.store.payload(world.store.calls(name, 1)[0]).reply_json for name in names}
    for rollout in rollouts:
        (number,) = re.findall(rb"answer (\d)", said[rollout.spec.rollout_id])
        assert rollout.reward == int(number) / 4
        assert len(scores(world, rollout.spec.rollout_id)[0].votes) == 2


async def test_one_that_was_called_off_is_left_out_of_its_group(world: World, tmp_path: Path) -> None:
    async with judging(points(done=4)) as judge:
        names = world.add(3, write_task(tmp_path / "t"))
        world.store.cancel([names[1]], "not wanted").result()
        async with world.controlling(world.spec(rubrics=(rubric(judge.url, group_wise=True),), reward="style")):
            rollouts = await world.finished(names)
    assert [rollout.reward for rollout in rollouts] == [1.0, None, 1.0]
    assert sorted(shown(judge.questions[0])) == ["A", "B"]


async def test_a_judge_that_gives_no_score_is_a_cause_where_the_reward_needs_it(world: World, tmp_path: Path) -> None:
    async with judging(lambda question: "I would rather not.") as judge:
        names = world.add(2, write_task(tmp_path / "t"))
        async with world.controlling(world.spec(rubrics=(rubric(judge.url, tries=2),), reward=MIX)):
            rollouts = await world.finished(names)
    for rollout in rollouts:
        assert (rollout.state, rollout.reward, rollout.attempt) == ("failed", None, 1)  # the agent is not run again
        assert rollout.cause is not None and rollout.cause.cause is CauseClass.RUBRIC
        assert "style: 2 answers of the judge were unusable: there is no JSON object" in rollout.cause.message
    assert {scores(world, name)[0].score for name in names} == {None}


async def test_what_the_reward_does_not_use_is_recorded_and_may_be_missing(world: World, tmp_path: Path) -> None:
    async with judging(points(done=3)) as judge:
        rubrics = (rubric(judge.url), rubric("http://127.0.0.1:9/v1", "absent", limit=0.3, instructions="Be kind."))
        names = world.add(1, write_task(tmp_path / "t", HALF))
        async with world.controlling(world.spec(rubrics=rubrics)):
            (rollout,) = await world.finished(names)
    assert (rollout.state, rollout.reward) == ("succeeded", 0.5)
    given, missing = scores(world, names[0])
    assert (given.score, missing.score) == (0.75, None)
    assert "no usable answer within 0.3 s" in missing.problem


async def test_a_wrong_name_in_the_reward_costs_no_question(world: World, tmp_path: Path) -> None:
    async with judging(points(done=4)) as judge:
        names = world.add(1, write_task(tmp_path / "t"))
        async with world.controlling(world.spec(rubrics=(rubric(judge.url),), reward="reward + stile")):
            (rollout,) = await world.finished(names)
    assert rollout.cause is not None and rollout.cause.cause is CauseClass.CONFIGURATION
    assert "did you mean style?" in rollout.cause.next_step and judge.asked == []


async def test_a_controller_that_comes_after_goes_on_and_asks_nothing_twice(world: World, tmp_path: Path) -> None:
    answers = iter(range(100))
    world.say = lambda prompt: f"answer {next(answers)}"
    async with judging(lambda question: json.dumps({name: {"good": 4} for name in shown(question)})) as judge:
        names = world.add(3, write_task(tmp_path / "t"))
        settings = rubric(judge.url, explain=False, at_once=1)
        judge.faults = ["nonsense", 500, "drop"]
        stream, gate = judge._stream, asyncio.Event()

        async def held(request, text):
            if len(judge.asked) > 4:
                await gate.wait()
            return await stream(request, text)

        judge._stream = held
        async with world.controlling(world.spec(rubrics=(settings,), reward="style")):
            await until(lambda: len(judge.asked) > 4)  # after three faults one was answered, and the next waits for an answer
            await until(lambda: len(world.store.held_by("local-rubrics")) == 2)
        waiting = world.store.held_by("local-rubrics")
        assert len(waiting) == 2  # the controller has ended, and they wait still
        gate.set()
        turns, asked = world.turns, len(judge.asked)
        async with world.controlling(world.spec(rubrics=(settings,), reward="style")):
            rollouts = await world.finished(names)
    assert [(rollout.reward, rollout.attempt) for rollout in rollouts] == [(1.0, 1)] * 3
    assert world.turns == turns == 3  # no agent was run again
    assert len(judge.asked) - asked == len(waiting)
    for name in names:
        assert len([event for event in world.store.events(name) if event.kind == KIND]) == 1


async def test_scores_that_were_written_are_gone_on_with(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the scores of a group were written, and before any of it was finished."""

    class Killed(BaseException):
        pass

    async def die(*arguments: object) -> None:
        raise Killed

    async with judging(points(done=1)) as judge:
        names = world.add(2, write_task(tmp_path / "t"))
        spec = world.spec(rubrics=(rubric(judge.url, group_wise=True),), reward="style")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Grader, "_finish", die)
            async with world.controlling(spec):
                await world.finished(names)
        (world.directory / "rubrics.sqlite").unlink()  # so that only the events can know
        async with world.controlling(spec):
            rollouts = await world.finished(names)
    assert [rollout.reward for rollout in rollouts] == [0.25, 0.25]
    assert len(judge.asked) == 1


async def test_one_that_is_cancelled_while_it_waits_stays_cancelled(world: World, tmp_path: Path) -> None:
    async with judging(points(done=4)) as judge:
        judge.faults = [(429, {"Retry-After": "1"})]
        names = world.add(1, write_task(tmp_path / "t"))
        async with world.controlling(world.spec(rubrics=(rubric(judge.url),), reward="style")):
            await until(lambda: bool(judge.asked))
            world.store.cancel(names, "enough").result()
            await until(lambda: len(judge.asked) == 2)
            await asyncio.sleep(0.2)
    rollout = world.store.rollout(names[0])
    assert rollout.cause is not None and rollout.cause.cause is CauseClass.CANCELLED


async def test_a_rubric_that_was_taken_out_of_the_configuration_ends_what_waits_for_it(world: World, tmp_path: Path) -> None:
    async with judging(points(done=4)) as judge:
        judge.faults = [(429, {"Retry-After": "60"})]
        names = world.add(1, write_task(tmp_path / "t"))
        async with world.controlling(world.spec(rubrics=(rubric(judge.url),), reward="style")):
            await until(lambda: bool(judge.asked))
        async with world.controlling(world.spec()):
            (rollout,) = await world.finished(names)
    assert rollout.cause is not None and rollout.cause.cause is CauseClass.RUBRIC
    assert "no rubric of this name any more" in rollout.cause.message


async def test_a_key_or_template_that_cannot_be_used_ends_the_controller_before_it_claims(world: World, tmp_path: Path) -> None:
    from msgspec.structs import replace

    names = world.add(1, write_task(tmp_path / "t"))
    good = rubric("http://127.0.0.1:9/v1")
    keyless = replace(good, judge=replace(good.judge, api_key_file=str(tmp_path / "missing")))
    for wrong in (keyless, replace(good, template="{{ nothing }}")):
        with pytest.raises(ConfigurationError):
            async with world.controlling(world.spec(rubrics=(wrong,))):
                await world.finished(names, 10)
    assert world.store.rollout(names[0]).state == "queuing"


async def test_a_task_may_have_criteria_and_files_of_its_own(world: World, tmp_path: Path) -> None:
    task = write_task(tmp_path / "t", toml='artifacts = ["/app/done"]\n')
    (task / "tests" / "rubric.toml").write_text('[[criteria]]\nname = "short"\ntext = "it is short"\nweight = 3\n')
    seen: list[dict[str, dict[str, str]]] = []

    def say(question: str) -> str:
        seen.append(shown(question))
        assert "- good (0 to 4): it is good\n- short (0 to 1): it is short" in question
        return '{"good": 0, "short": 1}'

    async with judging(say) as judge:
        names = world.add(1, task)
        settings = rubric(
            judge.url,
            task_criteria="tests/rubric.toml",
            sees=("transcript", "verifier"),
            files=("/app/done", "/app/other"),
            explain=False,
        )
        spec = world.spec(rubrics=(settings,), reward="style", settings={"command": "echo finished > done"})
        async with world.controlling(spec):
            (rollout,) = await world.finished(names)
    assert rollout.reward == 0.75
    (one,) = [of["A"] for of in seen]
    assert one["file /app/done"] == "finished\n" and one["file /app/other"] == "(it is not there)"
    assert one["assistant"] == "done" and "reward = 1" in one["output and scores of the tests"]
