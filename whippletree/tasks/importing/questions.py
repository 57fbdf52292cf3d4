"""Rows with a question and an answer, as tasks whose answer is handed in. Pure.

Invariants (tests/tasks/test_importing_run.py): an answer that is a number counts within the tolerance, which the task says;
of a list of answers the first counts.
"""

from __future__ import annotations

from whippletree.configuration import Config
from whippletree.tasks.importing.rows import Row
from whippletree.tasks.suites.asking import Question, draft
from whippletree.tasks.writing import Draft


class QuestionRows(Config):
    """Which columns hold what.

    Example: QuestionRows(question="question", answer="golden_answers", name="id")
    """

    question: str = "question"
    """Column with the question."""
    answer: str = "answer"
    """Column with the answer: text, a number, or a list whose first entry is taken."""
    name: str = "id"
    """Column with the row's name; rows without one are named by their number."""
    tolerance: float = 0.0
    """How far a number may be from the answer."""


class Refused(Exception):
    """A row that makes no task. `reason`: a few words of a fixed set; `detail`: of this row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def question_draft(row: Row, name: str, settings: QuestionRows) -> Draft:
    """The task. Raises Refused."""
    words, answer = row.get(settings.question), row.get(settings.answer)
    if not isinstance(words, str) or not words.strip():
        raise Refused("empty statement", f"column {settings.question}")
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise Refused("no answer", f"column {settings.answer}")
    if isinstance(answer, str) and len(answer.strip().splitlines()) > 1:
        raise Refused("answer of several lines")
    numeric = not isinstance(answer, str)
    said = f"\nA number within {settings.tolerance:g} of the right one counts." if numeric and settings.tolerance else ""
    question = Question(
        words=words.strip() + said,
        answer=answer if numeric else str(answer).strip(),
        solve=f"print({answer!r})\n",
        tolerance=settings.tolerance,
    )
    return draft(question, name, {"suite": "imported", "family": "question"})
