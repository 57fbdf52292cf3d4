"""Import a data set: every row, or every folder, becomes a task or has a reason why not.

Invariants (tests/tasks/test_importing_run.py):
- each row is decided once, also after a kill, and is told by name and reason;
- names are plain: what a row is called cannot leave the directory, and two rows of one name are an error of the second;
- a folder that does not load is not copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.tasks.filtering import copy_task, task_paths
from whippletree.tasks.images import Backing
from whippletree.tasks.importing.questions import QuestionRows, Refused, question_draft
from whippletree.tasks.importing.rows import Row, read_rows
from whippletree.tasks.importing.swe import SweRows, swe_draft
from whippletree.tasks.injecting.packing import SLACK
from whippletree.tasks.journal import Decision, Journal, Tally
from whippletree.tasks.reading import read_task
from whippletree.tasks.writing import Draft, Limits, write_draft

JOURNAL = "import.jsonl"
AGENT_SECONDS = 600.0
Tell = Callable[[Decision], None]
Making = Callable[[], None]


def import_rows(source: Path, out: Path, settings: SweRows | QuestionRows, tell: Tell) -> Tally:
    """Write a task for each row that makes one. Raises ConfigurationError, TaskError."""
    if isinstance(settings, SweRows):
        limits = Limits(agent=AGENT_SECONDS, verifier=settings.testing.seconds + SLACK)
    else:
        limits = Limits(agent=AGENT_SECONDS)

    def making() -> Iterator[tuple[str, Making]]:
        for number, row in enumerate(read_rows(source), 1):
            yield _name(row, settings, number), lambda row=row, number=number: _write(row, number, out, settings, limits)  # type: ignore[misc]

    return _decide(source, out, settings, making(), tell)


def _write(row: Row, number: int, out: Path, settings: SweRows | QuestionRows, limits: Limits) -> None:
    name = _name(row, settings, number)
    draft: Draft = swe_draft(row, name, settings) if isinstance(settings, SweRows) else question_draft(row, name, settings)
    write_draft(out, draft, limits)


class Folders(Config):
    """Harbor folders have no settings of their own."""


def import_folders(source: Path, out: Path, backing: Backing, tell: Tell) -> Tally:
    """Copy every task of a data set's folder that loads. Raises ConfigurationError, TaskError."""

    def copy(path: Path) -> None:
        reading = read_task(path, backing=backing)
        if reading.problems:
            raise Refused("does not load", reading.problems[0].cause)
        copy_task(path, out / path.name)

    making = ((path.name, lambda path=path: copy(path)) for path in task_paths(source))
    return _decide(source, out, Folders(), making, tell)


def _decide(source: Path, out: Path, settings: Config, making: Iterator[tuple[str, Making]], tell: Tell) -> Tally:
    if source.resolve() == out.resolve():
        raise ConfigurationError(f"source and target are both {out}", "give --to another directory")
    kind = type(settings).__name__
    seen: set[str] = set()
    with Journal(out / JOURNAL, f"import {kind} {source.resolve()} {msgspec.json.encode(settings).decode()}") as journal:
        for name, make in making:
            if name in seen:
                decision = Decision(name=f"{name} (again)", kept=False, reason="two rows of one name")
            elif name in journal.decisions:
                seen.add(name)
                continue
            else:
                decision = _one(name, make)
            seen.add(name)
            if decision.name not in journal.decisions:
                journal.add(decision)
                tell(decision)
        return journal.tally()


def _one(name: str, make: Making) -> Decision:
    try:
        make()
    except Refused as error:
        return Decision(name=name, kept=False, reason=error.reason, detail=error.detail)
    return Decision(name=name, kept=True)


def _name(row: Row, settings: SweRows | QuestionRows, number: int) -> str:
    given = row.get("instance_id" if isinstance(settings, SweRows) else settings.name)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", str(given)).strip(".-") if isinstance(given, str | int) else ""
    return plain[:120] or f"row-{number:06d}"
