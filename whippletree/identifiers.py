"""Ids that nothing else has, made without asking the system each time.

Invariants (tests/test_identifiers.py): ids differ, also between processes that were forked from one another; names that are put
together differ, however their parts are cut.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterable

_draw = random.Random()  # seeded by the system; these ids are no secrets
os.register_at_fork(after_in_child=_draw.seed)


def new_id(prefix: str) -> str:
    """`prefix` and 24 hexadecimal digits (96 random bits)."""
    return f"{prefix}{_draw.getrandbits(96):024x}"


def joined(parts: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A name of each: its parts, with hyphens between them. Where that is the name of another one too ("a-b", "c" and "a",
    "b-c"), both have a digest of their parts at the end."""
    plain = {part: "-".join(part) for part in parts}
    times = Counter(plain.values())
    return {part: name if times[name] == 1 else f"{name}-{_digest(part)}" for part, name in plain.items()}


def _digest(parts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
