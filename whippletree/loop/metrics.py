"""What a run writes down: one typed line per step and per evaluation, and a summary.

Invariants (tests/loop/test_loop_metrics.py):
- a line is on disk when the step it describes is over; of several lines for one step (a replay) only the last is read;
- a rate over nothing is null, never 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from whippletree.types import Rollout, Struct

T = TypeVar("T", bound=msgspec.Struct)


class UpdateMetrics(Struct):
    """One of several updates of a batch; `rollouts`: those whose samples are in it. The others as in StepMetrics.

    Example: UpdateMetrics(rollouts=24, tokens_trained=9100, loss=0.02, grad_norm=0.8, clip_fraction=0.01, ratio_max=1.4)
    """

    rollouts: int
    tokens_trained: int
    loss: float
    grad_norm: float
    clip_fraction: float
    ratio_max: float
    row_fill: float | None = None
    learner: dict[str, float] = {}


class RubricMetrics(Struct):
    """What a rubric's judge did for the rollouts of a batch. `mean` of the `scored` ones; `failed` got no score. `asked`:
    answers that were given for them, of which several rollouts may share one; `cached`: rollouts whose answers were there
    already.

    Example: RubricMetrics(mean=0.6, scored=30, failed=2, asked=8, cached=0)
    """

    mean: float | None
    scored: int
    failed: int
    asked: int
    cached: int


class StepMetrics(Struct):
    """One batch and its update, or updates. Seconds are wall time of this process; rates are over rollouts with a reward.
    `trained_share`: trained tokens of those sampled; `alarms`: what is wrong with the batch or the update, in sentences.
    `groups_without_signal`: groups that the filters dropped, `groups_dropped` by filter and reason; `groups_by_source`:
    those that they kept. `samples_left_out`: samples in no row, by cause, and `tokens_left_out` the tokens that they would
    have trained ("stale": wasted). `shaping`: by how much each hook moved the mean reward (`reward_mean` is the verified
    one). `row_tokens` were computed for samples of `sample_tokens`; no layout needs fewer than `distinct_tokens`. `learner`:
    the loss's own diagnostics (docs/learner.md). Where the batch was spread over several `updates`, each is in there, and
    the other fields are of all: tokens add up, `loss`, `clip_fraction` and `learner` are means over them, `grad_norm` and
    `ratio_max` the largest. `teacher_failures`: rollouts that a teacher on a server did not score, by cause.
    `rubrics`: what judges did, by the rubrics' names.

    Example: StepMetrics(step=0, policy_version=1, reward_mean=0.25, rollouts=64, failed=0, ...)
    """

    step: int
    policy_version: int
    time: float
    rollouts: int
    failed: int
    reward_mean: float | None
    calls: int
    turns_mean: float | None
    tokens_trained: int
    samples: int
    groups_without_signal: int
    staleness_mean: float
    staleness_max: int
    loss: float
    grad_norm: float
    clip_fraction: float
    ratio_max: float
    logprob_max_abs_diff: float | None
    logprob_correlation: float | None
    weight_check_diff: float | None
    row_fill: float | None
    seconds_collect: float
    seconds_update: float
    seconds_publish: float
    prefix_breaks: dict[str, int] = {}
    replayed: bool = False
    trained_share: float | None = None
    alarms: tuple[str, ...] = ()
    sample_tokens: int = 0
    row_tokens: int = 0
    distinct_tokens: int = 0
    learner: dict[str, float] = {}
    groups_dropped: dict[str, int] = {}
    samples_left_out: dict[str, int] = {}
    tokens_left_out: dict[str, int] = {}
    groups_by_source: dict[str, int] = {}
    shaping: dict[str, float] = {}
    updates: tuple[UpdateMetrics, ...] = ()
    teacher_failures: dict[str, int] = {}
    rubrics: dict[str, RubricMetrics] = {}


class EvalMetrics(Struct):
    """One evaluation on the held-out tasks. `by_difficulty` maps a difficulty label to (passed, valid), `by_source` a source's
    name. `failed`: for reasons
    other than the model; `cut`: cancelled, because the evaluation's time was over or by somebody. Neither is in `success`;
    `success_of_all` counts both as not passed, so that a score cannot rise because rollouts failed. `policy_version` is the one
    that it was begun with, `versions` those that sampled it: more than one where training went on beside it.

    Example: EvalMetrics(step=0, policy_version=0, valid=128, failed=0, success=0.27, by_difficulty={"depth 1": (20, 40)})
    """

    step: int
    policy_version: int
    time: float
    valid: int
    failed: int
    success: float | None
    turns_mean: float | None
    by_difficulty: dict[str, tuple[int, int]]
    seconds: float
    cut: int = 0
    success_of_all: float | None = None
    versions: tuple[int, ...] = ()
    by_source: dict[str, tuple[int, int]] = {}


class Summary(Struct, omit_defaults=False):
    """The run in one object, `summary.json`.

    Example: Summary(heldout_before=0.27, heldout_after=0.88, seconds_total=300.0, ...)
    """

    heldout_before: float | None
    heldout_after: float | None
    seconds_total: float
    logprob_max_abs_diff: float | None
    logprob_correlation: float | None
    rollouts: int
    failed_rollouts: int
    calls: int
    tokens_trained: int
    steps: int
    seed: int
    isolation: str
    loop: str
    launch: str
    complete: bool


def finite(value: float) -> float | None:
    """NaN and inf become None, so that a line stays valid JSON."""
    return value if math.isfinite(value) else None


def finite_ones(values: Mapping[str, float]) -> dict[str, float]:
    """Those of the named values that are finite."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean; None over nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None


