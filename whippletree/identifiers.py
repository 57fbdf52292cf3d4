"""Ids that nothing else has, made without asking the system each time.

Invariants (tests/test_identifiers.py): ids differ, also between processes that were forked from one another.
"""

from __future__ import annotations

import os
import random

_draw = random.Random()  # seeded by the system; these ids are no secrets
os.register_at_fork(after_in_child=_draw.seed)


def new_id(prefix: str) -> str:
    """`prefix` and 24 hexadecimal digits (96 random bits)."""
    return f"{prefix}{_draw.getrandbits(96):024x}"
