"""whippletree/tasks/suites/cutting.py"""

from __future__ import annotations

import random

import pytest

from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks.suites.cutting import Cell, Suite
from whippletree.tasks.writing import Draft, Limits


def cell(name: str, many: int) -> Cell:
    """A kind of task with so many different ones."""

    def make(seed: str, task_id: str) -> Draft:
        number = random.Random(seed).randrange(many)
        test = {"test.sh": b"#!/bin/sh\n"}
        return Draft(task_id=task_id, instruction=f"{name} {number}", solution="", tests=test, key=f"{name}{number}")

    return Cell(name, make)


def suite(train: int, heldout: int, *cells: Cell, seed: int = 1) -> Suite:
    return Suite("s", cells, train=train, heldout=heldout, seed=seed, limits=Limits())


def test_kinds_take_turns_and_no_two_tasks_are_the_same():
    drafts = list(suite(20, 10, cell("a", 16), cell("b", 1000)).drafts())
    assert [split for split, _ in drafts] == ["heldout"] * 10 + ["train"] * 20
    assert [draft.instruction[0] for _, draft in drafts] == ["a", "b"] * 15
    assert len({draft.key for _, draft in drafts}) == 30
    assert len({draft.task_id for _, draft in drafts}) == 30


def test_more_training_tasks_leave_the_others_as_they_are():
    fewer = list(suite(6, 4, cell("a", 100)).drafts())
    assert list(suite(30, 4, cell("a", 100)).drafts())[:10] == fewer
    assert list(suite(6, 4, cell("a", 100), seed=2).drafts()) != fewer


def test_a_kind_that_is_used_up_is_named_and_nothing_is_written(tmp_path):
    with pytest.raises(ConfigurationError, match="no further task of the kind few after 10"):
        suite(20, 2, cell("few", 5), cell("b", 1000)).write(tmp_path / "tasks")
    assert not (tmp_path / "tasks").exists()


@pytest.mark.parametrize(("train", "heldout", "cells"), [(1, 1, 0), (-1, 1, 1), (1, -1, 1)])
def test_numbers_that_make_no_sense_are_refused(train, heldout, cells):
    with pytest.raises(ConfigurationError, match="s suite"):
        suite(train, heldout, *[cell("a", 5)] * cells)


def test_tasks_of_other_settings_are_not_laid_among_those_that_are_there(tmp_path):
    suite(6, 4, cell("a", 100)).write(tmp_path)
    with pytest.raises(TaskError, match="train holds 3 tasks of other settings, for example s-train-a-00001"):
        suite(6, 4, cell("a", 100), cell("b", 100)).write(tmp_path)
    assert len(list((tmp_path / "train").iterdir())) == 6
