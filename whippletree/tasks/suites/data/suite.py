"""The data-analysis suite: forms and grades take turns.

Invariants (tests/tasks/test_suites_generated.py): the same settings give the same tasks, byte for byte; no two have the same
question and answer; a sample is accepted by the checker.
"""

from __future__ import annotations

import random

from whippletree.tasks.suites.asking import draft
from whippletree.tasks.suites.config import DataFamily
from whippletree.tasks.suites.cutting import Cell, Suite
from whippletree.tasks.suites.data.questions import GRADES, SIZES
from whippletree.tasks.suites.data.worlds import SUBJECTS, Form, draw_world
from whippletree.tasks.writing import Draft, Limits


def data_suite(family: DataFamily) -> Suite:
    """The suite that these settings cut. Raises ConfigurationError."""
    cells = [_cell(form, grade) for grade in family.grades for form in family.forms]
    limits = Limits(agent=family.agent_timeout_sec, verifier=family.verifier_timeout_sec)
    return Suite("data", cells, train=family.train, heldout=family.heldout, seed=family.seed, limits=limits)


def _cell(form: Form, grade: int) -> Cell:
    def drafted(seed: str, task_id: str) -> Draft:
        rng = random.Random(seed)
        labels: dict[str, str | int | float] = {"suite": "data", "family": form, "grade": grade, "difficulty": f"grade {grade}"}
        while True:
            world = draw_world(rng, rng.choice(SUBJECTS), form, SIZES[grade])
            make = rng.choice(GRADES[grade])
            question = make(rng, world)
            if question is not None:
                return draft(question, task_id, labels | {"question": make.__name__.replace("_", " ")})

    return Cell(f"{form}-{grade}", drafted)
