"""One tool call of the form <tool_call>{"name": ..., "arguments": {...}}</tool_call>, read while it is sampled.

    head ─► arguments ─► tail ─► next                 name first, then an object: passed on as it comes
      │         └──────► raw ──► next                 what is no JSON any more: passed on as arguments up to the next mark
      └► whole at its closing mark ─► next            anything else that can be read; what cannot be is content

Invariants (tests/rendering/test_rendering_calls.py):
- the name is told as soon as the arguments' first brace has come, and their text from then on as it comes;
- a closing mark inside a JSON string does not end a call, if the string ends and the arguments with it;
- before the name is told a call that cannot be read is content; afterwards its text stays its arguments, and a reason is given.
"""

from __future__ import annotations

import enum
import re
from typing import Literal

import msgspec

from whippletree.rendering.layout import CALL_CLOSE, CALL_OPEN
from whippletree.rendering.scanning import ObjectScanner, Verdict
from whippletree.rendering.stops import overlap
from whippletree.rendering.turn import TurnBuilder
from whippletree.types import Struct

Ending = Literal["", "stop", "cut"]
LONGEST_NAME = 256  # characters; the name of a call is told at once only up to this length
_SPACE = r"[ \t\n\r]*"
_HEAD = re.compile(
    rf'{_SPACE}\{{{_SPACE}"name"{_SPACE}:{_SPACE}("(?:[^"\\]|\\.){{1,{LONGEST_NAME}}}"){_SPACE},{_SPACE}"arguments"{_SPACE}:{_SPACE}(?=\{{)',
    re.DOTALL,
)
_MARK = re.compile(f"{CALL_CLOSE}|{CALL_OPEN}")
_NO_END = f"the call has no {CALL_CLOSE}"


class Next(enum.Enum):
    """What comes after the part of the buffer that was taken: nothing yet, content, the gap after a call, or a call."""

    WAIT = enum.auto()
    CONTENT = enum.auto()
    GAP = enum.auto()
    CALL = enum.auto()


class CallParser:
    """One call, from the text after its opening mark."""

    def __init__(self, turn: TurnBuilder) -> None:
        self._turn = turn
        self._buffer = ""
        self._ending: Ending = ""
        self._state = self._head
        self._scanner = ObjectScanner()
        self._scanned = 0
        self._tried = 0  # marks before this place of the buffer are inside a string
        self._why = ""

    def read(self, buffer: str, ending: Ending) -> tuple[str, Next]:
        """Take what is settled; returns the rest and what it is. `ending`: nothing follows, the turn ended or was cut."""
        self._buffer, self._ending = buffer, ending
        following: Next | None = None
        while following is None:
            following = self._state()
        return self._buffer, following

    # Each state takes what is settled and says what follows; None means that another state goes on.

    def _head(self) -> Next | None:
        found = _HEAD.match(self._buffer)
        name = _decoded(found[1]) if found else None
        if found is None or name is None:
            return self._whole()
        self._turn.call(name)
        self._buffer, self._tried, self._why = self._buffer[found.end() :], 0, ""
        self._state = self._arguments
        return None

    def _whole(self) -> Next:
        """To the first closing mark that is not part of a JSON string."""
        while (end := self._buffer.find(CALL_CLOSE, self._tried)) >= 0:
            body, why, in_string = read_call(self._buffer[:end])
            if body is not None:
                self._turn.call(body.name)
                self._turn.arguments(body.arguments)
                self._buffer = self._buffer[end + len(CALL_CLOSE) :]
                return Next.GAP
            self._tried, self._why = end + 1, self._why or why
            if not in_string:
                return self._give_up()
        return self._give_up() if self._ending else Next.WAIT

    def _give_up(self) -> Next:
        """The call cannot be read: up to its first closing mark (or the end) it is content."""
        first = self._buffer.find(CALL_CLOSE)
        end = len(self._buffer) if first < 0 else first + len(CALL_CLOSE)
        self._turn.text(CALL_OPEN + self._buffer[:end])
        self._turn.malformed(self._why or _NO_END)
        self._buffer = self._buffer[end:]
        return Next.CONTENT

    def _arguments(self) -> Next | None:
        """Inside the arguments. From a closing mark inside a string on they are held back until the object ends."""
        verdict, self._scanned = self._scanner.scan(self._buffer, self._scanned)
        if verdict is Verdict.DONE:
            self._give(self._scanned)
            self._state = self._tail
            return None
        mark = self._buffer.find(CALL_CLOSE)
        if verdict is Verdict.BROKEN:
            self._why = "the call's arguments are not a JSON object"
            self._give(mark if 0 <= mark < self._scanned else self._scanned)
            self._state = self._raw
            return None
        if not self._ending:
            self._give(len(self._buffer) - overlap(self._buffer, CALL_CLOSE) if mark < 0 else mark)
            return Next.WAIT
        self._give(mark if mark >= 0 and self._ending == "stop" else len(self._buffer))
        self._why = "the call's arguments do not end" if self._buffer else _NO_END
        self._state = self._raw
        return None

    def _raw(self) -> Next:
        """What is left of broken arguments: up to the next mark."""
        found = _MARK.search(self._buffer)
        if found:
            self._give(found.start())
            return self._end(_MARK.match(self._buffer), self._why)
        if not self._ending:
            self._give(len(self._buffer) - max(overlap(self._buffer, mark) for mark in (CALL_CLOSE, CALL_OPEN)))
            return Next.WAIT
        self._give(len(self._buffer))
        return self._end(None, self._why)

    def _tail(self) -> Next:
        """After the arguments: the call's own brace, further keys (which are not used) and the closing mark."""
        while found := _MARK.search(self._buffer, self._tried):
            if not read_tail(self._buffer[: found.start()])[1]:
                return self._end_tail(found)
            self._tried = found.end()
        return self._end_tail(_MARK.search(self._buffer)) if self._ending else Next.WAIT

    def _end_tail(self, mark: re.Match[str] | None) -> Next:
        """The call ends at this mark; what is more than its brace is passed on as arguments where it cannot be read."""
        tail = self._buffer[: mark.start()] if mark else self._buffer
        why, _ = read_tail(tail)
        if why and tail.strip():
            self._give(len(tail))
            mark = _MARK.match(self._buffer)
        elif mark is None or mark[0] == CALL_OPEN:
            why = _NO_END
        return self._end(mark, why)

    def _give(self, size: int) -> None:
        """Pass on that much of the buffer as arguments."""
        self._turn.arguments(self._buffer[:size])
        self._buffer = self._buffer[size:]
        self._scanned -= size

    def _end(self, mark: re.Match[str] | None, why: str) -> Next:
        """The call ends at this mark of the buffer, or where the turn ends."""
        self._buffer = self._buffer[mark.end() :] if mark else ""
        why = why or _problem(self._turn.last_arguments())
        if why:
            self._turn.malformed(why)
        return Next.CALL if mark and mark[0] == CALL_OPEN else Next.GAP


