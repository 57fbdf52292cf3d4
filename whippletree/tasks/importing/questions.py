"""Rows with a question and an answer, as tasks whose answer is handed in; with a corpus, it is searched for there.

Invariants (tests/tasks/test_importing_run.py): an answer that is a number counts within the tolerance, which the task says;
a cell that is empty, or no finite number, is no answer;
each text of a list of answers counts; a document of the corpus without a name of its own is an error that names it.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from whippletree.configuration import Config
from whippletree.errors import TaskError
from whippletree.tasks.importing.rows import Row, read_rows
from whippletree.tasks.suites.asking import Question, draft
from whippletree.tasks.suites.search.suite import INTRODUCTION, programs
from whippletree.tasks.writing import Draft


class QuestionRows(Config):
    """Which columns hold what.

    Example: QuestionRows(question="question", answer="golden_answers", name="id")
    """

    question: str = "question"
    """Column with the question."""
    answer: str = "answer"
    """Column with the answer: text, a number, or a list. Every text of a list is a right answer; of numbers the first is."""
    name: str = "id"
    """Column with the row's name; rows without one are named by their number."""
    tolerance: float = 0.0
    """How far a number may be from the answer."""
    corpus: str = ""
    """Documents to answer from, as rows with `id`, `title` and `text`: each task has them, and the programs `search` and
    `read_doc` of the search suite. Empty: none."""


class Refused(Exception):
    """A row that makes no task. `reason`: a few words of a fixed set; `detail`: of this row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def read_corpus(path: str) -> bytes:
    """The documents as the programs read them, one line of JSON each. Raises ConfigurationError, TaskError."""
    lines, seen = [], set()
    for number, row in enumerate(read_rows(Path(path)), 1):
        document = {name: str(row.get(name, "")).strip() for name in ("id", "title", "text")}
        if not document["id"] or not document["text"] or document["id"] in seen:
            raise TaskError(
                f"{path}: document {number} has no text, or no id of its own ({document['id']!r})",
                "give each document a text and an id that no other has; a title helps",
            )
        seen.add(document["id"])
        lines.append(msgspec.json.encode(document) + b"\n")
    return b"".join(lines)


def question_draft(row: Row, name: str, settings: QuestionRows, corpus: bytes = b"") -> Draft:
    """The task. `corpus`: what `read_corpus` gave; none without. Raises Refused."""
    words, (answer, *also) = row.get(settings.question), _answers(row.get(settings.answer), settings.answer)
    if not isinstance(words, str) or not words.strip():
        raise Refused("empty statement", f"column {settings.question}")
    numeric = not isinstance(answer, str)
    said = f"\nA number within {settings.tolerance:g} of the right one counts." if numeric and settings.tolerance else ""
    question = Question(
        words=words.strip() + said + (f"\n{INTRODUCTION}" if corpus else ""),
        answer=answer,
        solve=f"print({answer!r})\n",
        tolerance=settings.tolerance,
        also=tuple(map(str, also)),
        programs=programs() if corpus else {},
        shared={"corpus.jsonl": corpus} if corpus else {},
    )
    return draft(question, name, {"suite": "imported", "family": "question"})


def _answers(given: object, column: str) -> list[str | int | float]:
    """The right answers: one number, or texts. Raises Refused."""
    found = [
        entry.strip() if isinstance(entry, str) else entry
        for entry in (given if isinstance(given, list) else [given])
        if isinstance(entry, str | int | float) and not isinstance(entry, bool) and str(entry).strip()
        if not isinstance(entry, float) or math.isfinite(entry)  # a table's empty cell is a NaN, which no answer equals
    ]
    if not found:
        raise Refused("no answer", f"column {column}")
    if not isinstance(found[0], str):
        return found[:1]
    lines = [entry for entry in found if isinstance(entry, str) and len(entry.splitlines()) == 1]
    if not lines:
        raise Refused("answer of several lines")
    return list(dict.fromkeys(lines))
