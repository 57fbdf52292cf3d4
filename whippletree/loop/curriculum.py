"""Which task of a source comes next: pure functions over the tasks that came before, in the order of their groups.

The cursor is a set of tasks, not an index: a source whose tasks were added to or removed from between a crash and its resume
goes on with those that its epoch has not had yet.
Invariants (tests/loop/test_curriculum.py):
- without a curriculum a task comes again only after every other task of its source came once, in an order drawn by the seed;
- the same history gives the same task, whatever the order of the task list;
- with one, a task whose pass rate is outside of the band has `outside` times the chance of one within it, and one that was
  never judged counts as within.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import msgspec

from whippletree.configuration import Config, Share


class CurriculumConfig(Config):
    """[sources.curriculum]: tasks are drawn by their recent pass rate, instead of each once an epoch."""

    low: Share = 0.2
    """Least pass rate of the band."""
    high: Share = 0.8
    """Largest pass rate of the band."""
    outside: Share = 0.1
    """Chance of a task outside of the band, relative to one within it. 0: never again, unless all are outside."""
    window: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Groups of a task, the latest ones, that its pass rate is of."""

    def __post_init__(self) -> None:
        """Raises ValueError for an empty band; `convert` adds the key."""
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")


def epoch_of(history: Sequence[str], tasks: Collection[str]) -> tuple[int, frozenset[str]]:
    """Number of the epoch that comes next, and the tasks that it has had. `history`: tasks in the order in which they came."""
    epoch, had = 0, set[str]()
    for task in history:
        if task in had:
            epoch, had = epoch + 1, set()
        had.add(task)
        if had.issuperset(tasks):
            epoch, had = epoch + 1, set()
    return epoch, frozenset(had)


def next_task(history: Sequence[str], tasks: Collection[str], *, seed: str) -> str:
    """The next task of a source in epochs, each in an order of its own."""
    epoch, had = epoch_of(history, tasks)
    return min(
        (task for task in tasks if task not in had),
        key=lambda task: hashlib.sha256(f"{seed}/{epoch}/{task}".encode()).digest(),
    )


def chances(tasks: Collection[str], passed: Mapping[str, Sequence[float]], config: CurriculumConfig) -> dict[str, float]:
    """Relative chance of each task. `passed`: share of passed rollouts of each judged group of a task, oldest first."""
    found = {}
    for task in sorted(tasks):
        recent = passed.get(task, ())[-config.window :]
        rate = sum(recent) / len(recent) if recent else None
        found[task] = 1.0 if rate is None or config.low <= rate <= config.high else config.outside
    return found


def draw_task(
    history: Sequence[str],
    tasks: Collection[str],
    passed: Mapping[str, Sequence[float]],
    config: CurriculumConfig,
    *,
    seed: str,
) -> str:
    """The next task of a source with a curriculum; the draw depends on the seed and on how many came before."""
    weights = chances(tasks, passed, config)
    values = list(weights.values()) if any(weights.values()) else [1.0] * len(weights)
    return random.Random(f"{seed}/{len(history)}").choices(list(weights), values)[0]
