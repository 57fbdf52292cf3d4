"""Stop strings in text that comes in pieces.

Invariants (tests/rendering/test_rendering_stops.py):
- what is let through, joined, is the text before the stop string that is complete first (of two that end together, the longer),
  or the whole text where there is none, for any split of the text;
- nothing is held back but an end that may be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Lets text through up to a stop string. `stopped` is the one that was met, "" so far."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = ""

    def feed(self, text: str) -> str:
        """The part of what is held and this text that is settled. Nothing once a stop string was met."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if ends:
            _, start, self.stopped = min(ends)
            self._held = ""
            return text[:start]
        cut = len(text) - max(overlap(text, stop) for stop in self._stops)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """What is held: it did not become a stop string."""
        text, self._held = self._held, ""
        return text


def overlap(text: str, mark: str) -> int:
    """Length of the longest proper prefix of `mark` that `text` ends with."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
