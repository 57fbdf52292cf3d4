"""One rubric's scores of attempts of one task: what its judge sees of them, its criteria, and what it says.

Invariant (tests/control/test_grading.py, test_regrading.py): every attempt gets a score or the reason why there is none; one
whose record cannot be read is left out of the question about the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whippletree import configuration
from whippletree.control.rubrics.config import Criterion, RubricConfig, TaskCriteria
from whippletree.control.rubrics.evidence import evidence_of
from whippletree.control.rubrics.judge import Judge
from whippletree.control.rubrics.prompt import Evidence
from whippletree.errors import ConfigurationError, StoreError, TaskError, VerifierError
from whippletree.protocols import Store
from whippletree.tasks import Task
from whippletree.types import Attempt, RolloutSpec, RubricScore, Struct

log = logging.getLogger(__name__)

Scored = tuple[RubricScore, str]  # and the text of the answer


class Subject(Struct):
    """An attempt that is to be scored. Example: Subject(spec=RolloutSpec(...), attempt=Attempt(...))"""

    spec: RolloutSpec
    attempt: Attempt

    @property
    def pending(self) -> tuple[str, ...]:
        """The rubrics that it waits for."""
        return self.attempt.result.pending if self.attempt.result else ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where attempts are on record. `read` reads a task's directory; `place(rollout_id, attempt)`: the attempt's files."""

    store: Store
    read: Callable[[Path], Awaitable[Task]]
    place: Callable[[str, int], Path]


async def score(judge: Judge, record: Record, subjects: Sequence[Subject], *, seed: str) -> list[Scored]:
    """What the judge says of each of these, which are of one task; group-wise they are one question. `seed`: of its order."""
    rubric = judge.rubric
    shown = [await _shown(rubric, record, one) for one in subjects]
    seen = [one for one in shown if isinstance(one, Evidence)]
    try:
        criteria = (*rubric.criteria, *await asyncio.to_thread(criteria_of, rubric, Path(subjects[0].spec.task_path)))
    except ConfigurationError as error:
        return [_none(judge, str(error)) for _ in subjects]
    if rubric.group_wise:
        scores = await _ask(judge, seen, criteria, seed)
    else:
        each = await asyncio.gather(*(_ask(judge, [one], criteria, seed) for one in seen))
        scores = [scored for of_one in each for scored in of_one]
    answers = iter(scores)
    return [next(answers) if isinstance(one, Evidence) else _none(judge, one) for one in shown]


def _none(judge: Judge, problem: str) -> Scored:
    rubric = judge.rubric
    return RubricScore(name=rubric.name, rubric=judge.digest, model=rubric.judge.model, problem=problem), ""


async def _ask(judge: Judge, seen: Sequence[Evidence], criteria: Sequence[Criterion], seed: str) -> list[Scored]:
    try:
        return await judge.scores(seen, criteria, seed=seed) if seen else []
    except (VerifierError, ConfigurationError, StoreError) as error:
        log.warning("rubric %s gave %s no score: %s", judge.rubric.name, seed, error)
        return [_none(judge, str(error)) for _ in seen]


async def _shown(rubric: RubricConfig, record: Record, one: Subject) -> Evidence | str:
    """What the judge sees of an attempt, or why that cannot be read."""
    artifacts = record.place(one.spec.rollout_id, one.attempt.attempt) / "artifacts"
    try:
        instruction = ""
        if "instruction" in rubric.sees:
            task = await record.read(Path(one.spec.task_path))
            instruction = "\n\n".join(step.instruction for step in task.steps)
        return await asyncio.to_thread(evidence_of, rubric, record.store, one.attempt, instruction, artifacts)
    except (TaskError, ConfigurationError, StoreError, VerifierError, msgspec.DecodeError, OSError) as error:
        return f"what it is to judge cannot be read: {error}"


def criteria_of(rubric: RubricConfig, task: Path) -> tuple[Criterion, ...]:
    """The task's own criteria; () where it has none. Raises ConfigurationError for a file that cannot be used."""
    if not rubric.task_criteria:
        return ()
    path = task / rubric.task_criteria
    if not path.is_file():
        return ()
    own = configuration.load(TaskCriteria, path).criteria
    names = [criterion.name for criterion in (*rubric.criteria, *own)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigurationError(f"{path}: criterion {twice[0]} is named twice", "criteria differ in their names")
    return own
