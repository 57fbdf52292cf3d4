"""whippletree/loop/curriculum.py"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError
from whippletree.loop.curriculum import CurriculumConfig, chances, draw_task, next_task

TASKS = ["t0", "t1", "t2", "t3", "t4"]


def come(count: int, tasks: list[str], seed: str = "7/s", history: tuple[str, ...] = ()) -> list[str]:
    found = list(history)
    for _ in range(count):
        found.append(next_task(found, tasks, seed=seed))
    return found[len(history) :]


@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=6, unique=True), st.integers(0, 20))
def test_a_task_comes_again_only_after_all_others(tasks: list[str], count: int):
    found = come(count, tasks)
    for start in range(0, count, len(tasks)):
        epoch = found[start : start + len(tasks)]
        assert len(set(epoch)) == len(epoch)
    assert found == come(count, sorted(tasks, reverse=True))


def test_epochs_and_seeds_have_orders_of_their_own():
    found = come(10, TASKS)
    assert found[:5] != found[5:]
    assert found[:5] != come(5, TASKS, seed="8/s")


def test_a_cursor_by_task_survives_another_task_list():
    before = come(3, TASKS)
    gone, left = before[0], [task for task in TASKS if task not in before]
    changed = [task for task in TASKS if task != gone] + ["new"]
    following = come(3, changed, history=tuple(before))
    assert set(following) == {*left, "new"}  # none of this epoch comes twice, and none is forgotten


def test_chances_follow_recent_pass_rates():
    config = CurriculumConfig(low=0.25, high=0.75, outside=0.5, window=2)
    passed = {"t0": [0.0, 0.0, 1.0], "t1": [1.0, 1.0], "t2": [1.0, 0.0, 0.0], "t3": [0.25]}
    assert chances(TASKS, passed, config) == {"t0": 1.0, "t1": 0.5, "t2": 0.5, "t3": 1.0, "t4": 1.0}


def test_draws_follow_the_chances_and_the_seed():
    config = CurriculumConfig(outside=0.25)
    passed = {"t0": [1.0], "t1": [0.5]}
    draws = [draw_task(["x"] * n, ["t0", "t1"], passed, config, seed="1/s") for n in range(4000)]
    counts = Counter(draws)
    assert counts["t0"] / counts["t1"] == pytest.approx(0.25, rel=0.2)
    assert draws == [draw_task(["x"] * n, ["t1", "t0"], passed, config, seed="1/s") for n in range(4000)]
    assert draws != [draw_task(["x"] * n, ["t0", "t1"], passed, config, seed="2/s") for n in range(4000)]
    never = CurriculumConfig(outside=0.0)
    assert draw_task([], ["t0"], {"t0": [1.0]}, never, seed="1/s") == "t0"  # all are outside: all are drawn
    assert {draw_task(["x"] * n, ["t0", "t1"], passed, never, seed="1/s") for n in range(50)} == {"t1"}


def test_an_empty_band_is_refused():
    with pytest.raises(ConfigurationError, match="above high"):
        convert(CurriculumConfig, {"low": 0.9, "high": 0.1}, "here")
