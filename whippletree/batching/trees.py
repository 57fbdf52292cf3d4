"""Prefix-ordered tree packing: sequences that begin alike lie behind one copy of what they share.

    a b c d        in prefix order (sorted as text is), each sequence is laid from where it leaves the one before it:
    a b c x y          a b c d x y f       leaves (common beginnings) 0, 3, 1; a part of 4 + 2 + 1 = 7 tokens
    a f            a part is a run of neighbours of that order; where a tree is cut into parts, what they share is repeated

`plan_forests` then packs parts into rows by their lengths alone.

Sorting brings the sequences of one subtree together, so a part's tokens are known from lengths and common beginnings alone.
`cut` finds, in linear time, the cuts that repeat the fewest tokens among all that keep parts within the budget.

Invariants (tests/batching/test_trees.py):
- a part is within the budget, unless it is one sequence that is longer than the budget alone;
- every sequence is in exactly one part; the parts' tokens are the distinct prefixes plus what the cuts repeat;
- no other cutting within the budget repeats fewer tokens;
- order and parts depend on the set of sequences alone, not on how they were listed (equal ones keep the order of their names).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from whippletree.batching.packing import SampleLength, plan_rows
from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.types import Int32, Struct


class PrefixOrder(Struct):
    """Sequences sorted by their tokens. `shared[k]`: how many tokens sequence k begins with that k - 1 begins with too (0 for
    the first). `distinct`: number of distinct prefixes, the least number of tokens that any layout has to compute.

    Example: PrefixOrder(names=("a", "b"), lengths=(4, 5), shared=(0, 3), tokens=9, distinct=6)
    """

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    shared: tuple[int, ...]
    tokens: int
    distinct: int


class TreePart(Struct):
    """Neighbours of the prefix order that are laid together: `names[k]` from token `shared[k]` on. `tokens` are laid in all.

    Example: TreePart(names=("a", "b"), shared=(0, 3), tokens=6)
    """

    names: tuple[str, ...]
    shared: tuple[int, ...]
    tokens: int


def prefix_order(sequences: Mapping[str, Int32]) -> PrefixOrder:
    """Sort sequences (token ids [L], by name) so that those with common beginnings are neighbours.

    Raises AlignmentError for a sequence without tokens.
    """
    keys = {name: np.asarray(ids).astype(">i4").tobytes() for name, ids in sequences.items()}  # big-endian bytes sort as ids do
    for name, key in keys.items():
        if not key:
            raise AlignmentError(f"sample {name} has 0 tokens", "leave out empty samples")
    names = sorted(keys, key=lambda name: (keys[name], name))
    lengths = [len(sequences[name]) for name in names]
    shared = [0, *(_common(sequences[a], sequences[b]) for a, b in itertools.pairwise(names))][: len(names)]
    total = sum(lengths)
    return PrefixOrder(
        names=tuple(names), lengths=tuple(lengths), shared=tuple(shared), tokens=total, distinct=total - sum(shared)
    )


def _common(a: Int32, b: Int32) -> int:
    """Length of the longest common beginning."""
    limit = min(len(a), len(b))
    differ = np.flatnonzero(a[:limit] != b[:limit])
    return int(differ[0]) if len(differ) else limit


def cut(order: PrefixOrder, token_budget: int) -> list[TreePart]:
    """Parts of at most `token_budget` tokens that repeat as few tokens as possible. Trees that share nothing are never in one
    part: they are packed together later, by length.

    With the parts' ends at e, the least repetition up to k is f(k) = min over allowed starts s of f(s) + shared[s], whose
    starts move forward only: a window's minimum. Raises ConfigurationError for a budget below 1.
    """
    if token_budget < 1:
        raise ConfigurationError(f"the token budget of a row is {token_budget}", "give at least 1")
    count = len(order.names)
    new = [length - shared for length, shared in zip(order.lengths, order.shared, strict=True)]
    before = [0, *np.cumsum(new).tolist()]  # tokens that the order lays up to a sequence, uncut
    cost = [0] * (count + 1)  # least tokens repeated by the sequences before this one
    start_of = [0] * (count + 1)
    window: deque[int] = deque()  # possible starts of the part that ends here, cheapest first
    root = first = 0
    for end in range(1, count + 1):
        here = end - 1
        if order.shared[here] == 0:
            root = here
        price = cost[here] + order.shared[here]
        while window and cost[window[-1]] + order.shared[window[-1]] > price:
            window.pop()
        window.append(here)
        while first < here and (first < root or before[end] - before[first] + order.shared[first] > token_budget):
            first += 1
        while window[0] < first:
            window.popleft()
        start_of[end] = window[0]
        cost[end] = cost[window[0]] + order.shared[window[0]]
    return _parts(order, start_of)


def _parts(order: PrefixOrder, start_of: Sequence[int]) -> list[TreePart]:
    parts: list[TreePart] = []
    end = len(order.names)
    while end:
        start = start_of[end]
        shared = (0, *order.shared[start + 1 : end])
        tokens = sum(order.lengths[start:end]) - sum(shared)
        parts.append(TreePart(names=order.names[start:end], shared=shared, tokens=tokens))
        end = start
    return parts[::-1]


Packing = Literal["tree", "rows", "single"]


class Forest(Struct):
    """One row: `names[k]` is laid from token `shared[k]` on, behind `names[k - 1]`; a 0 begins a tree. `tokens` in all.

    Example: Forest(names=("a", "b", "c"), shared=(0, 3, 0), tokens=18)
    """

    names: tuple[str, ...]
    shared: tuple[int, ...]
    tokens: int


class ForestPlan(Struct):
    """The rows of one update, the longest first. `tokens` lie in them, of the samples' own `sample_tokens`; no layout needs
    fewer than `distinct_tokens`. `fill` is tokens over room, in (0, 1].

    Example: ForestPlan(rows=(...,), tokens=900, sample_tokens=2000, distinct_tokens=870, fill=0.88)
    """

    rows: tuple[Forest, ...]
    tokens: int
    sample_tokens: int
    distinct_tokens: int
    fill: float


def plan_forests(sequences: Mapping[str, Int32], token_budget: int, packing: Packing = "tree") -> ForestPlan:
    """Rows of at most `token_budget` tokens from sequences (token ids [L], by name); a longer one gets a row of its own.

    "tree" lays shared beginnings once, "rows" lays sequences end to end, "single" one by one. Raises ConfigurationError for a
    budget below 1, AlignmentError for a sequence without tokens.
    """
    order = prefix_order(sequences)
    if packing == "tree":
        parts = cut(order, token_budget)
    else:
        alone = zip(order.names, order.lengths, strict=True)
        parts = [TreePart(names=(name,), shared=(0,), tokens=length) for name, length in alone]
    by_name = {part.names[0]: part for part in parts}
    budget = token_budget if packing != "single" else 1
    plan = plan_rows([SampleLength(sample_id=n, rollout_id="", tokens=part.tokens) for n, part in by_name.items()], budget)
    rows = []
    for row in plan.rows:
        laid = [by_name[name] for name in row.sample_ids]
        names = tuple(name for part in laid for name in part.names)
        rows.append(Forest(names=names, shared=tuple(common for part in laid for common in part.shared), tokens=row.tokens))
    room = sum(max(row.tokens, token_budget) for row in rows)
    return ForestPlan(
        rows=tuple(rows),
        tokens=plan.tokens,
        sample_tokens=order.tokens,
        distinct_tokens=order.distinct,
        fill=plan.tokens / room if room else 1.0,
    )
