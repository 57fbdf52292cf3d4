"""Sampled ids → thinking, content and tool calls, while they are sampled.

    ids ─► characters ─► thinking │ content │ <tool_call>{...}</tool_call> ─► deltas, and the whole turn at the end

Invariants (tests/rendering/test_rendering_parsing.py):
- the deltas, joined, are the parsed message, for any split of the ids (also inside a character or a mark);
- nothing sampled is lost: a call that cannot be read stays in the content with its marks, and `malformed` says why;
- arguments are the sampled text of the JSON object, byte for byte;
- white space that the template itself writes between the parts, and the token that ends the turn, belong to no part.
A call is passed on when its closing mark has come, since until then it may turn out malformed and become content.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import msgspec

from whippletree.protocols import StreamDelta
from whippletree.rendering.codec import Codec
from whippletree.rendering.layout import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN, Layout
from whippletree.types import FinishReason, ParsedMessage, Struct, ToolCall

_CUT: dict[str, FinishReason] = {"length": "length", "abort": "abort"}


def new_call_id() -> str:
    """A tool call id that no other call has."""
    return "call_" + uuid.uuid4().hex[:24]


class TurnParser:
    """One sampled turn, from ids. Implements protocols.StreamParser."""

    def __init__(self, codec: Codec, stop_token_ids: Sequence[int], text_parser: TextParser) -> None:
        self._detokeniser = codec.detokeniser()
        self._stops = frozenset(stop_token_ids)
        self._held: list[int] = []  # an end-of-turn token is no text unless something follows it
        self._parser = text_parser

    def feed(self, token_ids: Sequence[int]) -> list[StreamDelta]:
        """Deltas that these further ids settle."""
        ids = [*self._held, *token_ids]
        self._held = [ids.pop()] if ids and ids[-1] in self._stops else []
        return self._parser.feed(self._detokeniser.feed(ids))

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn."""
        deltas = self._parser.feed(self._detokeniser.flush())
        rest, message = self._parser.finish(finish_reason)
        return deltas + rest, message


