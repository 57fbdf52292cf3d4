"""Where a JSON object ends, in text that comes in pieces.

Invariants (tests/rendering/test_rendering_scanning.py):
- of a JSON object and any text after it, the scanner ends at the object's last brace, for any split of the text;
- it is lenient with what is inside strings and bare words and with a comma too many, but never reads past a character that has
  no place in an object, such as the first of a mark.
"""

from __future__ import annotations

import enum
import re

WHITE = frozenset(" \t\n\r")
BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-._")
_PLAIN = re.compile(r'[^"\\]*')


class Verdict(enum.Enum):
    """MORE: the object goes on. DONE: it ended. BROKEN: the next character has no place in it."""

    MORE = enum.auto()
    DONE = enum.auto()
    BROKEN = enum.auto()


class _Due(enum.Enum):
    """What may come next."""

    VALUE = enum.auto()
    FIRST_ITEM = enum.auto()
    FIRST_KEY = enum.auto()
    KEY = enum.auto()
    COLON = enum.auto()
    WORD = enum.auto()
    AFTER = enum.auto()


_VALUES = frozenset({_Due.VALUE, _Due.FIRST_ITEM})
_KEYS = frozenset({_Due.FIRST_KEY, _Due.KEY})
_ENDS = frozenset({_Due.AFTER, _Due.WORD})


class ObjectScanner:
    """Reads one JSON object from its first brace on."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._due = _Due.VALUE
        self._in_string = False
        self._escaped = False

    def scan(self, text: str, start: int) -> tuple[Verdict, int]:
        """Read on from text[start]. The place is the first one that was not read: the end of the text, the place after the
        object, or that of the character that has no place in it."""
        place = start
        while place < len(text):
            if self._in_string:
                place = self._string(text, place)
                continue
            character = text[place]
            if character in WHITE:
                self._due = _Due.AFTER if self._due is _Due.WORD else self._due
            elif not self._take(character):
                return Verdict.BROKEN, place
            place += 1
            if not self._open:
                return Verdict.DONE, place
        return Verdict.MORE, place

    def _string(self, text: str, place: int) -> int:
        """Read on inside a string, to its end or that of the text."""
        if self._escaped:
            self._escaped = False
            return place + 1
        found = _PLAIN.match(text, place)
        place = found.end() if found else place
        if place < len(text):
            self._escaped = text[place] == "\\"
            self._in_string = self._escaped
            place += 1
        return place

    def _take(self, character: str) -> bool:
        """Read one character outside strings and white space; False where it has no place."""
        due = self._due
        if character in BARE:
            self._due = _Due.WORD
            return due in _VALUES or due is _Due.WORD
        match character:
            case '"':
                self._in_string = True
                self._due = _Due.COLON if due in _KEYS else _Due.AFTER
                return due in _KEYS or due in _VALUES
            case "{" | "[":
                self._open.append(character)
                self._due = _Due.FIRST_KEY if character == "{" else _Due.FIRST_ITEM
                return due in _VALUES
            case "}" | "]":
                return self._close(character, due)
            case ":":
                self._due = _Due.VALUE
                return due is _Due.COLON
            case ",":
                self._due = _Due.KEY if self._open[-1] == "{" else _Due.FIRST_ITEM
                return due in _ENDS
        return False

    def _close(self, character: str, due: _Due) -> bool:
        self._due = _Due.AFTER
        if self._open[-1] == "{":
            allowed = character == "}" and (due in _ENDS or due in _KEYS)
        else:
            allowed = character == "]" and (due in _ENDS or due is _Due.FIRST_ITEM)
        if allowed:
            self._open.pop()
        return allowed
