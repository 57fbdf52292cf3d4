"""Sampled ids → thinking, content and tool calls, while they are sampled.

    ids ─► characters ─► thinking │ content │ <tool_call>{...}</tool_call> ─► deltas, and the whole turn at the end

Invariants (tests/rendering/test_rendering_parsing.py):
- the deltas, joined, are the parsed message, for any split of the ids (also inside a character or a mark);
- nothing sampled is lost: what cannot be read as a call stays in the content with its marks or in the call's arguments, and
  `malformed` says why;
- arguments are the sampled text of the JSON object, byte for byte;
- white space that the template itself writes between the parts, and the token that ends the turn, belong to no part;
- stop strings are looked for in content, not in thinking or calls; what follows one is in no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from whippletree.protocols import StreamDelta
from whippletree.rendering.calls import CallParser, Ending, Next
from whippletree.rendering.codec import Codec
from whippletree.rendering.layout import CALL_OPEN, THINK_CLOSE, THINK_OPEN, Layout
from whippletree.rendering.stops import overlap
from whippletree.rendering.turn import CUT, TurnBuilder, new_call_id
from whippletree.types import ParsedMessage


class TurnParser:
    """One sampled turn, from ids. Implements protocols.StreamParser."""

    def __init__(self, codec: Codec, stop_token_ids: Sequence[int], text_parser: TextParser) -> None:
        self._codec = codec
        self._detokeniser = codec.detokeniser()
        self._ids: list[int] = []
        self._stops = frozenset(stop_token_ids)
        self._held: list[int] = []  # an end-of-turn token is no text unless something follows it
        self._parser = text_parser
        self.stopped = ""

    def feed(self, token_ids: Sequence[int]) -> list[StreamDelta]:
        """Deltas that these further ids settle."""
        if self.stopped:
            return []
        self._ids += token_ids
        ids = [*self._held, *token_ids]
        self._held = [ids.pop()] if ids and ids[-1] in self._stops else []
        deltas = self._parser.feed(self._detokeniser.feed(ids))
        self.stopped = self._parser.stopped
        return deltas

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn."""
        deltas = self._parser.feed(self._detokeniser.flush())
        rest, message = self._parser.finish(finish_reason)
        self.stopped = self._parser.stopped
        if message.reasoning:
            count = self._codec.count_through(self._ids, THINK_CLOSE.encode())
            message = msgspec.structs.replace(message, reasoning_tokens=count)
        return deltas + rest, message


class TextParser:
    """One sampled turn, from text. `thinking` and `calls` say which marks are read at all."""

    def __init__(
        self,
        layout: Layout,
        *,
        thinking: bool,
        calls: bool,
        stops: Sequence[str] = (),
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._layout = layout
        self._reads_calls = calls
        self._turn = TurnBuilder(stops, new_id)
        self._buffer = ""
        self._ending: Ending = ""
        self._skip = layout.after_think_open if thinking and layout.opens_thinking else ""
        self._state: Callable[[], bool] = self._content
        if thinking:
            self._state = self._thinking if layout.opens_thinking else self._start
        self._call_parser = CallParser(self._turn)

    @property
    def stopped(self) -> str:
        """The stop string that was met, "" so far."""
        return self._turn.stopped

    def feed(self, text: str) -> list[StreamDelta]:
        """Deltas that this further text settles."""
        self._buffer += text
        while not self.stopped and self._state():
            pass
        return self._turn.take()

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn. Other reasons of an engine than "length" and "abort" count as "stop"."""
        self._ending = "cut" if finish_reason in CUT else "stop"
        deltas = self.feed("")
        message = self._turn.finish(finish_reason)
        return deltas + self._turn.take(), message

    # Each state looks at the buffer, takes what is settled and says whether to look again.

    def _start(self) -> bool:
        """Before anything but white space: does the turn begin with thinking?"""
        text = self._buffer.lstrip()
        if text.startswith(THINK_OPEN):
            self._buffer, self._skip, self._state = text[len(THINK_OPEN) :], self._layout.after_think_open, self._thinking
            return True
        if THINK_OPEN.startswith(text) and not self._ending:
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
            self._buffer = self._emit_settled(self._turn.thought, (separator + THINK_CLOSE, THINK_CLOSE))
            return False
        self._turn.thought(thought.removesuffix(separator))
        self._buffer, self._skip, self._state = rest, self._layout.after_think_close, self._content
        return True

    def _content(self) -> bool:
        """Plain text: up to the next call."""
        if not self._skipped():
            return False
        if not self._reads_calls:
            self._turn.text(self._buffer)
            self._buffer = ""
            return False
        separator = self._layout.before_call
        text, mark, rest = self._buffer.partition(CALL_OPEN)
        if not mark:
            self._buffer = self._emit_settled(self._turn.text, (separator + CALL_OPEN, CALL_OPEN))
            return False
        self._turn.text(text.removesuffix(separator))
        self._buffer = rest
        self._begin_call()
        return True

    def _call(self) -> bool:
        """Inside a call."""
        self._buffer, following = self._call_parser.read(self._buffer, self._ending)
        match following:
            case Next.WAIT:
                return False
            case Next.CONTENT:
                self._state = self._content
            case Next.GAP:
                self._state = self._after_call
            case Next.CALL:
                self._begin_call()
        return True

    def _begin_call(self) -> None:
        self._call_parser, self._state = CallParser(self._turn), self._call

    def _after_call(self) -> bool:
        """After a call: white space before the next call or the end is layout."""
        text = self._buffer.lstrip()
        if text.startswith(CALL_OPEN):
            self._buffer = text[len(CALL_OPEN) :]
            self._begin_call()
            return True
        if CALL_OPEN.startswith(text) and not self._ending:
            return False
        self._buffer = self._buffer if text else ""
        self._state = self._content
        return True

    def _skipped(self) -> bool:
        """Drop the separator that is due here; False while the buffer may still become it."""
        if self._skip:
            if self._skip.startswith(self._buffer) and self._buffer != self._skip and not self._ending:
                return False
            self._buffer = self._buffer.removeprefix(self._skip)
            self._skip = ""
        return True

    def _emit_settled(self, emit: Callable[[str], None], ends: Sequence[str]) -> str:
        """Emit the buffer without the longest tail that may still become one of `ends`; returns that tail."""
        held = 0 if self._ending else max(overlap(self._buffer, end) for end in ends)
        cut = len(self._buffer) - held
        emit(self._buffer[:cut])
        return self._buffer[cut:]