def success_rate(rollouts: Iterable[Rollout]) -> float | None:
    """Share of rollouts with full reward among those with a reward."""
    return mean(float(rollout.reward >= 1.0) for rollout in rollouts if rollout.reward is not None)


class Log:
    """Append-only JSON lines, one file per kind, read back on resume."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def append(self, name: str, record: msgspec.Struct) -> None:
        """Write one line and sync it."""
        with (self.directory / f"{name}.jsonl").open("ab+") as file:
            torn = file.tell() > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"  # of a killed process
            file.write((b"\n" if torn else b"") + msgspec.json.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self, name: str, kind: type[T]) -> list[T]:
        """Lines of a kind, in order; a torn one is left out."""
        return _read(self.directory / f"{name}.jsonl", kind)

    def steps(self) -> list[StepMetrics]:
        """Step lines, the last one of each step."""
        lines = _read(self.directory / "metrics.jsonl", StepMetrics)
        return [line for _, line in sorted({line.step: line for line in lines}.items())]

    def evals(self) -> list[EvalMetrics]:
        """Evaluation lines, the last one of each step."""
        lines = _read(self.directory / "eval.jsonl", EvalMetrics)
        return [line for _, line in sorted({line.step: line for line in lines}.items())]

    def to_parquet(self) -> Path:
        """Write metrics.parquet from the step lines."""
        import pyarrow
        import pyarrow.parquet

        tables = (
            "prefix_breaks",
            "groups_dropped",
            "groups_by_source",
            "samples_left_out",
            "tokens_left_out",
            "shaping",
            "learner",
            "updates",
            "teacher_failures",
            "rubrics",
        )
        rows = [
            msgspec.to_builtins(line)
            | {name: msgspec.json.encode(getattr(line, name)).decode() for name in tables}
            | {"alarms": "\n".join(line.alarms)}
            for line in self.steps()
        ]
        path = self.directory / "metrics.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path


def _read(path: Path, kind: type[T]) -> list[T]:
    lines: list[T] = []
    if path.is_file():
        for line in path.read_bytes().splitlines():
            try:
                lines.append(msgspec.json.decode(line, type=kind))
            except msgspec.DecodeError:
                continue  # a torn last line of a killed process
    return lines
