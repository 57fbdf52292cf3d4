"""Prefix-ordered tree packing: sequences that begin alike lie behind one copy of what they share.

    a b c d        in prefix order (sorted as text is), each sequence is laid from where it leaves the one before it:
    a b c x y          a b c d x y f       leaves (common beginnings) 0, 3, 1; a part of 4 + 2 + 1 = 7 tokens
    a f            a part is a run of neighbours of that order; where a tree is cut into parts, what they share is repeated

A part is what batching/ranks.py plans with: it goes into a row whole.

Sorting brings the sequences of one subtree together, so a part's tokens are known from lengths and common beginnings alone.
`cut` finds, in linear time, the cuts that repeat the fewest tokens among all that keep parts within the budget.

Invariants (tests/batching/test_trees.py):
- a part is within the budget, unless it is one sequence that is longer than the budget alone;
- every sequence is in exactly one part; the parts' tokens are the distinct prefixes plus what the cuts repeat;
- no other cutting within the budget repeats fewer tokens;
- the order of some of the sequences, taken from that of all, is the one that they have by themselves;
- order and parts depend on the set of sequences alone, not on how they were listed (equal ones keep the order of their names).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.types import Int32, Struct

Packing = Literal["tree", "rows", "single"]
"""What samples share is laid once; or samples lie end to end; or each is a row of its own."""


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

    def only(self, names: Collection[str]) -> PrefixOrder:
        """The order of some of the sequences: what two of them share is the least of what lies between."""
        wanted = set(names)
        kept: list[tuple[int, int, str]] = []
        least = 0
        for name, length, shared in zip(self.names, self.lengths, self.shared, strict=True):
            least = min(least, shared)
            if name in wanted:
                kept.append((length, least, name))
                least = length
        total = sum(length for length, _, _ in kept)
        return PrefixOrder(
            names=tuple(name for _, _, name in kept),
            lengths=tuple(length for length, _, _ in kept),
            shared=tuple(shared for _, shared, _ in kept),
            tokens=total,
            distinct=total - sum(shared for _, shared, _ in kept),
        )


class Part(Struct):
    """Sequences that are laid together: `names[k]` from token `shared[k]` on, behind what it shares with the one before.
    `tokens` are laid in all. `attention` measures what these look at: 2d + 1 for a token at depth d, so n² for n tokens alone.

    Example: Part(names=("a", "b"), shared=(0, 3), tokens=6, attention=16 + 16)
    """

    names: tuple[str, ...]
    shared: tuple[int, ...]
    tokens: int
    attention: int


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


def cut(order: PrefixOrder, token_budget: int) -> list[Part]:
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


def _parts(order: PrefixOrder, start_of: Sequence[int]) -> list[Part]:
    parts: list[Part] = []
    end = len(order.names)
    while end:
        start = start_of[end]
        shared = (0, *order.shared[start + 1 : end])
        lengths = order.lengths[start:end]
        attention = sum(length * length for length in lengths) - sum(common * common for common in shared)
        parts.append(Part(names=order.names[start:end], shared=shared, tokens=sum(lengths) - sum(shared), attention=attention))
        end = start
    return parts[::-1]
