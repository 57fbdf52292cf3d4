"""A streamed reply in Anthropic's form.

    message_start ─► (content_block_start ─► content_block_delta … ─► content_block_stop) … ─► message_delta ─► message_stop

Invariants (tests/gateway/test_gateway_messages_stream.py):
- at most one block is open; indices rise by one; a block closes before the next one opens;
- a thinking block ends with its signature; a call without arguments has the arguments "{}";
- the fragments of a call's arguments are the sampled text, byte for byte, also where it is no JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, TokenText, signatures
from whippletree.gateway.dialects import messages_wire as wire
from whippletree.gateway.dialects.events import event
from whippletree.gateway.dialects.overflow import CODE, overflow_of
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ParsedMessage

ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesStream:
    """Satisfies `dialects.StreamWriter`. The pieces of one call come in a row, as the parser gives them."""

    content_type = "text/event-stream"

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._started = False
        self._index = -1
        self._open: Literal["", "thinking", "text", "tool_use"] = ""
        self._tool = -1
        self._filled = False
        self._blank = ""  # white space that arguments begin with: the official client fails on a fragment of nothing else

    def delta(self, delta: StreamDelta) -> bytes:
        """The events of one delta."""
        events = self._start()
        if delta.reasoning:
            if self._open != "thinking":
                events += [*self._close(), self._block("thinking", wire.ThinkingOut())]
            events.append(self._piece(wire.ThinkingDelta(thinking=delta.reasoning)))
        if delta.content:
            if self._open != "text":
                events += [*self._close(), self._block("text", wire.TextOut())]
            events.append(self._piece(wire.TextDelta(text=delta.content)))
        if delta.tool_index >= 0:
            events += self._tool_call(delta)
        return b"".join(events)

    def _tool_call(self, delta: StreamDelta) -> list[bytes]:
        events: list[bytes] = []
        if self._open != "tool_use" or self._tool != delta.tool_index:
            events += [*self._close(), self._block("tool_use", wire.ToolUseOut(id=delta.tool_id, name=delta.tool_name))]
            self._tool, self._filled, self._blank = delta.tool_index, False, ""
        arguments = self._blank + delta.arguments
        if self._filled or arguments.strip():
            self._filled, self._blank = True, ""
            if arguments:
                events.append(self._piece(wire.InputDelta(partial_json=arguments)))
        else:
            self._blank = arguments
        return events

    def end(self, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """Why the turn ended, the final counts and the end mark."""
        stop = stop_of(message)
        counts = usage_of(call)
        usage = wire.DeltaUsage(
            input_tokens=counts.input_tokens,
            output_tokens=counts.output_tokens,
            cache_read_input_tokens=counts.cache_read_input_tokens,
        )
        ending = [
            _event("message_delta", wire.MessageDelta(delta=stop, usage=usage)),
            _event("message_stop", wire.MessageStop()),
        ]
        return b"".join([*self._start(), *self._close(), *ending])

    def error(self, error: RequestError) -> bytes:
        """The error as an event; no end mark follows, so that no client takes the stream for complete."""
        return _event("error", error_out(error))

    def _start(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        message = wire.MessageOut(
            id=reply_id(self._head),
            model=self._head.model,
            content=[],
            usage=wire.Usage(input_tokens=self._head.prompt_tokens, output_tokens=0),
        )
        return [_event("message_start", wire.MessageStart(message=message))]

    def _block(self, kind: Literal["thinking", "text", "tool_use"], block: wire.BlockOut) -> bytes:
        self._open = kind
        self._index += 1
        return _event("content_block_start", wire.BlockStart(index=self._index, content_block=block))

    def _piece(self, delta: wire.TextDelta | wire.ThinkingDelta | wire.SignatureDelta | wire.InputDelta) -> bytes:
        return _event("content_block_delta", wire.BlockDelta(index=self._index, delta=delta))

    def _close(self) -> list[bytes]:
        if not self._open:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._piece(wire.SignatureDelta(signature=signatures.sign(self._head.call_id))))
        elif self._open == "tool_use" and not self._filled:
            events.append(self._piece(wire.InputDelta(partial_json=self._blank + "{}")))
        self._open = ""
        return [*events, _event("content_block_stop", wire.BlockStop(index=self._index))]


def _event(name: str, data: wire.Wire) -> bytes:
    return b"event: %b\n%b" % (name.encode(), event(msgspec.json.encode(data)))


def reply_id(head: ReplyHead) -> str:
    """The id of a reply, made of its call's."""
    return "msg_" + head.call_id.removeprefix("c-")


def stop_of(message: ParsedMessage) -> wire.Stop:
    """Why a turn ended, in Anthropic's words. What was cut short, by a limit or otherwise, is "max_tokens"."""
    if message.finish_reason not in ("stop", "tool_calls"):
        return wire.Stop(stop_reason="max_tokens")
    if message.tool_calls:
        return wire.Stop(stop_reason="tool_use")
    if message.stop_sequence:
        return wire.Stop(stop_reason="stop_sequence", stop_sequence=message.stop_sequence)
    return wire.Stop(stop_reason="end_turn")


def usage_of(call: Call) -> wire.Usage:
    """The counts of a call: the cached part of the prompt is told apart, thinking counts as output."""
    return wire.Usage(
        input_tokens=max(0, call.prompt_tokens - call.cached_tokens),
        output_tokens=call.sampled_tokens,
        cache_read_input_tokens=min(call.prompt_tokens, call.cached_tokens),
    )


def error_out(error: RequestError) -> wire.ErrorOut:
    """An error in Anthropic's form. Claude Code shortens its history when a prompt is "too long" in just these words."""
    kind = ERROR_TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
    text = str(error)
    if error.code == CODE:
        counts = overflow_of(error)
        told = f"{counts.prompt} tokens > {counts.limit} maximum" if counts else text
        text = f"prompt is too long: {told}"
    return wire.ErrorOut(error=wire.ErrorDetail(type=kind, message=text))
