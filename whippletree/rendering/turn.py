"""The turn that a parser builds: its parts, and the deltas that make them known.

Invariants (tests/rendering/test_rendering_parsing.py):
- the deltas, joined, are the message;
- after a stop string nothing is added; one that begins before a call and ends after it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from whippletree.identifiers import new_id
from whippletree.protocols import StreamDelta
from whippletree.rendering.stops import StopFinder
from whippletree.types import FinishReason, ParsedMessage, ToolCall

CUT: dict[str, FinishReason] = {"length": "length", "abort": "abort"}


def new_call_id() -> str:
    """A tool call id that no other call has."""
    return new_id("call_")


class _Call(msgspec.Struct):
    id: str
    name: str
    pieces: list[str]


class TurnBuilder:
    """Collects content, thinking and calls in the order in which they are sampled."""

    def __init__(self, stops: Sequence[str] = (), new_id: Callable[[], str] = new_call_id) -> None:
        self._finder = StopFinder(stops)
        self._new_id = new_id
        self._deltas: list[StreamDelta] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[_Call] = []
        self._reasons: list[str] = []

    @property
    def stopped(self) -> str:
        """The stop string that was met, "" so far."""
        return self._finder.stopped

    def text(self, text: str) -> None:
        """More content."""
        self._add_text(self._finder.feed(text))

    def thought(self, text: str) -> None:
        """More thinking; stop strings are not looked for in it."""
        if text and not self.stopped:
            self._thoughts.append(text)
            self._add(StreamDelta(reasoning=text))

    def call(self, name: str, call_id: str = "") -> None:
        """A call begins; its arguments follow."""
        if self.stopped:
            return
        self._add_text(self._finder.flush())
        call = _Call(call_id or self._new_id(), name, [])
        self._calls.append(call)
        self._add(StreamDelta(tool_index=len(self._calls) - 1, tool_id=call.id, tool_name=name))

    def arguments(self, text: str) -> None:
        """More of the last call's arguments, as they were sampled."""
        if text and not self.stopped:
            self._calls[-1].pieces.append(text)
            self._add(StreamDelta(tool_index=len(self._calls) - 1, arguments=text))

    def last_arguments(self) -> str:
        """The last call's arguments so far."""
        return "".join(self._calls[-1].pieces) if self._calls else ""

    def malformed(self, why: str) -> None:
        """Something could not be read as it should."""
        if not self.stopped:
            self._reasons.append(why)

    def take(self) -> list[StreamDelta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, finish_reason: str) -> ParsedMessage:
        """The whole turn; `take` then gives the last deltas. Reasons other than "length" and "abort" count as "stop", and so
        does any reason once a stop string was met."""
        if not self.stopped:
            self._add_text(self._finder.flush())
        whole: FinishReason = "tool_calls" if self._calls else "stop"
        return ParsedMessage(
            content="".join(self._texts),
            reasoning="".join(self._thoughts),
            tool_calls=tuple(ToolCall(id=call.id, name=call.name, arguments="".join(call.pieces)) for call in self._calls),
            finish_reason=whole if self.stopped else CUT.get(finish_reason, whole),
            malformed="; ".join(self._reasons),
            stop_sequence=self.stopped,
        )

    def _add_text(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._add(StreamDelta(content=text))

    def _add(self, delta: StreamDelta) -> None:
        """Append a delta, or let it go on from the last one where it is of the same part."""
        last = self._deltas[-1] if self._deltas else None
        if last is None or last.tool_index != delta.tool_index or bool(last.reasoning) != bool(delta.reasoning):
            self._deltas.append(delta)
            return
        self._deltas[-1] = msgspec.structs.replace(
            last,
            content=last.content + delta.content,
            reasoning=last.reasoning + delta.reasoning,
            arguments=last.arguments + delta.arguments,
        )
