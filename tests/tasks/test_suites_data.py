"""whippletree/tasks/suites/data"""

from __future__ import annotations

import csv
import io
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from whippletree.tasks.suites.config import DataFamily
from whippletree.tasks.suites.data.questions import GRADES, SIZES
from whippletree.tasks.suites.data.suite import data_suite
from whippletree.tasks.suites.data.worlds import SUBJECTS, draw_world
from whippletree.tasks.suites.grade import is_right

MAKERS = [(grade, make) for grade, makers in GRADES.items() for make in makers]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.events)
def test_both_forms_hold_the_same_rows(subject, tmp_path: Path):
    plain, stored = (draw_world(random.Random(5), subject, form, 60) for form in ("csv", "sqlite"))
    assert (plain.events, plain.things) == (stored.events, stored.things)
    assert plain.files() == draw_world(random.Random(5), subject, "csv", 60).files()
    assert stored.files() == draw_world(random.Random(5), subject, "sqlite", 60).files()
    (tmp_path / "data.db").write_bytes(stored.files()["data.db"])
    database = sqlite3.connect(tmp_path / "data.db")
    rows = database.execute(f"SELECT * FROM {subject.events}").fetchall()
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    assert rows == list(plain.events)
    head, *cells = csv.reader(io.StringIO(plain.files()[f"{subject.events}.csv"].decode()))
    assert tuple(head) == subject.event_columns
    assert [float(row[4]) if row[4] else None for row in cells] == [event[4] for event in plain.events]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.events)
def test_events_refer_to_things_and_some_amounts_are_missing(subject):
    worlds = [draw_world(random.Random(seed), subject, "csv", 60) for seed in range(10)]
    for world in worlds:
        assert {event[2] for event in world.events} <= set(world.group_of)
        assert all(amount == round(amount, 2) for *_, amount in world.filled)
        assert len({event[0] for event in world.events}) == len(world.events)
    assert sum(len(world.events) - len(world.filled) for world in worlds) > 0


@pytest.mark.parametrize(("grade", "make"), MAKERS, ids=lambda value: getattr(value, "__name__", value))
def test_the_program_finds_the_answer_that_was_worked_out(grade: int, make, tmp_path: Path):
    done = 0
    for seed, form in ((seed, form) for seed in range(3) for form in ("csv", "sqlite")):
        rng = random.Random(seed)
        question = make(rng, draw_world(rng, SUBJECTS[seed], form, SIZES[grade]))
        if question is None:
            continue
        place = tmp_path / f"{seed}{form}"
        place.mkdir()
        for name, data in question.files.items():
            (place / name).write_bytes(data)
        (place / "solve.py").write_text(question.solve)
        out = subprocess.run(
            [sys.executable, "solve.py"], cwd=place, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        numeric = {"number": question.answer, "tolerance": question.tolerance}
        wanted = {"text": question.answer} if isinstance(question.answer, str) else numeric
        assert is_right(wanted, out), (question.words, question.answer, out)
        assert ("counts." in question.words) == (question.tolerance > 0)
        done += 1
    assert done >= 2


def test_best_of_several_has_no_tie():
    for seed in range(30):
        rng = random.Random(seed)
        world = draw_world(rng, SUBJECTS[0], "csv", 30)
        question = GRADES[2][2](rng, world)
        totals = Counter()
        for _, _, thing, _, amount in world.filled:
            totals[thing] += amount
        (best, first), (_, second) = totals.most_common(2)
        assert question is None if first - second < 0.01 else question.answer == best


def test_forms_and_grades_take_turns():
    labels = [draft.labels for _, draft in data_suite(DataFamily(train=8, heldout=0)).drafts()]
    assert [(label["family"], label["grade"]) for label in labels] == [
        (form, grade) for grade in (1, 2, 3, 4) for form in ("csv", "sqlite")
    ]
