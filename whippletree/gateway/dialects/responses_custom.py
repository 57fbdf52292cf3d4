"""The input of a custom tool: free text for the harness, the one string argument `input` for the model. Pure.

    arguments  {"input": "*** Begin Patch\\n…"}  ⇄  *** Begin Patch⏎…  input

Invariants (tests/gateway/test_gateway_responses_parts.py):
- for arguments that `wrap` or any other JSON encoder made of {"input": text}, the pieces of `CustomInput` join to the text, for
  any split, also inside an escape or between two surrogates;
- from the first character on that does not fit this form the rest is passed on as it is: nothing sampled is hidden;
- what comes out is always valid Unicode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_HEAD = ("{", '"input"', ":", '"')
_SPACES = (" ", "\t", "\r", "\n")
_HEAD_LIMIT = 256  # characters; a longer beginning is only white space
_SPECIAL = re.compile(r'["\\]')
_TAIL = re.compile(r"[ \t\r\n]*(?:\}[ \t\r\n]*)?")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]*")
_NOT_YET = -1


def wrap(text: str) -> str:
    """The arguments of a call with this input, spelled as chat templates and most models spell JSON."""
    return json.dumps({"input": text}, ensure_ascii=False)


class CustomInput:
    """Arguments → input, piece by piece. `raw`: the arguments were not of the form at all; None while that is open."""

    def __init__(self) -> None:
        self.raw: bool | None = None
        self._held = ""
        self._at = 0
        self._state: Callable[[], str | None] = self._head

    def feed(self, arguments: str) -> str:
        """The input that this further piece settles."""
        self._held, self._at = self._held[self._at :] + arguments, 0
        pieces = []
        while self._at < len(self._held) and (piece := self._state()) is not None:
            pieces.append(piece)
        return "".join(pieces)

    def finish(self) -> str:
        """The rest: what was held back of a form that the arguments do not complete."""
        rest = "" if self._state == self._tail else self._take(len(self._held))
        self.raw = self.raw is not False
        return rest

    def _take(self, end: int) -> str:
        text, self._at = self._held[self._at : end], end
        return text

    # Each state takes what is settled from `_at` on, or returns None to wait for more.

    def _head(self) -> str | None:
        place = 0
        for mark in _HEAD:
            while self._held[place : place + 1] in _SPACES:
                place += 1
            found = self._held[place : place + len(mark)]
            if place >= _HEAD_LIMIT or not mark.startswith(found):
                self.raw = True
                return self._give_up()
            if found != mark:
                return None
            place += len(mark)
        self.raw = False
        self._at, self._state = place, self._text
        return ""

    def _text(self) -> str | None:
        special = _SPECIAL.search(self._held, self._at)
        end = special.start() if special else len(self._held)
        if end > self._at:
            return self._take(end)
        if self._held[end] == "\\":
            return self._escape()
        self._state = self._tail
        return ""

    def _escape(self) -> str | None:
        mark = self._held[self._at + 1 : self._at + 2]
        if mark == "u":
            return self._unicode()
        if mark in _ESCAPES:
            self._at += 2
            return _ESCAPES[mark]
        return self._give_up() if mark else None

    def _unicode(self) -> str | None:
        first = self._code(self._at)
        if first is None or first == _NOT_YET:
            return self._give_up() if first is None else None
        if not 0xD800 <= first < 0xE000:
            self._at += 6
            return chr(first)
        second = self._code(self._at + 6)
        if first >= 0xDC00 or second is None or 0 <= second < 0xDC00 or second >= 0xE000:
            return self._give_up()
        if second == _NOT_YET:
            return None
        self._at += 12
        return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))

    def _code(self, place: int) -> int | None:
        """The code of the \\u escape at `place`; _NOT_YET while it may still become one, None where there is none."""
        escape = self._held[place : place + 6]
        if not "\\u".startswith(escape[:2]) or _HEX.fullmatch(escape[2:]) is None:
            return None
        return int(escape[2:], 16) if len(escape) == 6 else _NOT_YET

    def _tail(self) -> str | None:
        return None if _TAIL.fullmatch(self._held, self._at + 1) else self._give_up()

    def _give_up(self) -> str:
        self._state = self._rest
        return self._rest()

    def _rest(self) -> str:
        return self._take(len(self._held))
