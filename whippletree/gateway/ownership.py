"""Which gateway worker serves a rollout: a pure function, so that everybody knows without asking.

Invariants (tests/gateway/test_gateway_workers.py): every rollout has exactly one owner; owners are spread evenly.
"""

from __future__ import annotations

import hashlib


def owner(rollout_id: str, workers: int) -> int:
    """The number of the worker, from 0. `workers` is how many there are (1 or more)."""
    digest = hashlib.blake2b(rollout_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % workers
