"""Which source the next groups come from, and which complete groups make a batch: pure functions.

A batch has a quota B of kept groups for each source, by the shares. With r the share of a source's groups that the filters
keep, B / r groups have to be started for it; the more a loop may run ahead, the more of them are in flight. New groups go round
the sources that are short of any, by smooth weighted round-robin with the weight  a B/r + (1 - a) (B - A)+ / r , A being the
groups that are kept already for the batch at hand (Sample Mixer, MiMo-V2.6 report, 6.3).
Invariants (tests/loop/test_mixer.py):
- over any window, the quotas of each source are its share of groups to within one;
- a source is given what it is short of, and nothing more; none is starved by another;
- a batch has every source's quota or names the sources that are short, and why; a source waits for its own groups only;
- where every group is kept, groups follow the shares in the order of `pick_source`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from whippletree.types import Struct

ALPHA = 0.5
LEAST_RATE = 0.1
"""However few of its groups are kept, a source has no more than ten times its need in flight."""


class Demand(Struct):
    """What a source is short of. `quota`: groups of it in the batch at hand; `owed`: groups that the batches up to the end of
    the window want; `kept`: complete groups in hand that a batch can take; `open`: groups under way; `rate`: share kept.

    Example: Demand(quota=6, owed=12, kept=2, open=8, rate=0.75)
    """

    quota: int
    owed: int
    kept: int
    open: int
    rate: float = 1.0

    @property
    def short(self) -> int:
        """Groups to start: need over rate, less what is under way."""
        return max(0, math.ceil(max(0, self.owed - self.kept) / max(self.rate, LEAST_RATE) - 1e-9) - self.open)

    @property
    def weight(self) -> float:
        """Weight in the round-robin."""
        missing = max(0, self.quota - self.kept)
        return (ALPHA * self.quota + (1 - ALPHA) * missing) / max(self.rate, LEAST_RATE)


class CompleteGroup(Struct):
    """A complete group that is in no step yet. `dropped`: why the filters drop it ("": they keep it).

    Example: CompleteGroup(group_id="g00003", source="trail", dropped="zero-advantage: equal_rewards")
    """

    group_id: str
    source: str
    dropped: str = ""


class Mixed(Struct):
    """The groups of a batch, those that are dropped with it included; `short`: what is wrong with its shares, by source.

    Example: Mixed(groups=("g00003", "g00001"), short={"trail": "1 of 4 groups: 12 were dropped by the filters"})
    """

    groups: tuple[str, ...]
    short: dict[str, str] = {}


def quotas(start: int, end: int, shares: Sequence[float]) -> tuple[int, ...]:
    """How many of the groups number `start` to `end` (exclusive) are of each source (smooth weighted round-robin)."""
    total = sum(shares)
    current = [0.0] * len(shares)
    counts = [0] * len(shares)
    for number in range(end):
        current = [value + share for value, share in zip(current, shares, strict=True)]
        chosen = max(range(len(shares)), key=lambda index: (current[index], -index))
        current[chosen] -= total
        counts[chosen] += number >= start
    return tuple(counts)


def accept_rate(kept: int, dropped: int) -> float:
    """Share of groups that are kept, cautious where few are known: 1.0 where none is."""
    return (kept + 1) / (kept + dropped + 1)


def dispatch(demands: Sequence[Demand]) -> list[int]:
    """The source of each group that is to be started, in order."""
    left = [demand.short for demand in demands]
    current = [0.0] * len(demands)
    order = []
    while any(left):
        waiting = [index for index, count in enumerate(left) if count]
        weights = {index: demands[index].weight or 1e-6 for index in waiting}
        for index in waiting:
            current[index] += weights[index]
        chosen = max(waiting, key=lambda index: (current[index], -index))
        current[chosen] -= sum(weights.values())
        left[chosen] -= 1
        order.append(chosen)
    return order


def mix(complete: Sequence[CompleteGroup], wanted: Mapping[str, int], *, most_dropped: float = math.inf) -> Mixed | None:
    """The first groups of each source, in the given order, up to `wanted` kept ones of it, with the dropped ones between them.
    None while a source is short of some. One that has `most_dropped` times its quota of dropped groups is taken as it is."""
    taken: set[str] = set()
    short: dict[str, str] = {}
    for source, quota in wanted.items():
        kept = dropped = 0
        for group in complete:
            if group.source != source or kept == quota:
                continue
            taken.add(group.group_id)
            kept, dropped = kept + (not group.dropped), dropped + bool(group.dropped)
        if kept < quota:
            if dropped < most_dropped * quota:
                return None
            short[source] = f"{kept} of {quota} groups: {dropped} were dropped by the filters (loop.replace_at_most)"
    return Mixed(groups=tuple(group.group_id for group in complete if group.group_id in taken), short=short)