class CallBody(Struct):
    """What stands between the marks of a call.

    Example: CallBody(name="bash", arguments='{"command": "ls"}')
    """

    name: str
    arguments: str


class _RawBody(Struct):
    name: str
    arguments: msgspec.Raw


def read_call(text: str) -> tuple[CallBody | None, str, bool]:
    """The call, or None with the reason and whether the text ends inside a JSON string.

    Arguments are the text of the object as it stands; those that were written as a string are the text inside it.
    """
    try:
        body = msgspec.json.decode(text, type=_RawBody)
    except (msgspec.MsgspecError, RecursionError) as error:
        return None, f"the call is not readable: {error}", ends_in_string(text)
    arguments: str | None = bytes(body.arguments).decode()
    if arguments is not None and arguments.startswith('"'):
        arguments = _decoded(arguments)
    if not body.name:
        return None, "the call has no name", False
    if arguments is None or not arguments.lstrip().startswith("{") or _problem(arguments):
        return None, "the call's arguments are not a JSON object", False
    return CallBody(name=body.name, arguments=arguments), "", False


def read_tail(text: str) -> tuple[str, bool]:
    """What is wrong with the text after a call's arguments ("" for nothing), and whether it ends inside a JSON string."""
    try:
        keys = msgspec.json.decode('{"":0' + text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        if not text.strip():
            return "the call's last brace is missing", False
        return "the call goes on after its arguments", ends_in_string(text)
    return ("the call has two names or arguments" if keys.keys() & {"name", "arguments"} else ""), False


def ends_in_string(text: str) -> bool:
    """True when the text, read as JSON, ends inside a string."""
    inside = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = inside
        elif character == '"':
            inside = not inside
    return inside


def _decoded(text: str) -> str | None:
    """The string that a JSON text stands for; None where it is none."""
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.MsgspecError:
        return None


def _problem(arguments: str) -> str:
    """Why the arguments are no JSON object; "" where they are one."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        return f"the call's arguments are not a JSON object: {error}"
    return ""
