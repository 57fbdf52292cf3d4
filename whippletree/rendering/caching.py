"""A cache of recently used values, bounded in bytes.

Invariants (tests/rendering/test_rendering_caching.py):
- the sizes of what it holds never add up to more than its limit;
- what was used last is dropped last;
- it may be used from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Key → value. `limit` is in bytes, as the caller counts them; 0 remembers nothing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, now the last used one; None where it is not held."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Hold a value of `size` bytes and drop the least recently used ones that no longer fit."""
        if size > self._limit:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            self._held += size - (old[1] if old else 0)
            self._entries[key] = (value, size)
            while self._held > self._limit:
                self._held -= self._entries.popitem(last=False)[1][1]

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held
