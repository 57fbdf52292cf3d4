"""Which samples share a row.

A row is parts laid end to end, without padding, up to a token budget; it is one micro-batch (one forward and backward). A part
is one sample, or a tree of samples that share beginnings (trees.py). batching/ranks.py plans with these.

Two ways to lay parts by their sizes, both from the largest to the smallest:

    best_fit   each into the fullest row that still has room          few rows, the last ones empty
    level      each into the row that has cost the least so far       a given number of rows, evenly filled

Invariants (tests/batching/test_batching_packing.py):
- every size is in exactly one row, and a row is within the budget, unless it is one size that is above the budget alone;
- no two rows of `best_fit` would fit into one;
- `level` lays into the given rows or says that it cannot.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Mapping, Sequence

from whippletree.batching.trees import Part
from whippletree.errors import AlignmentError
from whippletree.types import Struct

LOOKED_AT = 256  # rows without room that `level` passes over for one sample before it gives up


class SampleLength(Struct):
    """A sample's length in tokens, context included.

    Example: SampleLength(sample_id="s0003-g02-m5/0", rollout_id="s0003-g02-m5", tokens=412)
    """

    sample_id: str
    rollout_id: str
    tokens: int


class PlannedRow(Struct):
    """Samples of one row, in the order in which they are laid, with the rollout of each. `sample_ids[k]` is laid from its token
    `shared[k]` on, behind the one before it. A row without samples is run too (other ranks wait for it), with a weight of zero.

    Example: PlannedRow(sample_ids=("a/0", "b/0"), rollout_ids=("a", "b"), shared=(0, 0), tokens=500)
    """

    sample_ids: tuple[str, ...]
    rollout_ids: tuple[str, ...]
    shared: tuple[int, ...]
    tokens: int


def in_order(samples: Sequence[SampleLength]) -> list[SampleLength]:
    """The longest first, then by name. Raises AlignmentError when a sample is empty or listed twice."""
    seen: set[str] = set()
    for sample in samples:
        if sample.tokens < 1:
            raise AlignmentError(f"sample {sample.sample_id} has {sample.tokens} tokens", "leave out empty samples")
        if sample.sample_id in seen:
            raise AlignmentError(f"sample {sample.sample_id} is listed twice", "list each sample once")
        seen.add(sample.sample_id)
    return sorted(samples, key=lambda sample: (-sample.tokens, sample.rollout_id, sample.sample_id))


def make_rows(parts: Sequence[Part], numbers: Sequence[int], count: int, rollout_of: Mapping[str, str]) -> list[PlannedRow]:
    """`count` rows from the row number of each part."""
    rows: list[list[Part]] = [[] for _ in range(count)]
    for part, number in zip(parts, numbers, strict=True):
        rows[number].append(part)
    return [
        PlannedRow(
            sample_ids=tuple([name for part in row for name in part.names]),
            rollout_ids=tuple([rollout_of[name] for part in row for name in part.names]),
            shared=tuple([common for part in row for common in part.shared]),
            tokens=sum([part.tokens for part in row]),
        )
        for row in rows
    ]


def fill_of(rows: Sequence[PlannedRow], token_budget: int) -> float:
    """Tokens over room; a row that is longer than the budget counts as full. 1.0 for no rows."""
    room = sum(max(row.tokens, token_budget) for row in rows)
    return sum(row.tokens for row in rows) / room if room else 1.0


def best_fit(sizes: Sequence[int], budget: int) -> tuple[list[int], int]:
    """Row number of each size, and how many rows there are. `sizes` are given from the largest on."""
    rooms: list[int] = []  # what is left in rows that have room, each value once, rising
    rows_with: dict[int, list[int]] = {}  # room → the rows that have it
    numbers: list[int] = []
    count = 0
    for size in sizes:
        place = bisect.bisect_left(rooms, size)
        if place < len(rooms):
            left = rooms[place]
            number = rows_with[left].pop()
            if not rows_with[left]:
                del rooms[place], rows_with[left]
        else:
            left, number, count = budget, count, count + 1
        if left > size:
            if left - size not in rows_with:
                bisect.insort(rooms, left - size)
            rows_with.setdefault(left - size, []).append(number)
        numbers.append(number)
    return numbers, count


def level(sizes: Sequence[int], costs: Sequence[float], rows: int, budget: int) -> list[int] | None:
    """Row number of each size, such that costs are even; None where a size found no room. `sizes` are given from the largest
    on; those above the budget get rows of their own."""
    alone = sum(1 for size in sizes if size > budget)
    if len(sizes) > alone and rows <= alone:
        return None
    numbers = list(range(alone))
    heap = [(0.0, 0, number) for number in range(alone, rows)]  # (cost, tokens, row)
    for size, cost in zip(sizes[alone:], costs[alone:], strict=True):
        full = []
        while heap and heap[0][1] + size > budget:
            full.append(heapq.heappop(heap))
            if len(full) > LOOKED_AT:
                return None
        if not heap:
            return None
        spent, tokens, number = heap[0]
        numbers.append(number)
        heapq.heapreplace(heap, (spent + cost, tokens + size, number))
        for row in full:
            heapq.heappush(heap, row)
    return numbers if len(numbers) == len(sizes) and alone <= rows else None
