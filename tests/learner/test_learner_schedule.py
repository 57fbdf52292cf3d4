"""whippletree/learner/schedule.py"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from whippletree.errors import ConfigurationError
from whippletree.learner.config import LearnerConfig
from whippletree.learner.schedule import rate_share


def shares(steps: int, **settings: Any) -> list[float]:
    return [rate_share(LearnerConfig(**settings), update, steps) for update in range(steps)]


def test_constant_stays_after_the_warmup():
    assert shares(6, warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert shares(3, warmup_steps=0) == [1.0, 1.0, 1.0]


def test_linear_falls_to_the_floor_at_the_last_update():
    assert shares(6, warmup_steps=2, schedule="linear", schedule_floor=0.2) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_falls_along_half_a_wave():
    expected = [0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(5)]
    assert shares(5, warmup_steps=0, schedule="cosine") == pytest.approx(expected)
    assert shares(5, warmup_steps=1, schedule="cosine") == pytest.approx(expected)


def test_an_end_of_its_own_is_kept_and_the_floor_stays():
    found = shares(8, warmup_steps=0, schedule="linear", schedule_steps=4, schedule_floor=0.1)
    assert found == pytest.approx([1.0, 0.7, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_the_rate_rises_once_and_never_again(schedule: str, warmup: int):
    found = shares(30, warmup_steps=warmup, schedule=schedule, schedule_floor=0.05)
    top = max(0, warmup - 1)
    assert found[top] == pytest.approx(1.0)
    assert found[-1] == pytest.approx(0.05)
    assert all(a < b for a, b in itertools.pairwise(found[: top + 1]))
    assert all(a > b for a, b in itertools.pairwise(found[top:]))


def test_a_schedule_without_room_is_refused():
    with pytest.raises(ConfigurationError, match=r"learner\.schedule"):
        LearnerConfig(schedule="cosine").check(0)
    with pytest.raises(ConfigurationError, match="warm-up takes 5"):
        LearnerConfig(schedule="linear", schedule_steps=5).check(100)
    LearnerConfig(schedule="linear").check(100)
    LearnerConfig().check(0)
