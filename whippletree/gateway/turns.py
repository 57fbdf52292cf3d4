"""A turn as a message and as deltas. Pure.

Invariant (tests/gateway/test_gateway_turns.py): `message_of` the deltas of a turn, however they are cut, is that turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from whippletree.protocols import StreamDelta
from whippletree.types import FinishReason, ParsedMessage, ToolCall


def replayed_deltas(message: ParsedMessage) -> list[StreamDelta]:
    """A whole turn as deltas."""
    deltas = []
    if message.reasoning:
        deltas.append(StreamDelta(reasoning=message.reasoning))
    if message.content:
        deltas.append(StreamDelta(content=message.content))
    for index, call in enumerate(message.tool_calls):
        deltas.append(StreamDelta(tool_index=index, tool_id=call.id, tool_name=call.name, arguments=call.arguments))
    return deltas


def message_of(deltas: Sequence[StreamDelta], finish: FinishReason) -> ParsedMessage:
    """The turn that deltas tell; the other way round."""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if delta.tool_index >= 0:
            known = calls.get(delta.tool_index, ToolCall(id="", name="", arguments=""))
            calls[delta.tool_index] = ToolCall(
                id=known.id or delta.tool_id,
                name=known.name or delta.tool_name,
                arguments=known.arguments + delta.arguments,
            )
    return ParsedMessage(
        content="".join([delta.content for delta in deltas]),
        reasoning="".join([delta.reasoning for delta in deltas]),
        tool_calls=tuple(calls[index] for index in sorted(calls)),
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
    )
