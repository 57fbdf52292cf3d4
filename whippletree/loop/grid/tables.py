"""What the cells of a grid come to: one block per model and harness, and paired differences, as data and as CSV.

    cells ─► columns per task [T] ─┬─► blocks: rates, costs, causes
                                   └─► differences: models in one harness, harnesses of one model
Invariants (tests/loop/test_grid_tables.py):
- a block's cells are passed, failed, invalid or missing, each in one of these, and their sum is what the grid wants;
- invalid and missing cells are in no rate; `rate_of_all` counts them as not passed, so that no score rises by failures;
- tasks without a valid cell in both sides are in no difference;
- every block and difference is in the CSV, one line each, with the columns of its struct.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from whippletree.loop.grid.cells import Cell, GridTask, Place
from whippletree.loop.grid.statistics import (
    Estimate,
    Float64,
    Ratio,
    Resampling,
    difference_of,
    mean_of,
    pass_at_k,
    rate_of,
    rates,
    ratio_of,
)
from whippletree.types import Struct

ALL = "all"
"""The source that stands for every source of the grid together."""


class Block(Struct, omit_defaults=False):
    """A model in a harness, on the tasks of a source (or of all). `cells` are wanted; `valid` were judged, `invalid` failed for
    reasons other than the model, the others are `missing`. `rate`: mean over tasks of the share that passed (pass@1);
    `rate_of_all`: passed over wanted. `pass_at`: pass@k by k, over tasks with k valid cells.

    Costs are sums over valid cells, divided by the number that passed: what one solved task costs, failed tries included. None
    where none passed. `breaks`: broken prefixes by cause; `turns`, `seconds`: means per valid cell.

    Example: Block(model="tiny", harness="mini-text", source="all", tasks=12, cells=48, valid=47, passed=20, invalid=1,
                   missing=0, rate=Estimate(value=0.42, low=0.31, high=0.53, tasks=12))
    """

    model: str
    harness: str
    source: str
    tasks: int
    cells: int
    valid: int
    passed: int
    invalid: int
    missing: int
    tried_again: int = 0
    rate: Estimate | None = None
    rate_of_all: float = 0.0
    pass_at: dict[int, Estimate | None] = {}
    reward: Estimate | None = None
    turns: float | None = None
    seconds: float | None = None
    agent_seconds: float | None = None
    tool_calls_per_solved: Ratio | None = None
    sampled_per_solved: Ratio | None = None
    computed_per_solved: Ratio | None = None
    causes: dict[str, int] = {}
    cut_short: dict[str, int] = {}
    breaks: dict[str, int] = {}


class Difference(Struct, omit_defaults=False):
    """Pass rate of `first` less that of `second`, task by task, `within` what both share: two models in one harness, or two
    harnesses with one model. None where no task has a valid cell in both.

    Example: Difference(kind="models", within="mini-text", first="trained", second="tiny", source="all",
                        estimate=Estimate(value=0.25, low=0.1, high=0.4, tasks=12))
    """

    kind: str
    within: str
    first: str
    second: str
    source: str
    estimate: Estimate | None


class Results(Struct, omit_defaults=False):
    """A grid as far as it is run. `failed`: models that could not be evaluated, and why.

    Example: Results(name="grid", models=("tiny",), harnesses=("mini-text",), sources=("trail",), blocks=(...), differences=())
    """

    name: str
    models: tuple[str, ...]
    harnesses: tuple[str, ...]
    sources: tuple[str, ...]
    confidence: float
    samples: int
    blocks: tuple[Block, ...] = ()
    differences: tuple[Difference, ...] = ()
    failed: dict[str, str] = {}

    def block(self, model: str, harness: str, source: str = ALL) -> Block:
        """One of the blocks. Raises KeyError."""
        for block in self.blocks:
            if (block.model, block.harness, block.source) == (model, harness, source):
                return block
        raise KeyError((model, harness, source))


class Columns(msgspec.Struct, frozen=True):
    """The cells of one model in one harness by task, in the order of the tasks. Shapes [T]."""

    valid: np.ndarray[Any, np.dtype[np.int64]]
    passed: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def rates(self) -> Float64:
        """Share of the valid cells that passed; NaN where none is valid."""
        return rates(self.valid, self.passed)


def summarise(
    name: str,
    cells: Sequence[Cell],
    tasks: Sequence[GridTask],
    *,
    models: Sequence[str],
    harnesses: Sequence[str],
    samples: int,
    pass_at: Sequence[int],
    how: Resampling,
    failed: dict[str, str] | None = None,
) -> Results:
    """Fold the cells of a grid. Cells of other models, harnesses, tasks or samples are left aside."""
    found = {(cell.model, cell.place): cell for cell in cells}
    sources = list(dict.fromkeys(task.source for task in tasks))
    blocks: list[Block] = []
    differences: list[Difference] = []
    for source in [ALL, *sources] if len(sources) > 1 else [ALL]:
        chosen = [task for task in tasks if source in (ALL, task.source)]
        grid = {
            (model, harness): [[found.get((model, place)) for place in _places(harness, task, samples)] for task in chosen]
            for model in models
            for harness in harnesses
        }
        blocks += [make_block(*key, source, by_task, pass_at=pass_at, how=how) for key, by_task in grid.items()]
        rated = {key: columns_of(by_task).rates for key, by_task in grid.items()}
        differences += compare(rated, source, models, harnesses, how)
    return Results(
        name=name,
        models=tuple(models),
        harnesses=tuple(harnesses),
        sources=tuple(sources),
        confidence=how.confidence,
        samples=samples,
        blocks=tuple(blocks),
        differences=tuple(differences),
        failed=failed or {},
    )


def _places(harness: str, task: GridTask, samples: int) -> list[Place]:
    return [Place(harness=harness, source=task.source, task_id=task.task_id, sample=sample) for sample in range(samples)]


def compare(
    rated: Mapping[tuple[str, str], Float64], source: str, models: Sequence[str], harnesses: Sequence[str], how: Resampling
) -> list[Difference]:
    """Every two models in each harness, then every two harnesses with each model; later ones less earlier ones. `rated`: rates
    by task, [T], of each model and harness."""
    found = []
    for harness in harnesses:
        for second, first in itertools.combinations(models, 2):
            gap = difference_of(rated[first, harness], rated[second, harness], how)
            found.append(Difference(kind="models", within=harness, first=first, second=second, source=source, estimate=gap))
    for model in models:
        for second, first in itertools.combinations(harnesses, 2):
            gap = difference_of(rated[model, first], rated[model, second], how)
            found.append(Difference(kind="harnesses", within=model, first=first, second=second, source=source, estimate=gap))
    return found


def columns_of(by_task: Sequence[Sequence[Cell | None]]) -> Columns:
    """Counts of each task's cells."""
    valid = [sum(cell is not None and cell.valid for cell in cells) for cells in by_task]
    passed = [sum(cell is not None and cell.passed for cell in cells) for cells in by_task]
    return Columns(np.array(valid, np.int64), np.array(passed, np.int64))


