"""Questions with one answer, as tasks: text compared exactly, or a number within a tolerance that the question says.

Invariants (tests/tasks/test_suites_generated.py): the answer is nowhere in the environment's instruction or its tests' place
before the verifier runs; two questions with the same words and answer have the same key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from whippletree.tasks.suites.handing_in import SUBMIT
from whippletree.tasks.writing import Draft, key_of

TEST = b"""#!/bin/sh
root=${0%/tests/test.sh}
exec python3 -B "$root/tests/grade.py" "$root/tests/wanted.json" answer.txt "$root/logs/verifier/reward.json"
"""
SOLVE = """#!/bin/sh
set -e
here=${0%/solve.sh}
submit "$(python3 -B "$here/solve.py")"
"""


@dataclass(frozen=True)
class Question:
    """What is asked; `answer`: text, or a number that counts within `tolerance`. `also`: further texts that are right.
    `solve`: a Python program that prints the answer, in the working directory."""

    words: str
    answer: str | float
    solve: str
    tolerance: float = 0.0
    also: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    programs: Mapping[str, bytes] = field(default_factory=dict)
    shared: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for the same words and answer."""
        return key_of(self.words, self.answer)


def draft(question: Question, task_id: str, labels: Mapping[str, str | int | float]) -> Draft:
    """The question as a task."""
    numeric = not isinstance(question.answer, str)
    wanted: dict[str, object] = {"text": question.answer}
    if numeric:
        wanted = {"number": question.answer, "tolerance": question.tolerance}
    elif question.also:
        wanted["also"] = question.also
    return Draft(
        task_id=task_id,
        instruction=f"{question.words}\nHand it in with: submit ANSWER",
        solution=SOLVE,
        tests={
            "test.sh": TEST,
            "grade.py": (Path(__file__).parent / "grade.py").read_bytes(),
            "wanted.json": msgspec.json.encode(wanted) + b"\n",
        },
        key=question.key,
        files=question.files,
        programs={"submit": SUBMIT, **question.programs},
        shared=question.shared,
        beside_solution={"solve.py": question.solve.encode()},
        labels=labels,
    )
