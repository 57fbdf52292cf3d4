"""Packing plans: which samples share a row.

A row is samples laid end to end, without padding, up to a token budget; it is one micro-batch (one forward and backward), and
all rows of a plan belong to one optimiser update. Best fit decreasing: samples from long to short, each into the fullest row
that still has room.

Invariants (tests/batching/test_batching_packing.py):
- every sample is in exactly one row; a sample is never cut;
- a row is within the budget, unless it is one sample that is longer than the budget alone;
- the plan depends on the set of samples alone, not on their order;
- no two rows would fit into one.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.types import Struct


class SampleLength(Struct):
    """A sample's length in tokens, context included.

    Example: SampleLength(sample_id="s0003-g02-m5/0", rollout_id="s0003-g02-m5", tokens=412)
    """

    sample_id: str
    rollout_id: str
    tokens: int


class PlannedRow(Struct):
    """Samples of one row, in the order in which they are laid, with the rollout of each.

    Example: PlannedRow(sample_ids=("a/0", "b/0"), rollout_ids=("a", "b"), tokens=500)
    """

    sample_ids: tuple[str, ...]
    rollout_ids: tuple[str, ...]
    tokens: int


class Plan(Struct):
    """The rows of one update, the longest first (so that what does not fit into memory fails at once).

    `fill` is tokens over room, in (0, 1]; a row that is longer than the budget counts as full; 1.0 for a plan of no rows.

    Example: Plan(rows=(...,), tokens=900, fill=0.88, oversized_rows=0)
    """

    rows: tuple[PlannedRow, ...]
    tokens: int
    fill: float
    oversized_rows: int


def plan_rows(samples: Sequence[SampleLength], token_budget: int) -> Plan:
    """Pack samples into rows of at most `token_budget` tokens.

    Raises ConfigurationError for a budget below 1, AlignmentError when a sample is empty or listed twice.
    """
    if token_budget < 1:
        raise ConfigurationError(f"the token budget of a row is {token_budget}", "give at least 1")
    ordered = sorted(samples, key=lambda sample: (-sample.tokens, sample.rollout_id, sample.sample_id))
    _check(ordered)
    rows: list[list[SampleLength]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row number), sorted
    for sample in ordered:
        place = bisect.bisect_left(room, (sample.tokens, -1))
        if place < len(room):
            left, number = room.pop(place)
            rows[number].append(sample)
        else:
            left, number = token_budget, len(rows)
            rows.append([sample])
        if left > sample.tokens:
            bisect.insort(room, (left - sample.tokens, number))
    planned = [
        PlannedRow(
            sample_ids=tuple(sample.sample_id for sample in row),
            rollout_ids=tuple(sample.rollout_id for sample in row),
            tokens=sum(sample.tokens for sample in row),
        )
        for row in rows
    ]
    planned.sort(key=lambda row: (-row.tokens, row.sample_ids))
    tokens = sum(row.tokens for row in planned)
    capacity = sum(max(row.tokens, token_budget) for row in planned)
    return Plan(
        rows=tuple(planned),
        tokens=tokens,
        fill=tokens / capacity if capacity else 1.0,
        oversized_rows=sum(1 for row in planned if row.tokens > token_budget),
    )


def _check(samples: Sequence[SampleLength]) -> None:
    seen: set[str] = set()
    for sample in samples:
        if sample.tokens < 1:
            raise AlignmentError(f"sample {sample.sample_id} has {sample.tokens} tokens", "leave out empty samples")
        if sample.sample_id in seen:
            raise AlignmentError(f"sample {sample.sample_id} is listed twice", "list each sample once")
        seen.add(sample.sample_id)
