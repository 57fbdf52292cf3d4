"""Whose turn it is when several sources wait: the one with the least under way. Pure.

Invariants (tests/store/test_store_fairness.py):
- within a source the oldest come first;
- no source gets a second rollout while another that waits has fewer under way;
- what is chosen is as many as asked for, or all that wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from whippletree.types import Struct


class Waiting(Struct):
    """A queuing rollout: its place in the order of creation, its id, and the number of its last attempt.

    Example: Waiting(seq=12, rollout_id="s0-g1-m0", attempt=0)
    """

    seq: int
    rollout_id: str
    attempt: int


def fair(queues: Mapping[str, Sequence[Waiting]], running: Mapping[str, int], limit: int) -> list[Waiting]:
    """At most `limit` of the waiting rollouts, by source and oldest first in `queues`; `running` counts those under way.

    Equal sources take turns by the age of what waits longest.
    """
    heads = [(running.get(source, 0), queue[0].seq, source, 0) for source, queue in queues.items() if queue]
    heapq.heapify(heads)
    chosen: list[Waiting] = []
    while heads and len(chosen) < limit:
        count, _, source, place = heads[0]
        chosen.append(queues[source][place])
        if place + 1 < len(queues[source]):
            heapq.heapreplace(heads, (count + 1, queues[source][place + 1].seq, source, place + 1))
        else:
            heapq.heappop(heads)
    return chosen
