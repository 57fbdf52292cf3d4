"""A suite: kinds of tasks that take turns, cut into held-out and training tasks that differ by content.

    cells ─► held-out tasks (drawn first) ─► training tasks, each unlike all that were drawn before it

Invariants (tests/tasks/test_suites_cutting.py):
- the same settings give the same tasks, and more training tasks leave the others as they are;
- no two tasks of a suite have the same key, in either set;
- a suite that asks for more than its kinds can give is an error that names the kind, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from whippletree.errors import ConfigurationError
from whippletree.tasks.writing import Draft, Limits, check_alone, write_draft

TRIES = 1_000  # draws in a row that may give nothing new


@dataclass(frozen=True)
class Cell:
    """One kind of task. `draft(seed, task_id)` makes one of it; the same for the same seed."""

    name: str
    draft: Callable[[str, str], Draft]


class Suite:
    """Tasks of several kinds that take turns. Raises ConfigurationError where the numbers make no sense."""

    def __init__(self, name: str, cells: Sequence[Cell], *, train: int, heldout: int, seed: int, limits: Limits) -> None:
        if not cells or train < 0 or heldout < 0:
            cause = f"{name} suite: {len(cells)} kinds of tasks, {train} training and {heldout} held-out tasks"
            raise ConfigurationError(cause, "choose at least one family and grade, and no negative numbers")
        self.name = name
        self.limits = limits
        self._cells = cells
        self._train = train
        self._heldout = heldout
        self._seed = seed

    def drafts(self) -> Iterator[tuple[str, Draft]]:
        """("heldout" or "train", task): all held-out tasks, then the training tasks. Raises ConfigurationError."""
        seen: set[str] = set()
        for split, count in (("heldout", self._heldout), ("train", self._train)):
            for index in range(count):
                yield split, self._draw(split, index, seen)

    def _draw(self, split: str, index: int, seen: set[str]) -> Draft:
        cell = self._cells[index % len(self._cells)]
        task_id = f"{self.name}-{split}-{cell.name}-{index:05d}"
        for time in range(TRIES):
            found = cell.draft(f"{self._seed}/{self.name}/{split}/{index}/{time}", task_id)
            if found.key not in seen:
                seen.add(found.key)
                return found
        cause = f"{self.name} suite: there is no further task of the kind {cell.name} after {len(seen)} of all kinds"
        raise ConfigurationError(cause, "ask for fewer tasks, or for more families and grades")

    def write(self, directory: Path) -> tuple[list[Path], list[Path]]:
        """Write directory/train and directory/heldout; returns their tasks. Equal ones that are there are left alone. Raises
        TaskError where others are, ConfigurationError, before anything is written, where there are not as many."""
        paths: dict[str, list[Path]] = {"train": [], "heldout": []}
        drafts = list(self.drafts())
        for split in paths:
            check_alone(directory / split, {draft.task_id for among, draft in drafts if among == split})
        for split, draft in drafts:
            paths[split].append(write_draft(directory / split, draft, self.limits))
        return paths["train"], paths["heldout"]
