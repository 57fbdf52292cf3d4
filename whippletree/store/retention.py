"""Which payloads a run no longer needs: a pure policy.

Invariants (tests/store/test_store_retention.py):
- a rollout that is not finished, or whose step is not committed to a checkpoint, keeps its payloads;
- only ids come out; records are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable

from whippletree.store.config import StoreConfig
from whippletree.types import Rollout


def releasable(rollouts: Iterable[Rollout], committed: int, config: StoreConfig) -> list[str]:
    """Ids of rollouts whose payloads may go, when every step up to `committed` (-1: none) is in a checkpoint."""
    if config.retain == "all":
        return []
    newest = committed - config.retain_steps
    return [rollout.spec.rollout_id for rollout in rollouts if rollout.terminal and rollout.spec.step <= newest]
