"""Scoring what is on record: a real run of the controller, then judges that were not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from control_world import World, write_task
from judge_parts import judging, points, rubric, shown

from whippletree.control.imaging import Imaging
from whippletree.control.place import attempt_directory
from whippletree.control.rubrics.regrading import agreements, regrade, score_of_tests
from whippletree.control.rubrics.scoring import Record
from whippletree.errors import ConfigurationError
from whippletree.types import RubricScore, VerifierResult


def record(world: World) -> Record:
    imaging = Imaging(world.sandbox, wanted="needed", at_once=1, variables={})
    return Record(
        store=world.store,
        read=imaging.read,
        place=lambda rollout_id, attempt: attempt_directory(world.directory, rollout_id, attempt),
    )


async def test_a_judge_that_was_not_there_is_compared_with_the_tests_and_the_record_stays(world: World, tmp_path: Path) -> None:
    answers = iter(("good", "bad", "good", "bad"))
    world.say = lambda prompt: next(answers)
    task = write_task(tmp_path / "t")
    names = world.add(4, task)
    async with world.controlling(world.spec(settings={"command": "true"})):
        await world.finished(names)
    before = [world.store.attempts(name) for name in names]
    async with judging(points(good=4, bad=1)) as judge:
        found = await regrade(record(world), [rubric(judge.url)], world.store.rollouts(), world.directory)
        asked = len(judge.asked)
        again = await regrade(record(world), [rubric(judge.url)], world.store.rollouts(), world.directory)
        assert len(judge.asked) == asked == 2  # two different answers
    assert sorted(one.score.score for one in found) == [0.25, 0.25, 1.0, 1.0]
    assert [(one.rollout_id, one.score.score) for one in again] == [(one.rollout_id, one.score.score) for one in found]
    assert all(one.score.cached for one in again)
    assert [world.store.attempts(name) for name in names] == before
    (compared,) = agreements(found, passing=1.0)
    assert (compared.scored, compared.failed, compared.others_mean, compared.auc) == (4, 0, 0.625, None)


async def test_a_rubric_of_the_run_itself_asks_nothing_again_in_groups_too(world: World, tmp_path: Path) -> None:
    answers = iter(range(9))
    world.say = lambda prompt: f"answer {next(answers)}"
    async with judging(lambda question: json.dumps({name: {"good": 2} for name in shown(question)})) as judge:
        settings = rubric(judge.url, group_wise=True, explain=False, votes=2)
        names = world.add(3, write_task(tmp_path / "t"))
        async with world.controlling(world.spec(rubrics=(settings,), reward="style")):
            await world.finished(names)
        asked = len(judge.asked)
        found = await regrade(record(world), [settings], world.store.rollouts(), world.directory)
        assert len(judge.asked) == asked == 2
    assert {one.score.score for one in found} == {0.5} and all(one.score.cached for one in found)


async def test_one_whose_record_is_gone_is_left_out_with_the_reason(world: World, tmp_path: Path) -> None:
    world.say = lambda prompt: "good"
    names = world.add(2, write_task(tmp_path / "t"))
    async with world.controlling(world.spec()):
        await world.finished(names)
    world.store.release([names[0]])
    async with judging(points(good=4)) as judge:
        found = await regrade(record(world), [rubric(judge.url, group_wise=True)], world.store.rollouts(), world.directory)
    gone, there = found
    assert gone.score.score is None and "released" in gone.score.problem
    assert there.score.score == 1.0
    (compared,) = agreements(found, passing=1.0)
    assert (compared.scored, compared.failed) == (1, 1)


def test_the_score_that_is_compared_with_is_the_tests() -> None:
    own = VerifierResult(reward=0.5, scores={"correct": 1.0, "style": 0.5}, rubrics=(RubricScore(name="style", score=0.5),))
    assert score_of_tests(own, "") == 1.0
    several = VerifierResult(reward=0.5, scores={"reward": 0.25, "speed": 0.5})
    assert (score_of_tests(several, ""), score_of_tests(several, "speed")) == (0.25, 0.5)
    with pytest.raises(ConfigurationError, match=r"no score 'sped'.*reward, speed"):
        score_of_tests(several, "sped")