def make_block(
    model: str,
    harness: str,
    source: str,
    by_task: Sequence[Sequence[Cell | None]],
    *,
    pass_at: Sequence[int],
    how: Resampling,
) -> Block:
    """One block. `by_task`: the cells of each task, None where one is missing."""
    columns = columns_of(by_task)
    known = [cell for cells in by_task for cell in cells if cell is not None]
    valid = [cell for cell in known if cell.valid]
    invalid = [cell for cell in known if cell.invalid]
    total = sum(len(cells) for cells in by_task)
    passed = int(columns.passed.sum())

    def per_solved(name: str) -> Ratio | None:
        sums = [sum(getattr(cell, name) for cell in cells if cell is not None and cell.valid) for cells in by_task]
        return ratio_of(np.array(sums, np.float64), columns.passed.astype(np.float64), how)

    return Block(
        model=model,
        harness=harness,
        source=source,
        tasks=len(by_task),
        cells=total,
        valid=len(valid),
        passed=passed,
        invalid=len(invalid),
        missing=total - len(valid) - len(invalid),
        tried_again=sum(cell.tries > 1 for cell in known),
        rate=rate_of(columns.rates, how),
        rate_of_all=passed / total if total else 0.0,
        pass_at={k: rate_of(pass_at_k(columns.valid, columns.passed, k), how) for k in pass_at if k > 1},
        reward=mean_of(_rewards(by_task), how),
        turns=_mean([cell.turns for cell in valid]),
        seconds=_mean([cell.seconds for cell in valid]),
        agent_seconds=_mean([cell.agent_seconds for cell in valid]),
        tool_calls_per_solved=per_solved("tool_calls"),
        sampled_per_solved=per_solved("sampled_tokens"),
        computed_per_solved=per_solved("computed_tokens"),
        causes=dict(Counter(cell.cause for cell in invalid).most_common()),
        cut_short=dict(Counter(cell.cut_short for cell in valid if cell.cut_short).most_common()),
        breaks=dict(sum((Counter(cell.breaks) for cell in valid), Counter[str]())),
    )


def _rewards(by_task: Sequence[Sequence[Cell | None]]) -> Float64:
    """Mean reward of each task's valid cells; NaN where none is valid. Shape [T]."""
    found = [[cell.reward for cell in cells if cell is not None and cell.reward is not None] for cells in by_task]
    return np.array([float(np.mean(rewards)) if rewards else np.nan for rewards in found], np.float64)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def to_csv(rows: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> str:
    """Structs as CSV: one column per field, four for an estimate, one per entry of a table of estimates; a table of counts is
    written "a=2 b=1"."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row)) or list(kind.__struct_fields__)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if name in ESTIMATES:
            found |= _ends(name, value)
        elif name == "pass_at":
            for k, estimate in value.items():
                found |= _ends(f"pass_at_{k}", estimate)
        elif isinstance(value, dict):
            found[name] = " ".join(f"{key}={count}" for key, count in value.items())
        else:
            found[name] = value
    return found


ESTIMATES = frozenset({"rate", "reward", "tool_calls_per_solved", "sampled_per_solved", "computed_per_solved", "estimate"})


def _ends(name: str, estimate: Estimate | Ratio | None) -> dict[str, Any]:
    ends = ("value", "low", "high", "tasks")
    return {f"{name}_{end}" if end != "value" else name: getattr(estimate, end, None) for end in ends}
