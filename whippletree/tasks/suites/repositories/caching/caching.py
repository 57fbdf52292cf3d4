"""A cache of limited size whose entries grow old. Time is given by the caller, in seconds."""

from __future__ import annotations


class Cache:
    """Keeps the `size` entries that were used last, each for at most `lifetime` seconds after it was put."""

    def __init__(self, size, lifetime):
        if size < 1 or lifetime <= 0:
            raise ValueError("size and lifetime must be positive")
        self._size = size
        self._lifetime = lifetime
        self._entries = {}
        self.hits = 0
        self.misses = 0

    def put(self, key, value, now):
        """Keep a value; the entry used longest ago goes where there is no room."""
        self._entries.pop(key, None)
        self.sweep(now)
        if len(self._entries) >= self._size:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
        self._entries[key] = (value, now + self._lifetime)

    def get(self, key, now, default=None):
        """The value of a key that is there and not too old; it counts as used."""
        entry = self._entries.get(key)
        if entry is None or entry[1] <= now:
            self.misses += 1
            return default
        self.hits += 1
        del self._entries[key]
        self._entries[key] = entry
        return entry[0]

    def sweep(self, now):
        """Remove what is too old; how many entries that were."""
        old = [key for key, (_, until) in self._entries.items() if until <= now]
        for key in old:
            del self._entries[key]
        return len(old)

    def __len__(self):
        return len(self._entries)

    def rate(self):
        """Share of the lookups that found something; 0.0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def keys(self):
        """Keys, the one used longest ago first."""
        return list(self._entries)


def remembered(function, cache, clock):
    """The function with its results kept; an exception is not kept."""

    def call(*arguments):
        missing = object()
        found = cache.get(arguments, clock(), missing)
        if found is not missing:
            return found
        result = function(*arguments)
        cache.put(arguments, result, clock())
        return result

    return call
