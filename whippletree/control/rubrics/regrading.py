"""Scoring what a run has on record by rubrics, without changing the record: to check a judge before training on it.

Invariants (tests/control/test_regrading.py):
- the run's record is read only; answers are kept in its rubrics.sqlite, so nothing is asked twice, here or in the run;
- attempts that were judged by their tests count; others are left out, and groups are the run's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from whippletree.control.rubrics.agreement import Agreement, agreement
from whippletree.control.rubrics.config import RubricConfig
from whippletree.control.rubrics.judge import Judge
from whippletree.control.rubrics.replies import FILE, Replies
from whippletree.control.rubrics.scoring import Record, Subject, score
from whippletree.errors import ConfigurationError
from whippletree.types import Rollout, RubricScore, Struct, VerifierResult


class Regraded(Struct):
    """A rubric's score of an attempt, beside what is on record. `tests`: the score of the tests that it is compared with.

    Example: Regraded(rollout_id="g00000-m01", attempt=1, reward=1.0, tests=1.0, score=RubricScore(name="style", score=0.5))
    """

    rollout_id: str
    attempt: int
    reward: float
    tests: float
    score: RubricScore


def subjects_of(record: Record, rollouts: Iterable[Rollout], rubric: RubricConfig) -> list[Subject]:
    """The attempts that ended with a reward, of the rubric's sources. A rubric for none of these has an empty list."""
    return [
        Subject(spec=rollout.spec, attempt=record.store.attempts(rollout.spec.rollout_id)[-1])
        for rollout in rollouts
        if rollout.reward is not None and not rollout.spec.external
        if not rubric.sources or rollout.spec.source in rubric.sources
    ]


async def regrade(
    record: Record, rubrics: Sequence[RubricConfig], rollouts: Sequence[Rollout], run: Path, *, against: str = ""
) -> list[Regraded]:
    """Every rubric's score of these rollouts' last attempts. `against`: the score of the tests to compare with ("": see
    `score_of_tests`). Raises ConfigurationError, StoreError."""
    async with AsyncExitStack() as stack:
        replies = stack.enter_context(await asyncio.to_thread(Replies, run / FILE))
        found: list[Regraded] = []
        for rubric in rubrics:
            judge = Judge(rubric, replies)
            stack.push_async_callback(judge.close)
            units = _units(rubric, await asyncio.to_thread(subjects_of, record, rollouts, rubric))
            scored = await asyncio.gather(*(score(judge, record, unit, seed=name) for name, unit in units.items()))
            for unit, scores in zip(units.values(), scored, strict=True):
                found += [_beside(one, given, against) for one, (given, _) in zip(unit, scores, strict=True)]
        return found


def _units(rubric: RubricConfig, subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """What is scored together, by the name that the run itself gives it (grading.py), so that orders are the same."""
    units: dict[str, list[Subject]] = {}
    for one in subjects:
        name = f"group {one.spec.group_id}" if rubric.group_wise else one.spec.rollout_id
        units.setdefault(name, []).append(one)
    return units


def _beside(one: Subject, given: RubricScore, against: str) -> Regraded:
    result = one.attempt.result or VerifierResult(reward=None)
    reward = result.reward if result.reward is not None else 0.0
    return Regraded(
        rollout_id=one.spec.rollout_id,
        attempt=one.attempt.attempt,
        reward=reward,
        tests=score_of_tests(result, against),
        score=given,
    )


def score_of_tests(result: VerifierResult, against: str) -> float:
    """The score of the tests with that name; without one the score named "reward", or the only one that is no rubric's.

    Raises ConfigurationError where there is none.
    """
    own = {name: value for name, value in result.scores.items() if name not in {one.name for one in result.rubrics}}
    if not against and len(own) == 1:
        return next(iter(own.values()))
    name = against or "reward"
    if name not in own:
        raise ConfigurationError(
            f"the tests gave no score {name!r}", f"compare with one of {', '.join(sorted(own))} (--against)"
        )
    return own[name]


def agreements(found: Sequence[Regraded], *, passing: float) -> list[Agreement]:
    """How far each rubric agrees with the tests, in the order of their names."""
    names = sorted({one.score.name for one in found})
    return [
        agreement(
            name,
            [(one.score.score, one.tests) for one in found if one.score.name == name and one.score.score is not None],
            failed=sum(one.score.name == name and one.score.score is None for one in found),
            passing=passing,
        )
        for name in names
    ]
