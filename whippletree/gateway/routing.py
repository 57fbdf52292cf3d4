"""Which replica a call goes to: a pure policy over plain values, behind protocols.Router.

An attempt stays on the replica that holds its prefix in cache, for as long as that one answers; otherwise the least busy one.
Among equally busy ones a rollout has an order of its own, so that several gateway workers, which do not see each other's calls,
agree on its replica and still spread rollouts evenly.

Invariants (tests/gateway/test_gateway_routing.py): a replica that is down or whose circuit is open is never chosen.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from whippletree.errors import ConfigurationError
from whippletree.loading import load_named
from whippletree.protocols import ReplicaView, RoutedCall, Router

__all__ = ["ReplicaView", "RoutedCall", "StickyRouter", "load_router", "usable"]


def usable(replicas: Sequence[ReplicaView], now: float) -> list[ReplicaView]:
    """The replicas that may be asked now (seconds of a monotonic clock)."""
    return [replica for replica in replicas if replica.open and replica.down_until <= now]


class StickyRouter:
    """Satisfies protocols.Router: sticky by rollout, least busy first."""

    def choose(self, replicas: Sequence[ReplicaView], call: RoutedCall, now: float) -> int | None:
        """The place of the replica to use; None when none may be asked now."""
        up = usable(replicas, now)
        if any(replica.place == call.preferred for replica in up):
            return call.preferred
        return min(up, key=lambda replica: (replica.in_flight, _order(call.rollout_id, replica.place))).place if up else None


def _order(rollout_id: str, place: int) -> tuple[int, int]:
    """Where a replica stands in a rollout's own order; by place where there is no rollout."""
    return (zlib.crc32(f"{rollout_id}\0{place}".encode()) if rollout_id else 0, place)


def load_router(name: str) -> Router:
    """The router that a configuration names: "" is the sticky one, "module:name" a class or function that makes another.

    Raises ConfigurationError.
    """
    if not name:
        return StickyRouter()
    make = load_named("gateway.router", name)
    if not callable(make):
        raise ConfigurationError(f"gateway.router {name!r} is neither a class nor a function", "see protocols.Router")
    try:
        router = make()
    except Exception as error:  # a user's code may raise anything
        cause = f"gateway.router {name!r} cannot be made: {type(error).__name__}: {error}"
        raise ConfigurationError(cause, "it is called without arguments") from error
    if not isinstance(router, Router):
        raise ConfigurationError(f"gateway.router {name!r} has no choose method", "see protocols.Router")
    return router
