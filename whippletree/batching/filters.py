"""Which groups have something to teach.

Invariants (tests/batching/test_batching_filters.py):
- a group is kept if and only if its rewards differ; a kept group keeps all its voters, those with advantage 0 too;
- every group is either kept or counted under one cause.
"""

from __future__ import annotations

from whippletree.batching.advantages import Advantages, Signal
from whippletree.types import Struct


class KeptGroups(Struct):
    """Groups with a signal, in order of first appearance, and how many others were dropped by cause.

    Example: KeptGroups(group_ids=("g1", "g4"), dropped={"equal_rewards": 2})
    """

    group_ids: tuple[str, ...]
    dropped: dict[Signal, int]


def keep_groups(advantages: Advantages) -> KeptGroups:
    """Drop the groups whose advantages are all 0: of equal rewards, of one reward, of none.

    Advantages (and loss weights) are computed before, on everything, so that dropping changes no other row.
    """
    dropped: dict[Signal, int] = {}
    kept = []
    for group in advantages.groups:
        if group.signal == "signal":
            kept.append(group.group_id)
        else:
            dropped[group.signal] = dropped.get(group.signal, 0) + 1
    return KeptGroups(group_ids=tuple(kept), dropped=dropped)
