"""Rubrics: judge models score attempts whose agent, tests and sandbox are over, beside the attempts that still run.

    attempt over, scores of its tests in ─► handed over (durable) ─► its slot and sandbox are free
                                                 │ group-wise: until every rollout of the group is over or handed over
                                                 ▼
                             judges ─► events with the scores (one write for a group) ─► finish: succeeded | failed (rubric)

Who waits for whom: a handed-over attempt waits for its judges, each within the rubric's limit, and group-wise for the other
attempts of its group, each within its deadlines. Nothing waits for the grader but whoever wants the rollout to be over: until
then its state is "running".

Invariants (tests/control/test_grading.py):
- an attempt that was handed over is finished once, also when the process is killed at any point; its agent is not run again;
- scores that were written are not asked for again, and all of a group's are written at once;
- a judge that gives no score is a cause where the reward needs that score, never a 0;
- what was cancelled meanwhile stays so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from whippletree.control.rubrics.config import RubricConfig
from whippletree.control.rubrics.judge import Judge
from whippletree.control.rubrics.prompt import Evidence, Part, question
from whippletree.control.rubrics.replies import FILE, Replies
from whippletree.control.rubrics.scoring import Record, Scored, Subject, score
from whippletree.errors import ConflictError
from whippletree.protocols import AttemptOutcome, Store
from whippletree.tasks.scores import settled
from whippletree.types import Attempt, Event, Phase, RubricScore, VerifierResult

log = logging.getLogger(__name__)

KIND = "rubric"  # of the events, and name of the phase
LOOK_SECONDS = 0.5  # between two looks while a group waits: one of it may be cancelled
LONGEST_REPLY = 20_000  # characters of an answer that an event keeps


class Grader:
    """Scores what a controller hands over."""

    def __init__(self, record: Record, rubrics: Sequence[RubricConfig], run: Path, *, worker: str) -> None:
        """`worker` names it in the store: what an earlier one of that name left is gone on with."""
        self._record = record
        self._store = record.store
        self._rubrics = {rubric.name: rubric for rubric in rubrics}
        self._run = run
        self._worker = f"{worker}-rubrics"
        self._replies: Replies | None = None
        self._judges: dict[str, Judge] = {}
        self._wake = asyncio.Event()
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Make ready to ask. Raises ConfigurationError where a judge's key, URL or template cannot be used, StoreError."""
        if self._rubrics:
            self._replies = await asyncio.to_thread(Replies, self._run / FILE)
            for rubric in self._rubrics.values():
                question(rubric, rubric.criteria, [Evidence(instruction="task", parts=(Part(title="answer", text="text"),))])
                self._judges[rubric.name] = Judge(rubric, self._replies)

    async def end(self, outcome: AttemptOutcome) -> bool:
        """Own an attempt that waits for rubrics, or report how any other ended; whether its rollout has ended by that. Raises
        StoreError."""
        attempt = outcome.attempt
        if attempt.cause is None and attempt.result is not None and attempt.result.pending:
            await self._take(attempt)
            return False
        ended = await _write_end(self._store, outcome)
        self._look()
        return ended

    async def _take(self, attempt: Attempt) -> None:
        """Own an attempt whose result waits for rubrics. Returns once that is durable. Raises StoreError."""
        if not await asyncio.wrap_future(self._store.hand_over(attempt, self._worker)):
            log.warning("%s attempt %d was fenced off: nobody scores it", attempt.rollout_id, attempt.attempt)
        self._look()

    def _look(self) -> None:
        """Something has changed that a group may have waited for."""
        self._wake.set()

    async def run(self) -> None:
        """Score until cancelled; what is under way then is gone on with by the next. Raises StoreError."""
        try:
            while True:
                self._wake.clear()
                waiting = await asyncio.to_thread(self._ready)
                self._begin(waiting)
                await self._until_woken(idle=not waiting and not self._under_way)
                self._reap()
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)
            await self._close()

    async def _until_woken(self, *, idle: bool) -> None:
        woken = asyncio.create_task(self._wake.wait())
        try:
            seconds = None if idle else LOOK_SECONDS
            await asyncio.wait({woken, *self._under_way.values()}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def _begin(self, waiting: dict[str, list[Subject] | None]) -> None:
        for name, unit in waiting.items():
            if unit is not None and name not in self._under_way:
                self._under_way[name] = asyncio.create_task(self._grade(name, unit), name=f"rubrics-{name}")

    def _reap(self) -> None:
        """Forget what is done; raise what it raised (the store refused)."""
        for name in [name for name, task in self._under_way.items() if task.done()]:
            self._under_way.pop(name).result()

    def _ready(self) -> dict[str, list[Subject] | None]:
        """What waits, by the name of what is scored together; None for a group that is not complete yet."""
        found: dict[str, list[Subject]] = {}
        for attempt in self._store.held_by(self._worker):
            one = Subject(spec=self._store.rollout(attempt.rollout_id).spec, attempt=attempt)
            found.setdefault(self._unit(one), []).append(one)
        return {name: unit if self._complete(name, unit) else None for name, unit in found.items()}

    def _unit(self, one: Subject) -> str:
        if any(self._rubrics[name].group_wise for name in one.pending if name in self._rubrics):
            return f"group {one.spec.group_id}"
        return one.spec.rollout_id

    def _complete(self, name: str, unit: Sequence[Subject]) -> bool:
        if name in self._under_way or name == unit[0].spec.rollout_id:
            return True
        here = {one.spec.rollout_id for one in unit}
        members = self._store.rollouts(group_id=unit[0].spec.group_id)
        return all(member.terminal or member.spec.rollout_id in here for member in members)

    # --- one unit ----------------------------------------------------------------------------------------------------

    async def _grade(self, name: str, unit: Sequence[Subject]) -> None:
        """Score attempts of one task, write what was said, and finish them."""
        started = time.time()
        known = [await asyncio.to_thread(self._written, one) for one in unit]
        missing = [[rubric for rubric in one.pending if rubric not in had] for one, had in zip(unit, known, strict=True)]
        todo = list(dict.fromkeys(rubric for of_one in missing for rubric in of_one))
        given = await asyncio.gather(*(self._by_rubric(rubric, unit, seed=name) for rubric in todo))
        fresh: list[dict[str, Scored]] = [{} for _ in unit]
        for rubric, scores in zip(todo, given, strict=True):
            for place, of_one in enumerate(missing):
                if rubric in of_one:
                    fresh[place][rubric] = scores[place]
        events = [_event(one, scored) for one, new in zip(unit, fresh, strict=True) for scored in new.values()]
        if events:
            await asyncio.wrap_future(self._store.append_events(events))
        for one, had, new in zip(unit, known, fresh, strict=True):
            by_name = had | {rubric: given for rubric, (given, _) in new.items()}
            await self._finish(one, [by_name[rubric] for rubric in one.pending], started)

    def _written(self, one: Subject) -> dict[str, RubricScore]:
        """What rubrics have said of this attempt, as its events have it."""
        events = self._store.events(one.spec.rollout_id)
        mine = [event for event in events if event.kind == KIND and event.attempt == one.attempt.attempt]
        found = [msgspec.convert(event.data, RubricScore) for event in mine]
        return {one.name: one for one in found}

    async def _by_rubric(self, name: str, unit: Sequence[Subject], *, seed: str) -> list[Scored]:
        """What one rubric says of each of these."""
        if name in self._judges:
            return await score(self._judges[name], self._record, unit, seed=seed)
        problem = "the run has no rubric of this name any more"
        return [(RubricScore(name=name, problem=problem), "") for _ in unit]

    async def _finish(self, one: Subject, scores: Sequence[RubricScore], started: float) -> None:
        result = settled(one.attempt.result or VerifierResult(reward=None), scores)
        phase = Phase(name=KIND, started=started, seconds=time.time() - started)
        ended = msgspec.structs.replace(
            one.attempt, result=result, cause=result.cause, finished=time.time(), phases=(*one.attempt.phases, phase)
        )
        if result.cause is not None:
            log.warning("%s attempt %d: %s", ended.rollout_id, ended.attempt, result.cause.message)
        await _write_end(self._store, AttemptOutcome(attempt=ended))

    async def _close(self) -> None:
        for judge in self._judges.values():
            await judge.close()
        if self._replies is not None:
            self._replies.close()


async def _write_end(store: Store, outcome: AttemptOutcome) -> bool:
    """Report how an attempt ended; whether its rollout has ended by that. Raises StoreError."""
    attempt = outcome.attempt
    try:
        kept = await asyncio.wrap_future(store.finish(outcome))
    except ConflictError as error:  # somebody else has ended the rollout through the API
        log.warning("%s: its end is not what is recorded: %s", attempt.rollout_id, error)
        return False
    if not kept:
        log.warning("%s attempt %d was fenced off: its end changes nothing", attempt.rollout_id, attempt.attempt)
    return kept and not outcome.requeue


def _event(one: Subject, scored: Scored) -> Event:
    given, reply = scored
    data: dict[str, Any] = msgspec.to_builtins(given)
    return Event(
        event_id=f"{one.spec.rollout_id}-{one.attempt.attempt}-{KIND}-{given.name}",
        rollout_id=one.spec.rollout_id,
        attempt=one.attempt.attempt,
        time=time.time(),
        kind=KIND,
        data=data | ({"reply": reply[:LONGEST_REPLY]} if reply else {}),
    )
