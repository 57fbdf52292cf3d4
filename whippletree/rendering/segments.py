"""Encoding in segments: text is cut at the tokenizer's added tokens; each piece between them is encoded once and remembered.

Added tokens are hard borders for a tokenizer: it finds them first and encodes what lies between them piece by piece. So a
system prompt with its tools, and every message that was seen before, is tokenised once, whichever rollout it comes from.

Invariants (tests/rendering/test_rendering_segments.py):
- encode(text) is what the tokenizer gives for the whole text;
- a tokenizer whose added tokens look at the text beside them, or that fails a probe, has every text encoded as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from whippletree.rendering.caching import ByteCache

Ids = tuple[int, ...]
Encode = Callable[[str], Sequence[int]]
PROBES = ("a{0}\nb{0}{0} c  {0}  ", "{0}1 {1}\n\n{0}é🙂's{1}\t{0}x", " {0}{1}The end. {1} ")
ID_BYTES, ENTRY_BYTES = 40, 200  # an int and its slot; key, tuple and cache entry


class SegmentEncoder:
    """Encodes text through a cache of segments. `encode` is the tokenizer's own; `marks` are its added tokens by text.

    `plain`: no added token swallows or looks at the text beside it. `limit`: bytes of the cache. `between`: a faster way to
    encode text without added tokens.
    """

    def __init__(
        self, encode: Encode, marks: Mapping[str, int], *, plain: bool, limit: int, between: Encode | None = None
    ) -> None:
        self._encode = encode
        self._between = between or encode
        self._marks = dict(marks)
        self._cache: ByteCache[str, Ids] = ByteCache(limit)
        self._pattern = re.compile(f"({_any_of(sorted(marks))})") if plain and marks else None
        if self._pattern is None and marks:
            self._between = encode
        if not self._agrees():
            self._pattern, self._between = None, self._encode
            self._cache = ByteCache(limit)

    @property
    def splits(self) -> bool:
        """True when texts are encoded in segments."""
        return self._pattern is not None

    def encode(self, text: str) -> list[int]:
        """Ids of the text; the list is the caller's own."""
        if self._pattern is None:
            return list(self._segment(text))
        ids: list[int] = []
        pieces = self._pattern.split(text)
        for place in range(0, len(pieces) - 1, 2):
            if pieces[place]:
                ids.extend(self._segment(pieces[place]))
            ids.append(self._marks[pieces[place + 1]])
        if pieces[-1]:
            ids.extend(self._segment(pieces[-1]))
        return ids

    def _segment(self, text: str) -> Ids:
        ids = self._cache.get(text)
        if ids is None:
            ids = tuple(self._between(text))
            self._cache.put(text, ids, 4 * len(text) + ID_BYTES * len(ids) + ENTRY_BYTES)
        return ids

    def _agrees(self) -> bool:
        """Do segments give what the whole text gives, for each added token beside every kind of text?"""
        names = list(self._marks)
        for mark, other in zip(names, names[1:] + names[:1], strict=True):
            for probe in PROBES:
                text = probe.format(mark, other)
                if self.encode(text) != list(self._encode(text)):
                    return False
        return True


def _any_of(words: Sequence[str]) -> str:
    """A regular expression that takes the longest of the words that begins at a place, by their common beginnings."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + _any_of(rest) for first, rest in tails.items()]
    if not branches:
        return ""
    body = branches[0] if len(branches) == 1 and "" not in words else f"(?:{'|'.join(branches)})"
    return body + "?" if "" in words else body
