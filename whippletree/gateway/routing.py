"""Which replica a call goes to: a pure policy over plain values.

An attempt stays on the replica that holds its prefix in cache, for as long as that one answers; otherwise the least busy one.
Invariants (tests/gateway/test_gateway_routing.py): a replica that is down is never chosen; the delay grows and is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from whippletree.types import Struct

FIRST_DELAY = 0.05
LONGEST_DELAY = 1.0


class ReplicaView(Struct):
    """What routing knows of a replica. `down_until` is in seconds of a monotonic clock.

    Example: ReplicaView(place=0, in_flight=3, down_until=0.0)
    """

    place: int
    in_flight: int
    down_until: float


def choose(replicas: Sequence[ReplicaView], preferred: int, now: float) -> int | None:
    """The place of the replica to use; None when all are down. `preferred` is -1 where there is none."""
    up = [replica for replica in replicas if replica.down_until <= now]
    if any(replica.place == preferred for replica in up):
        return preferred
    return min(up, key=lambda replica: (replica.in_flight, replica.place)).place if up else None


def retry_delay(failures: int) -> float:
    """Seconds that a replica is left alone after so many failures in a row (1 or more)."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 20))