class TextParser:
    """One sampled turn, from text. `thinking` and `calls` say which marks are read at all."""

    def __init__(self, layout: Layout, *, thinking: bool, calls: bool, new_id: Callable[[], str] = new_call_id) -> None:
        self._layout = layout
        self._reads_calls = calls
        self._new_id = new_id
        self._buffer = ""
        self._final = False
        self._skip = layout.after_think_open if thinking and layout.opens_thinking else ""
        self._state: Callable[[], bool] = self._content
        if thinking:
            self._state = self._thinking if layout.opens_thinking else self._start
        self._tried = 0  # closing marks before this place of the buffer are inside a string
        self._why = ""
        self._deltas: list[StreamDelta] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []
        self._reasons: list[str] = []

    def feed(self, text: str) -> list[StreamDelta]:
        """Deltas that this further text settles."""
        self._buffer += text
        while self._state():
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn. Other reasons of an engine than "length" and "abort" count as "stop"."""
        self._final = True
        deltas = self.feed("")
        reason = _CUT.get(finish_reason, "tool_calls" if self._calls else "stop")
        return deltas, ParsedMessage(
            content="".join(self._texts),
            reasoning="".join(self._thoughts),
            tool_calls=tuple(self._calls),
            finish_reason=reason,
            malformed="; ".join(self._reasons),
        )

    # Each state looks at the buffer, takes what is settled and says whether to look again.

    def _start(self) -> bool:
        """Before anything but white space: does the turn begin with thinking?"""
        text = self._buffer.lstrip()
        if text.startswith(THINK_OPEN):
            self._buffer, self._skip, self._state = text[len(THINK_OPEN) :], self._layout.after_think_open, self._thinking
            return True
        if THINK_OPEN.startswith(text) and not self._final:
            return False
        self._state = self._content
        return True

    def _thinking(self) -> bool:
        """Inside thinking: up to its closing mark."""
        if not self._skipped():
            return False
        separator = self._layout.before_think_close
        thought, mark, rest = self._buffer.partition(THINK_CLOSE)
        if not mark:
            self._buffer = self._emit_settled(self._emit_thought, (separator + THINK_CLOSE, THINK_CLOSE))
            return False
        self._emit_thought(thought.removesuffix(separator))
        self._buffer, self._skip, self._state = rest, self._layout.after_think_close, self._content
        return True

    def _content(self) -> bool:
        """Plain text: up to the next call."""
        if not self._skipped():
            return False
        if not self._reads_calls:
            self._emit_text(self._buffer)
            self._buffer = ""
            return False
        separator = self._layout.before_call
        text, mark, rest = self._buffer.partition(CALL_OPEN)
        if not mark:
            self._buffer = self._emit_settled(self._emit_text, (separator + CALL_OPEN, CALL_OPEN))
            return False
        self._emit_text(text.removesuffix(separator))
        self._buffer, self._state = rest, self._call
        return True

    def _call(self) -> bool:
        """Inside a call: to the first closing mark that is not part of a JSON string."""
        while (end := self._buffer.find(CALL_CLOSE, self._tried)) >= 0:
            body, why, in_string = read_call(self._buffer[:end])
            if body is not None:
                self._emit_call(body)
                self._leave_call(end + len(CALL_CLOSE), self._after_call)
                return True
            self._tried = end + 1
            self._why = self._why or why
            if not in_string:
                return self._give_up_call()
        return self._give_up_call() if self._final else False

    def _give_up_call(self) -> bool:
        """The call cannot be read: up to its first closing mark (or the end) it is content."""
        first = self._buffer.find(CALL_CLOSE)
        end = len(self._buffer) if first < 0 else first + len(CALL_CLOSE)
        self._emit_text(CALL_OPEN + self._buffer[:end])
        self._reasons.append(self._why or f"the call has no {CALL_CLOSE}")
        self._leave_call(end, self._content)
        return True

    def _leave_call(self, end: int, state: Callable[[], bool]) -> None:
        self._buffer, self._state = self._buffer[end:], state
        self._tried, self._why = 0, ""

    def _after_call(self) -> bool:
        """After a call: white space before the next call or the end is layout."""
        text = self._buffer.lstrip()
        if text.startswith(CALL_OPEN):
            self._buffer, self._state = text[len(CALL_OPEN) :], self._call
            return True
        if CALL_OPEN.startswith(text) and not self._final:
            return False
        self._buffer = self._buffer if text else ""
        self._state = self._content
        return True

    def _skipped(self) -> bool:
        """Drop the separator that is due here; False while the buffer may still become it."""
        if self._skip:
            if self._skip.startswith(self._buffer) and self._buffer != self._skip and not self._final:
                return False
            self._buffer = self._buffer.removeprefix(self._skip)
            self._skip = ""
        return True

    def _emit_settled(self, emit: Callable[[str], None], ends: Sequence[str]) -> str:
        """Emit the buffer without the longest tail that may still become one of `ends`; returns that tail."""
        held = 0 if self._final else max(_overlap(self._buffer, end) for end in ends)
        cut = len(self._buffer) - held
        emit(self._buffer[:cut])
        return self._buffer[cut:]

    def _emit_text(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._deltas.append(StreamDelta(content=text))

    def _emit_thought(self, text: str) -> None:
        if text:
            self._thoughts.append(text)
            self._deltas.append(StreamDelta(reasoning=text))

    def _emit_call(self, body: CallBody) -> None:
        call = ToolCall(id=self._new_id(), name=body.name, arguments=bytes(body.arguments).decode())
        index = len(self._calls)
        self._calls.append(call)
        self._deltas.append(StreamDelta(tool_index=index, tool_id=call.id, tool_name=call.name, arguments=call.arguments))


class CallBody(Struct):
    """What stands between the marks of a call. `arguments` is the text of the object, untouched.

    Example: CallBody(name="bash", arguments=msgspec.Raw(b'{"command": "ls"}'))
    """

    name: str
    arguments: msgspec.Raw


def read_call(text: str) -> tuple[CallBody | None, str, bool]:
    """The call, or None with the reason and whether the text ends inside a JSON string."""
    try:
        body = msgspec.json.decode(text, type=CallBody)
    except (msgspec.MsgspecError, RecursionError) as error:
        return None, f"the call is not readable: {error}", _ends_in_string(text)
    if not bytes(body.arguments).startswith(b"{"):
        return None, "the call's arguments are not a JSON object", False
    return body, "", False


def _ends_in_string(text: str) -> bool:
    inside = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = inside
        elif character == '"':
            inside = not inside
    return inside


def _overlap(text: str, mark: str) -> int:
    """Length of the longest proper prefix of `mark` that `text` ends with."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
