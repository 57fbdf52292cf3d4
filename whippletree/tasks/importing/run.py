"""Import a data set: every row, or every folder, becomes a task or has a reason why not.

Invariants (tests/tasks/test_importing_run.py):
- each row is decided once, also after a kill, and is told by name and reason;
- names are plain: what a row is called cannot leave the directory, and two rows of one name are an error of the second;
- a column or a directory of mirrors that there is not is an error, before anything is decided;
- a folder that does not load is not copied.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError, did_you_mean
from whippletree.tasks.filtering import copy_task, task_paths
from whippletree.tasks.images import Backing
from whippletree.tasks.importing.questions import QuestionRows, Refused, question_draft, read_corpus
from whippletree.tasks.importing.rows import Row, read_rows
from whippletree.tasks.importing.swe import SweRows, swe_draft
from whippletree.tasks.injecting.packing import SLACK
from whippletree.tasks.journal import Decision, Journal, Tally
from whippletree.tasks.reading import read_task
from whippletree.tasks.writing import Draft, Limits, write_draft

JOURNAL = "import.jsonl"
AGENT_SECONDS = 600.0
LOOKED_AT = 100  # rows in which columns are looked for
SWE_COLUMNS = ("instance_id", "problem_statement")
Tell = Callable[[Decision], None]
Making = Callable[[], None]


def import_rows(source: Path, out: Path, settings: SweRows | QuestionRows, tell: Tell) -> Tally:
    """Write a task for each row that makes one. Raises ConfigurationError, TaskError."""
    if isinstance(settings, SweRows) and not Path(settings.mirrors).is_dir():
        raise ConfigurationError(
            f"{settings.mirrors} is no directory", "give the directory that holds the mirrors by --mirrors"
        )
    drafting, limits = _drafting(settings)

    def write(row: Row, name: str) -> None:
        write_draft(out, drafting(row, name), limits)

    rows = _with_columns(read_rows(source), source, settings)

    def making() -> Iterator[tuple[str, Making]]:
        for number, row in enumerate(rows, 1):
            name = _name(row, settings, number)
            yield name, functools.partial(write, row, name)

    return _decide(source, out, settings, making(), tell)


def _with_columns(rows: Iterator[Row], source: Path, settings: SweRows | QuestionRows) -> Iterator[Row]:
    """The rows. Raises ConfigurationError where none of the first has a column that every task is made of."""
    first = list(itertools.islice(rows, LOOKED_AT))
    known = {name for row in first for name in row}
    wanted = SWE_COLUMNS if isinstance(settings, SweRows) else (settings.question, settings.answer)
    for name in wanted if first else ():
        if name not in known:
            columns = f"its columns are {', '.join(sorted(known))}"
            raise ConfigurationError(f"{source} has no column {name}", did_you_mean(name, known, columns))
    return itertools.chain(first, rows)


def _drafting(settings: SweRows | QuestionRows) -> tuple[Callable[[Row, str], Draft], Limits]:
    """What makes a task of a named row, and the limits of such tasks."""
    if isinstance(settings, SweRows):
        limits = Limits(agent=AGENT_SECONDS, verifier=settings.testing.seconds + SLACK)
        return functools.partial(swe_draft, settings=settings), limits
    corpus = read_corpus(settings.corpus) if settings.corpus else b""
    return functools.partial(question_draft, settings=settings, corpus=corpus), Limits(agent=AGENT_SECONDS)


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
    seen: Counter[str] = Counter()
    with Journal(out / JOURNAL, f"import {kind} {source.resolve()} {msgspec.json.encode(settings).decode()}") as journal:
        for name, make in making:
            called = f"{name} (again {count})" if (count := seen[name]) > 1 else f"{name} (again)" if count else name
            seen[name] += 1
            if called in journal.decisions:
                continue
            decision = Decision(name=called, kept=False, reason="two rows of one name") if count else _one(name, make)
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
