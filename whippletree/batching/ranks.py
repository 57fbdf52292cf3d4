"""Samples → updates → parts → micro-batches → ranks, from lengths and shared beginnings alone.

    samples ─► updates (whole rollouts) ─► parts ─► rows (token budget, evenly filled) ─► ranks (even cost, as many rows each)

A part is one sample, or with packing "tree" a tree of samples behind what they share (trees.py); it goes into a row whole.

Ranks run their rows in step: in each micro-batch all wait for the slowest. So rows of like cost share a micro-batch, from the
dearest to the cheapest, and within it the dearest goes to the rank that has had the least. The number of rows is the least
multiple of the number of ranks that the samples fit into; what remains are rows without samples.

Invariants (tests/batching/test_batching_ranks.py, test_batching_forests.py):
- every sample is in exactly one row of one rank; none is dropped, copied or cut, for any number of samples and ranks;
- a tree is laid with the samples before it that `shared` counts on, in the same row;
- a rollout is within one update; there are as many updates as configured, and their numbers of rollouts differ by at most 1;
- all ranks of an update have the same number of rows; a row without samples is explicit and has no tokens;
- a row is within the budget, unless it is one sample that is longer alone;
- the plan depends on the set of samples alone, not on their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from whippletree.batching.config import CostConfig, PackingConfig
from whippletree.batching.estimators import Float64
from whippletree.batching.packing import PlannedRow, SampleLength, best_fit, fill_of, in_order, level, make_rows
from whippletree.batching.trees import Part, PrefixOrder, cut
from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.types import Struct

Int64 = npt.NDArray[np.int64]

FEW = 4000  # samples up to which rows of even cost are tried too, beside rows of even length
EXCHANGES = 200  # most exchanges of rows between ranks


class UpdatePlan(Struct):
    """One optimiser update. `ranks[r][k]` is what rank r runs as its micro-batch k. `tokens` lie in its rows, of the samples'
    own `sample_tokens`; no layout needs fewer than `distinct_tokens` (without a prefix order nothing counts as shared).

    `fill` is tokens over room of all rows, those without samples too. With c the cost of a row, `imbalance` is how much more
    than the mean the dearest rank does: max over r of (sum over k of c) / mean - 1; and `waiting` how much longer than the
    mean the update takes when ranks run in step: (sum over k of the max over r of c) / mean - 1. Both 0.0 without rows.

    Example: UpdatePlan(ranks=((PlannedRow(...),), (PlannedRow(...),)), rollout_ids=("a", "b"), tokens=900,
                        sample_tokens=2000, distinct_tokens=870, fill=0.88, imbalance=0.01,
                        waiting=0.02, empty_rows=0, oversized_rows=0)
    """

    ranks: tuple[tuple[PlannedRow, ...], ...]
    rollout_ids: tuple[str, ...]
    tokens: int
    sample_tokens: int
    distinct_tokens: int
    fill: float
    imbalance: float
    waiting: float
    empty_rows: int
    oversized_rows: int


class BatchPlan(Struct):
    """The updates of one batch, in order.

    Example: BatchPlan(updates=(UpdatePlan(...),))
    """

    updates: tuple[UpdatePlan, ...]


def plan_batch(
    samples: Sequence[SampleLength], config: PackingConfig, ranks: int, order: PrefixOrder | None = None
) -> BatchPlan:
    """Plan a batch for `ranks` data-parallel ranks. `order` knows what the samples share (of these and perhaps others).

    Raises ConfigurationError for fewer than one rank, and for trees without an order; AlignmentError when a sample is empty or
    listed twice, or is not in the order as it is.
    """
    if ranks < 1:
        raise ConfigurationError(f"a batch cannot be planned for {ranks} ranks", "give at least 1")
    if config.packing == "tree" and order is None:
        raise ConfigurationError('packing "tree" needs to know what samples share', "give their prefix order")
    ordered = in_order(samples)
    updates = split_rollouts(ordered, config)
    return BatchPlan(updates=tuple(_plan_update(update, config, ranks, order) for update in updates))


def make_parts(samples: Sequence[SampleLength], token_budget: int, order: PrefixOrder | None) -> list[Part]:
    """What goes into rows whole, the longest first: trees where there is an order (of these samples), samples otherwise."""
    if order is None:
        return [
            Part(names=(one.sample_id,), shared=(0,), tokens=one.tokens, attention=one.tokens * one.tokens) for one in samples
        ]
    return sorted(cut(order, token_budget), key=lambda part: (-part.tokens, part.names))


def order_of(samples: Sequence[SampleLength], order: PrefixOrder) -> PrefixOrder:
    """The prefix order of these samples alone. Raises AlignmentError where it does not know one, or with another length."""
    lengths = {sample.sample_id: sample.tokens for sample in samples}
    own = order.only(lengths)
    found = dict(zip(own.names, own.lengths, strict=True))
    for name, tokens in lengths.items():
        if found.get(name) != tokens:
            told = f"with {found[name]}" if name in found else "not at all"
            raise AlignmentError(f"sample {name} of {tokens} tokens is in the prefix order {told}", "order what is planned")
    return own


def sample_costs(tokens: Sequence[int], cost: CostConfig) -> Float64:
    """linear n + quadratic n² for each sample of n tokens. Shape [samples]."""
    lengths = np.asarray(tokens, dtype=np.float64)
    return cost.linear * lengths + cost.quadratic * lengths * lengths


def part_costs(parts: Sequence[Part], cost: CostConfig) -> Float64:
    """The same for each part: what its samples share costs once. Shape [parts]."""
    tokens = np.array([part.tokens for part in parts], dtype=np.float64)
    return cost.linear * tokens + cost.quadratic * np.array([part.attention for part in parts], dtype=np.float64)


def split_rollouts(samples: Sequence[SampleLength], config: PackingConfig) -> list[list[SampleLength]]:
    """The samples of each update, in the given order: as many rollouts in each, of as much cost, each sample for itself."""
    if config.updates == 1:
        return [list(samples)]
    costs: dict[str, float] = {}
    for sample, cost in zip(samples, sample_costs([sample.tokens for sample in samples], config.cost).tolist(), strict=True):
        costs[sample.rollout_id] = costs.get(sample.rollout_id, 0.0) + cost
    names = sorted(costs, key=lambda name: (-costs[name], name))
    places = spread(np.array([costs[name] for name in names]), config.updates)
    update_of = dict(zip(names, places.tolist(), strict=True))
    parts: list[list[SampleLength]] = [[] for _ in range(config.updates)]
    for sample in samples:
        parts[update_of[sample.rollout_id]].append(sample)
    return parts


def spread(costs: Float64, bins: int) -> Int64:
    """The bin of each cost, such that sums are even and numbers differ by at most 1. Costs are given from the dearest on;
    every `bins` consecutive ones are in different bins. Shape [n] to [n]."""
    places = np.zeros(len(costs), dtype=np.int64)
    spent = np.zeros(bins)
    for start in range(0, len(costs), bins):
        column = costs[start : start + bins]
        free = np.argsort(spent, kind="stable")[: len(column)]
        places[start : start + bins] = free
        spent[free] += column
    return places


def _plan_update(samples: Sequence[SampleLength], config: PackingConfig, ranks: int, order: PrefixOrder | None) -> UpdatePlan:
    """`samples` are in order."""
    own = None if order is None else order_of(samples, order)
    parts = make_parts(samples, config.token_budget, own if config.packing == "tree" else None)
    costs = part_costs(parts, config.cost)
    if config.packing == "single":
        numbers: Sequence[int] = range(len(parts))
        count = -(-len(parts) // ranks) * ranks
    else:
        numbers, count = lay([part.tokens for part in parts], costs, ranks, config.token_budget)
    row_costs = sums(numbers, costs, count)
    table = exchange(place(row_costs, ranks), row_costs)
    rows = make_rows(parts, numbers, count, {sample.sample_id: sample.rollout_id for sample in samples})
    spent = row_costs[table]
    mean = float(costs.sum()) / ranks
    total = sum(sample.tokens for sample in samples)
    return UpdatePlan(
        ranks=tuple(tuple(rows[number] for number in column) for column in table.T.tolist()),
        rollout_ids=tuple(sorted({sample.rollout_id for sample in samples})),
        tokens=sum(row.tokens for row in rows),
        sample_tokens=total,
        distinct_tokens=total if own is None else own.distinct,
        fill=fill_of(rows, config.token_budget),
        imbalance=max(0.0, float(spent.sum(axis=0).max()) / mean - 1.0) if count else 0.0,
        waiting=max(0.0, float(spent.max(axis=1).sum()) / mean - 1.0) if count else 0.0,
        empty_rows=sum(1 for row in rows if not row.sample_ids),
        oversized_rows=sum(1 for row in rows if row.tokens > config.token_budget),
    )


def lay(sizes: Sequence[int], costs: Float64, ranks: int, budget: int) -> tuple[Sequence[int], int]:
    """Row number of each size, and the number of rows: the least multiple of `ranks` that was found to do."""
    alone = sum(1 for size in sizes if size > budget)
    halves = sum(1 for size in sizes if 2 * size > budget)
    least = max(halves, alone + -(-(sum(sizes) - sum(sizes[:alone])) // budget))
    rows = -(-least // ranks) * ranks
    numbers: Sequence[int] | None = level(sizes, sizes, rows, budget)
    if numbers is None:
        fewest, count = best_fit(sizes, budget)
        rows = max(rows, -(-count // ranks) * ranks)
        numbers = level(sizes, sizes, rows, budget) or fewest
    if len(sizes) > FEW:
        return numbers, rows
    even = level(sizes, costs.tolist(), rows, budget)
    if even is not None and _in_step(even, costs, rows, ranks) < _in_step(numbers, costs, rows, ranks):
        return even, rows
    return numbers, rows


def _in_step(numbers: Sequence[int], costs: Float64, rows: int, ranks: int) -> float:
    """Cost of an update whose ranks run in step, with rows of like cost together."""
    return float(np.sort(sums(numbers, costs, rows))[ranks - 1 :: ranks].sum())


def sums(numbers: Sequence[int], costs: Float64, rows: int) -> Float64:
    """Cost of each row from the row number and cost of each sample. Shape [rows]."""
    places = np.asarray(numbers, dtype=np.int64)
    return np.bincount(places, weights=costs, minlength=rows).astype(np.float64)


def place(costs: Float64, ranks: int) -> Int64:
    """Which row each rank runs in each micro-batch, the dearest micro-batch first. Shape [rows] to [rows / ranks, ranks]."""
    order = np.argsort(-costs, kind="stable")
    ranks_of = spread(costs[order], ranks)
    table = np.zeros((len(costs) // ranks, ranks), dtype=np.int64)
    table[np.arange(len(costs)) // ranks, ranks_of] = order
    return table


def exchange(table: Int64, costs: Float64) -> Int64:
    """Exchange rows of one micro-batch between the dearest rank and another as long as that makes the dearest cheaper. What
    ranks wait for each other stays the same. Shape [micro-batches, ranks], kept."""
    table = table.copy()
    for _ in range(EXCHANGES if table.size else 0):
        spent = costs[table]
        totals = spent.sum(axis=0)
        dearest = int(totals.argmax())
        moved = spent[:, dearest, None] - spent
        after = np.maximum(totals[dearest] - moved, totals[None, :] + moved)
        after[:, dearest] = totals[dearest]
        micro, other = divmod(int(after.argmin()), table.shape[1])
        if after[micro, other] >= totals[dearest] * (1.0 - 1e-6):
            break
        table[micro, [dearest, other]] = table[micro, [other, dearest]]
    return table
