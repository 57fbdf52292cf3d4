"""Gemini's replies as they are sampled: server-sent events, or without `alt=sse` a JSON list that grows.

Text and thoughts are written as they come. A call's arguments must be an object, so a call is written when the next part
begins or the turn ends.
Invariants (tests/gateway/test_gateway_gemini_stream.py):
- a stream, put together as the official client does, equals the whole reply, however the deltas are cut;
- only the last event has a finish reason and usage; a list is closed only by `end` or `error`;
- an error cannot be taken for the end of a reply by any of the clients that docs/dialect-gemini.md names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, TokenText, signatures
from whippletree.gateway.dialects import gemini_replies as replies
from whippletree.gateway.dialects.events import event, one_line
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ParsedMessage, ToolCall

LINE_END = b"\r\n"
EVENT_END = LINE_END * 2


class _OpenCall:
    """A call as far as it is sampled."""

    def __init__(self, call_id: str, name: str) -> None:
        self.pieces: list[str] = []
        self.closed = False  # another part has begun after it
        self._id, self._name = call_id, name

    def so_far(self) -> ToolCall:
        """The call with the arguments that are there."""
        return ToolCall(id=self._id, name=self._name, arguments="".join(self.pieces))


class GeminiStream:
    """Satisfies `dialects.StreamWriter`."""

    def __init__(self, head: ReplyHead, error_body: Callable[[RequestError], bytes]) -> None:
        self._head = head
        self._error_body = error_body
        self._sse = head.target.sse
        self.content_type = "text/event-stream" if self._sse else "application/json"
        self._opened = False
        self._open: dict[int, _OpenCall] = {}
        self._written: set[int] = set()

    def delta(self, delta: StreamDelta) -> bytes:
        """The events of one delta; nothing for a piece of a call that is not complete."""
        parts: list[replies.PartOut] = []
        if delta.content or delta.reasoning or (delta.tool_index >= 0 and delta.tool_index not in self._open):
            parts += self._complete_calls()
        parts += replies.text_parts(delta.content, delta.reasoning)
        if delta.tool_index >= 0:
            self._take(delta)
        if not parts:
            return b""
        return self._write(replies.reply_out(self._head, replies.CandidateOut(content=replies.ContentOut(parts=parts))))

    def _take(self, delta: StreamDelta) -> None:
        call = self._open.setdefault(delta.tool_index, _OpenCall(delta.tool_id, delta.tool_name))
        call.pieces.append(delta.arguments)

    def _complete_calls(self) -> list[replies.PartOut]:
        """The calls that are complete; those whose arguments are no object wait for the end."""
        calls = {index: call.so_far() for index, call in self._open.items() if not call.closed}
        ready = [index for index, call in calls.items() if replies.arguments_out(call.arguments) is not None]
        parts = replies.call_parts(self._head, [calls[index] for index in ready], signed=bool(self._written))
        for index in calls:
            self._open[index].closed = True
        self._written.update(ready)
        return parts

    def end(self, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """The calls that are left, the mark of the reasoning, the finish reason, the usage; a list is closed."""
        left = [item for index, item in enumerate(message.tool_calls) if index not in self._written]
        parts = replies.call_parts(self._head, left, signed=bool(self._written))
        if message.reasoning and not parts and not self._written:
            parts = [replies.PartOut(text="", thought_signature=signatures.sign(self._head.call_id))]
        candidate = replies.last_candidate(parts or [replies.PartOut(text="")], message, self._wanted(tokens))
        last = self._write(replies.reply_out(self._head, candidate, call))
        return last if self._sse else last + LINE_END + b"]"

    def _wanted(self, tokens: Sequence[TokenText]) -> Sequence[TokenText]:
        return tokens if self._head.request.wants_logprobs else ()

    def error(self, error: RequestError) -> bytes:
        """The error, once as an event and once bare, unfinished: some clients fail on the one, some on the other only."""
        body = one_line(self._error_body(error))
        if self._sse:
            return event(body, EVENT_END) + body
        return self._next() + body + LINE_END + b"]"

    def _write(self, reply: replies.ReplyOut) -> bytes:
        data = msgspec.json.encode(reply)
        return event(data, EVENT_END) if self._sse else self._next() + one_line(data)

    def _next(self) -> bytes:
        opened, self._opened = self._opened, True
        return b"," + LINE_END if opened else b"["
