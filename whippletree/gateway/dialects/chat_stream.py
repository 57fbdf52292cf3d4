"""Chat-completions replies: whole, and streamed as deltas come.

A call of a function streams its arguments as they are sampled. A call of a free-text tool is written when it is complete, since
its text is a JSON string until then.
Invariants (tests/gateway/test_gateway_chat_stream.py):
- the first event carries the role; a call's id and name are written once, with its first event;
- arguments that stay empty become "{}"; every event is one line (events.py);
- usage is written only where it was asked for, after the finish reason and before the end mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, TokenText
from whippletree.gateway.dialects import chat_replies as replies
from whippletree.gateway.dialects.events import event
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ChatRequest, FinishReason, ParsedMessage, Struct, ToolCall

NO_ARGUMENTS = "{}"


class CustomInput(Struct):
    """The arguments of a free-text tool. Example: CustomInput(input="*** Begin Patch")"""

    input: str


def whole_reply(head: ReplyHead, call: Call, message: ParsedMessage, tokens: Sequence[TokenText]) -> replies.ReplyOut:
    """A reply that is not streamed."""
    kinds = tool_kinds(head.request)
    legacy = is_legacy(head.request) and message.tool_calls
    out = replies.MessageOut(
        content=message.content if message.content or not message.tool_calls else None,
        reasoning_content=message.reasoning or msgspec.UNSET,
        tool_calls=[_call_out(item, kinds) for item in message.tool_calls] or msgspec.UNSET,
    )
    if legacy:
        first = message.tool_calls[0]
        function = replies.FunctionOut(name=first.name, arguments=first.arguments or NO_ARGUMENTS)
        out = msgspec.structs.replace(out, tool_calls=msgspec.UNSET, function_call=function)
    choice = replies.ChoiceOut(
        message=out,
        finish_reason=finish_word(message.finish_reason, head.request),
        logprobs=logprobs_out(tokens) if head.request.wants_logprobs else None,
    )
    return replies.ReplyOut(id=reply_id(head), created=head.created, model=head.model, choices=[choice], usage=usage_out(call))


class ChatStream:
    """Satisfies `dialects.StreamWriter`."""

    content_type = "text/event-stream"

    def __init__(self, head: ReplyHead, error_body: Callable[[RequestError], bytes]) -> None:
        self._head = head
        self._error_body = error_body
        self._kinds = tool_kinds(head.request)
        self._legacy = is_legacy(head.request)
        self._started = False
        self._names: dict[int, str] = {}
        self._has_arguments: dict[int, bool] = {}
        self._held: set[int] = set()  # calls of free-text tools, written at the end

    def delta(self, delta: StreamDelta) -> bytes:
        """The event of one delta; nothing for a piece that is held."""
        out = replies.DeltaOut(content=delta.content or None, reasoning_content=delta.reasoning or None)
        if delta.tool_index >= 0:
            out = self._with_call(out, delta)
        if self._started and out == replies.DeltaOut():
            return b""
        return self._chunk(out)

    def _with_call(self, out: replies.DeltaOut, delta: StreamDelta) -> replies.DeltaOut:
        index = delta.tool_index
        first = index not in self._names
        self._names.setdefault(index, delta.tool_name)
        if self._kinds.get(self._names[index]) == "custom":
            self._held.add(index)
            return out
        self._has_arguments[index] = bool(delta.arguments) or self._has_arguments.get(index, False)
        function = replies.FunctionOut(name=delta.tool_name if first else None, arguments=delta.arguments)
        if self._legacy:
            return msgspec.structs.replace(out, function_call=function) if index == 0 else out
        piece = replies.ToolCallOut(
            index=index, id=delta.tool_id if first else None, type="function" if first else None, function=function
        )
        return msgspec.structs.replace(out, tool_calls=[piece])

    def end(self, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """What is held, logprobs and usage where they were asked for, the finish reason, and the end mark."""
        events = []
        for index, item in enumerate(message.tool_calls):
            if index in self._held:
                piece = msgspec.structs.replace(_call_out(item, self._kinds), index=index)
                events.append(self._chunk(replies.DeltaOut(tool_calls=[piece])))
        for index, filled in self._has_arguments.items():
            if not filled:
                events.append(self._chunk(self._no_arguments(index)))
        if tokens and self._head.request.wants_logprobs:
            events.append(self._chunk(replies.DeltaOut(), logprobs=logprobs_out(tokens)))
        finish = finish_word(message.finish_reason, self._head.request)
        events.append(self._chunk(replies.DeltaOut(), finish_reason=finish))
        if self._head.request.include_usage:
            events.append(event(msgspec.json.encode(self._envelope([], usage_out(call)))))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def _no_arguments(self, index: int) -> replies.DeltaOut:
        function = replies.FunctionOut(arguments=NO_ARGUMENTS)
        if self._legacy:
            return replies.DeltaOut(function_call=function if index == 0 else None)
        return replies.DeltaOut(tool_calls=[replies.ToolCallOut(index=index, function=function)])

    def error(self, error: RequestError) -> bytes:
        """The error as an event; no end mark follows, so that no client takes the stream for complete."""
        return event(self._error_body(error))

    def _chunk(self, delta: replies.DeltaOut, finish_reason: str | None = None, logprobs: Any = msgspec.UNSET) -> bytes:
        if not self._started:
            self._started = True
            first = delta.content if delta.content is not None else (None if delta.reasoning_content else "")
            delta = msgspec.structs.replace(delta, role="assistant", content=first)
        choice = replies.ChunkChoice(delta=delta, finish_reason=finish_reason, logprobs=logprobs)
        return event(msgspec.json.encode(self._envelope([choice])))

    def _envelope(self, choices: list[replies.ChunkChoice], usage: Any = msgspec.UNSET) -> replies.ChunkOut:
        head = self._head
        return replies.ChunkOut(id=reply_id(head), created=head.created, model=head.model, choices=choices, usage=usage)


def tool_kinds(request: ChatRequest) -> dict[str, str]:
    """Tool name → how it was offered."""
    return {tool.name: tool.kind for tool in request.tools}


def is_legacy(request: ChatRequest) -> bool:
    """Whether the tools were offered as `functions`, whose one call comes back as `function_call`."""
    return bool(request.tools) and all(tool.kind == "legacy" for tool in request.tools)


def _call_out(item: ToolCall, kinds: dict[str, str]) -> replies.ToolCallOut:
    if kinds.get(item.name) == "custom":
        custom = replies.CustomOut(name=item.name, input=custom_input(item.arguments))
        return replies.ToolCallOut(id=item.id, type="custom", custom=custom)
    function = replies.FunctionOut(name=item.name, arguments=item.arguments or NO_ARGUMENTS)
    return replies.ToolCallOut(id=item.id, type="function", function=function)


def custom_input(arguments: str) -> str:
    """The free text in {"input": "..."}; arguments of another form as they are."""
    try:
        return msgspec.json.decode(arguments, type=CustomInput).input
    except (msgspec.DecodeError, RecursionError):
        return arguments


def logprobs_out(tokens: Sequence[TokenText]) -> replies.LogprobsOut:
    """Logprobs as OpenAI writes them."""
    content = [
        replies.TokenOut(token=token.text, logprob=token.logprob, bytes=list(token.text.encode("utf-8", "surrogatepass")))
        for token in tokens
    ]
    return replies.LogprobsOut(content=content)


def usage_out(call: Call) -> replies.Usage:
    """True counts."""
    return replies.Usage(
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.sampled_tokens,
        total_tokens=call.prompt_tokens + call.sampled_tokens,
        prompt_tokens_details={"cached_tokens": call.cached_tokens},
        completion_tokens_details={"reasoning_tokens": call.reasoning_tokens},
    )


def finish_word(reason: FinishReason, request: ChatRequest) -> str:
    """The finish reason in OpenAI's words; a turn that was cut short for whatever reason ended by "length"."""
    if reason == "tool_calls" and is_legacy(request):
        return "function_call"
    return reason if reason in ("stop", "length", "tool_calls") else "length"


def reply_id(head: ReplyHead) -> str:
    """The id of a reply: the call's own under OpenAI's prefix."""
    return "chatcmpl-" + head.call_id.removeprefix("c-")
