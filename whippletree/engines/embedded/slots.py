"""Which tokens each slot's KV cache holds, who owns it, and where a new request goes. Pure bookkeeping, no tensors.

A slot is one row of the KV cache. It keeps its content after its request ends, so that the next turn of the same
conversation, or another conversation with the same beginning, need not compute it again.

Invariants (tests/engines/test_embedded_slots.py):
- what `place` lets a request reuse is a true prefix of its tokens, computed, and shorter than the tokens;
- an owned slot is never given away or overwritten;
- a request waits only for an owner that was placed before it, so waits cannot form a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

SHARE_MINIMUM = 16
"""Tokens that a request must save before it waits one step for another request's prefill."""

TAIL_MAXIMUM = 16
"""Cached tokens that may be lost by continuing in place; beyond it the prefix is copied and the old content kept."""


@dataclass(frozen=True)
class Placement:
    """Where a request goes. The first `reused` tokens are taken from slot `source` (itself, when in place).
    `wait_for` is a slot whose owner is computing a longer common prefix of `wait_until` tokens; -1 for none."""

    slot: int
    source: int
    reused: int
    wait_for: int = -1
    wait_until: int = 0


class SlotTable:
    """Content and ownership of all slots."""

    def __init__(self, slots: int, context: int) -> None:
        self._tokens: Ids = np.full((slots, context), -1, dtype=np.int32)  # known tokens, computed or planned; -1 beyond
        self._computed = np.zeros(slots, dtype=np.int64)
        self._known = np.zeros(slots, dtype=np.int64)
        self._owned = np.zeros(slots, dtype=np.bool_)
        self._used = np.zeros(slots, dtype=np.int64)
        self._placed = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    @property
    def free(self) -> int:
        """Slots without an owner."""
        return int((~self._owned).sum())

    def computed(self, slot: int) -> int:
        """Tokens whose keys and values are in the cache."""
        return int(self._computed[slot])

    def common(self, slot: int, tokens: Ids) -> int:
        """Length of the computed prefix that `slot` shares with `tokens`, at most len(tokens) - 1."""
        limit = min(len(tokens) - 1, int(self._computed[slot]))
        differs = self._tokens[slot, :limit] != tokens[:limit]
        return int(differs.argmax()) if differs.any() else limit

    def shared(self, slots: npt.NDArray[np.int64]) -> int:
        """Number of computed tokens with which all of these slots begin; slots [n], n ≥ 1."""
        limit = int(self._computed[slots].min())
        same = (self._tokens[slots, :limit] == self._tokens[slots[0], :limit]).all(axis=0)
        return limit if same.all() else int(same.argmin())

    def place(self, tokens: Ids, *, reuse: bool = True) -> Placement | None:
        """Choose a slot for a request and give it away; None when all are owned. With `reuse` False nothing is reused.

        The caller copies `reused` tokens from `source` before it computes the rest, and reports with `advance`.
        """
        idle = np.flatnonzero(~self._owned)
        if not len(idle):
            return None
        planned, ready = self._matches(tokens)
        if not reuse:
            planned = ready = np.zeros_like(ready)
        placement = self._choose(idle, ready)
        waiting = self._wait(planned, placement.reused, self._owned)
        if waiting is not None:
            placement = Placement(placement.slot, placement.source, placement.reused, *waiting)
        self._give(placement.slot, tokens, placement.reused)
        return placement

    def _matches(self, tokens: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Per slot, how many tokens it shares with `tokens`: known ones, and computed ones; shapes [slots]."""
        limit = len(tokens) - 1
        differs = self._tokens[:, :limit] != tokens[:limit]
        known = np.where(differs.any(axis=1), differs.argmax(axis=1), limit) if limit else np.zeros_like(self._computed)
        return known, np.minimum(known, self._computed)

    def _choose(self, idle: npt.NDArray[np.int64], ready: npt.NDArray[np.int64]) -> Placement:
        best = int(ready.max())
        holders = idle[ready[idle] == best]
        if len(holders):
            tails = self._known[holders] - best
            slot = int(holders[tails.argmin()])
            if best and (tails.min() <= TAIL_MAXIMUM or len(idle) == 1):
                return Placement(slot, slot, best)
        source = int(ready.argmax())
        others = idle[idle != source] if best and len(idle) > 1 else idle
        oldest = int(others[np.lexsort((self._used[others], self._known[others] > 0))[0]])
        reused = best if oldest != source else int(ready[oldest])
        return Placement(oldest, source if reused else oldest, reused)

    def _wait(self, planned: npt.NDArray[np.int64], reused: int, among: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
        candidates = np.where(among, planned, -1)
        slot = int(candidates.argmax())
        until = int(candidates[slot])
        return (slot, until) if until - reused >= SHARE_MINIMUM else None

    def _give(self, slot: int, tokens: Ids, computed: int) -> None:
        self._clock += 1
        self._tokens[slot, : len(tokens)] = tokens
        self._tokens[slot, len(tokens) :] = -1
        self._known[slot] = len(tokens)
        self._computed[slot] = computed
        self._owned[slot] = True
        self._placed[slot] = self._clock

    def advance(self, slot: int, computed: int) -> None:
        """The owner's first `computed` tokens are in the cache."""
        self._computed[slot] = computed

    def append(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Owners' newly sampled tokens, one per slot, were computed at these positions; shapes [n]."""
        self._tokens[slots, positions] = tokens
        self._known[slots] = np.maximum(self._known[slots], positions + 1)
        self._computed[slots] = positions + 1

    def release(self, slot: int) -> None:
        """The owner is done; what was computed stays for reuse."""
        self._clock += 1
        self._tokens[slot, self._computed[slot] :] = -1
        self._known[slot] = self._computed[slot]
        self._owned[slot] = False
        self._used[slot] = self._clock

    def invalidate(self) -> None:
        """Forget everything that was computed (the weights changed). Owners keep their slots and planned tokens."""
        self._computed[:] = 0
        self._known[~self._owned] = 0
        self._tokens[~self._owned] = -1

    def replan(self, slot: int, tokens: Ids) -> tuple[int, int] | None:
        """After `invalidate`: (slot, tokens) of an earlier owner whose prefill this one should wait for, or None."""
        self._give_known(slot, tokens)
        planned, _ = self._matches(tokens)
        return self._wait(planned, 0, self._owned & (self._placed < self._placed[slot]))

    def _give_known(self, slot: int, tokens: Ids) -> None:
        self._tokens[slot, : len(tokens)] = tokens
        self._known[slot] = len(tokens)
