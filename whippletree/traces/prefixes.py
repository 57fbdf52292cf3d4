"""Token sequences that share their beginnings, kept once: a radix tree.

    [1 2 3 4] and [1 2 9]:   root ──1 2──► ● ──3 4──► ●
                                           └──9────► ●
Invariants (tests/traces/test_traces_prefixes.py):
- two sequences end at one place exactly when they are equal, and a place stays valid when later sequences are added;
- the ids on the way to a place are the sequence that ends there;
- adding a sequence takes time linear in the ids that follow its start, `longest_earlier` time near linear in its places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from whippletree.types import Int32


class Place:
    """Where a sequence of ids ends: `depth` ids from the root, the last of them `label` (int32) on the way from `above`."""

    __slots__ = ("above", "below", "depth", "label")

    def __init__(self, above: Place | None, label: Int32) -> None:
        self.above = above
        self.label = label
        self.depth: int = len(label) + (0 if above is None else above.depth)
        self.below: dict[int, Place] = {}

    def extend(self, ids: Int32) -> Place:
        """The place where this sequence and then `ids` (int32 [N]) ends; made if it is new. `ids` are kept, not copied."""
        place = self
        while len(ids):
            below = place.below.get(int(ids[0]))
            if below is None:
                below = place.below[int(ids[0])] = Place(place, ids)
                return below
            shared = _shared(below.label, ids)
            place, ids = below if shared == len(below.label) else below._split(shared), ids[shared:]
        return place

    def _split(self, length: int) -> Place:
        """A new place on the way to this one, `length` ids after the one above."""
        above = self.above
        assert above is not None
        middle = Place(above, self.label[:length])
        above.below[int(self.label[0])] = middle
        self.above, self.label = middle, self.label[length:]
        middle.below[int(self.label[0])] = self
        return middle

    def ids(self, after: Place | None = None) -> Int32:
        """The ids of the sequence, int32 [depth]; with `after`, a place on the way, only those that follow it."""
        labels: list[Int32] = []
        place: Place | None = self
        while place is not None and place is not after:
            labels.append(place.label)
            place = place.above
        return np.concatenate(labels[::-1]) if labels else _NONE


_NONE: Int32 = np.zeros(0, np.int32)


def make_root() -> Place:
    """The place of the empty sequence."""
    return Place(None, _NONE)


def longest_earlier(sequences: Sequence[Place | None], ends: Sequence[Place | None]) -> list[Place | None]:
    """For each i, the deepest place on the way to `sequences[i]` where some `ends[j]`, j < i, is; None where there is none.

    Worked off from the last to the first: then ends only ever go away, and a way up that was found empty stays empty.
    """
    left = Counter(end for end in ends if end is not None)
    jumps: dict[Place, Place | None] = {}
    found: list[Place | None] = [None] * len(sequences)
    for number in range(len(sequences) - 1, -1, -1):
        end = ends[number]
        if end is not None:
            left[end] -= 1
        found[number] = _nearest(sequences[number], left, jumps)
    return found


def _nearest(place: Place | None, left: Counter[Place], jumps: dict[Place, Place | None]) -> Place | None:
    """The nearest place, from this one up, where an end is left; ways up that are known to be empty are jumped over."""
    passed: list[Place] = []
    while place is not None and not left[place]:
        passed.append(place)
        place = jumps.get(place, place.above)
    for one in passed:
        jumps[one] = place
    return place


def _shared(one: Int32, other: Int32) -> int:
    """How many ids two sequences, neither of them empty, begin with in common."""
    length = min(len(one), len(other))
    unequal = one[:length] != other[:length]
    where = int(unequal.argmax())
    return where if unequal[where] else length
