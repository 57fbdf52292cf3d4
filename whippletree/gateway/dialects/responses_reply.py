"""The response object around the output items: status, usage, logprobs, failure. Pure.

Invariants (tests/gateway/test_gateway_responses_dialect.py):
- a turn that was cut at its limit is `incomplete` with its reason, and so is its last item; every other turn is `completed`;
- counts are those of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, TokenText
from whippletree.gateway.dialects import responses_compaction as compaction
from whippletree.gateway.dialects import responses_ids as ids
from whippletree.gateway.dialects import responses_wire as wire
from whippletree.gateway.dialects.overflow import CODE as OVERFLOW
from whippletree.gateway.dialects.responses_output import Output
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ChatRequest, ParsedMessage

Status = Literal["completed", "incomplete", "failed"]


def status_of(message: ParsedMessage) -> Status:
    """How a turn ended, in the dialect's words."""
    if message.finish_reason == "error":
        return "failed"
    return "completed" if message.finish_reason in ("stop", "tool_calls") else "incomplete"


def item_status(message: ParsedMessage) -> wire.ItemStatus:
    """The status of a turn's last item: the one that was cut, where the turn was."""
    return "completed" if status_of(message) == "completed" else "incomplete"


def deltas_of(message: ParsedMessage) -> list[StreamDelta]:
    """A whole turn as the deltas that give the same items."""
    texts = [StreamDelta(reasoning=message.reasoning, content=message.content)]
    calls = [
        StreamDelta(tool_index=place, tool_id=call.id, tool_name=call.name, arguments=call.arguments)
        for place, call in enumerate(message.tool_calls)
    ]
    return [delta for delta in (*texts, *calls) if delta != StreamDelta()]


def whole_output(head: ReplyHead, message: ParsedMessage, tokens: Sequence[TokenText]) -> list[wire.ItemOut]:
    """The output items of a whole turn."""
    if compaction.is_compaction(head.request):
        return [compaction_item(head, message)]
    output = Output(head)
    for delta in deltas_of(message):
        output.feed(delta)
    output.finish(item_status(message))
    return with_logprobs(output.items, tokens)


def compaction_item(head: ReplyHead, message: ParsedMessage) -> wire.CompactionOut:
    """The one item of a compaction: clients take a reply with any other number of them for a failure."""
    sealed = compaction.seal(message.content.strip())
    return wire.CompactionOut(id=ids.item_id("cmp", head.call_id, 0), encrypted_content=sealed)


def with_logprobs(items: list[wire.ItemOut], tokens: Sequence[TokenText]) -> list[wire.ItemOut]:
    """The items, each message with the logprobs of its own tokens where they are wanted."""
    return [_message_logprobs(item, tokens) if tokens and isinstance(item, wire.MessageOut) else item for item in items]


def _message_logprobs(item: wire.MessageOut, tokens: Sequence[TokenText]) -> wire.MessageOut:
    part = item.content[0]
    start = "".join(token.text for token in tokens).find(part.text)
    end = start + len(part.text)
    place, logprobs = 0, []
    for token in tokens:
        if place < end and place + len(token.text) > start >= 0:
            data = list(token.text.encode("utf-8", "replace"))
            logprobs.append(wire.LogprobOut(token=token.text, logprob=token.logprob, bytes=data))
        place += len(token.text)
    return msgspec.structs.replace(item, content=[msgspec.structs.replace(part, logprobs=logprobs)])


def usage(call: Call) -> wire.Usage:
    """Counts of a call."""
    return wire.Usage(
        input_tokens=call.prompt_tokens,
        input_tokens_details=wire.InputDetails(cached_tokens=call.cached_tokens),
        output_tokens=call.sampled_tokens,
        output_tokens_details=wire.OutputDetails(reasoning_tokens=call.reasoning_tokens),
        total_tokens=call.prompt_tokens + call.sampled_tokens,
    )


def opened(head: ReplyHead) -> wire.ResponseOut:
    """The response before anything is sampled."""
    request = head.request
    schema = wire.FormatOut(type="json_schema", name="schema", schema=request.schema) if request.schema else wire.FormatOut()
    asked = request.requested
    return wire.ResponseOut(
        id=ids.response_id(head.call_id),
        created_at=head.created,
        status="in_progress",
        model=head.model,
        output=[],
        previous_response_id=ids.response_id(request.continues) if request.continues else None,
        max_output_tokens=asked.max_tokens,
        temperature=asked.temperature if asked.temperature is not None else 1.0,
        top_p=asked.top_p if asked.top_p is not None else 1.0,
        tool_choice=_tool_choice(request),
        text=wire.TextConfigOut(format=schema),
    )


def _tool_choice(request: ChatRequest) -> str | wire.ForcedOut:
    forced = next((tool for tool in request.tools if request.forced_tool and tool.name == request.forced_tool), None)
    if forced is None:
        return request.tool_choice
    return wire.ForcedOut(name=forced.own_name or forced.name, type="custom" if forced.kind == "custom" else "function")


def closed(head: ReplyHead, call: Call, message: ParsedMessage, items: list[wire.ItemOut]) -> wire.ResponseOut:
    """The response with everything in it."""
    status = status_of(message)
    return msgspec.structs.replace(
        opened(head),
        status=status,
        output=items,
        usage=usage(call),
        error=wire.FailureOut(code="server_error", message=call.error or "the turn failed") if status == "failed" else None,
        incomplete_details=wire.IncompleteOut() if status == "incomplete" else None,
    )


def failed(head: ReplyHead, error: RequestError) -> wire.ResponseOut:
    """The response of a stream that cannot be completed; clients act on the code."""
    code = OVERFLOW if error.code == OVERFLOW else "rate_limit_exceeded" if error.status == 429 else "server_error"
    return msgspec.structs.replace(opened(head), status="failed", error=wire.FailureOut(code=code, message=str(error)))


def compacted(head: ReplyHead, call: Call, message: ParsedMessage) -> wire.CompactedOut:
    """The answer of the compaction path: what the user said, then the summary of all the rest."""
    said = [
        item.content
        for item in head.request.messages
        if item.role == "user" and item != compaction.REQUEST and not item.content.startswith(compaction.INTRODUCTION)
    ]
    kept: list[wire.ItemOut] = [
        wire.MessageOut(
            id=ids.item_id("msg", head.call_id, place),
            role="user",
            content=[wire.TextOut(text=text, type="input_text", annotations=msgspec.UNSET, logprobs=msgspec.UNSET)],
        )
        for place, text in enumerate(said, start=1)
    ]
    return wire.CompactedOut(
        id=ids.response_id(head.call_id),
        created_at=head.created,
        output=[*kept, compaction_item(head, message)],
        usage=usage(call),
    )
