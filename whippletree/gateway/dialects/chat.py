"""OpenAI chat-completions: parse a request, write a reply whole or streamed, write an error.

Invariants (tests/gateway/test_gateway_chat_dialect.py):
- a streamed reply, put together as the official client does, equals the whole reply, however the deltas are cut;
- a reply that the harness sends back parses to the message that was sampled ("" as arguments becomes "{}");
- messages of the internal form correspond one to one, in order, to the request's messages;
- `trim` leaves out exactly what the base call has, and what is left parses.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, TypeVar

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Trim
from whippletree.gateway.dialects import chat_wire as wire
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ChatRequest, FinishReason, Message, ParsedMessage, RequestedSampling, ToolCall, ToolSpec

T = TypeVar("T")

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TRANSPORT_FIELDS = ("stream", "stream_options")
TRIM_FIELD = "whippletree_trim"
NO_ARGUMENTS = "{}"
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "invalid_request_error"}


class ChatDialect:
    """Satisfies `dialects.Dialect`."""

    name = "chat"

    def parse(self, body: bytes) -> ChatRequest:
        """The internal form of a request. Raises RequestError (400)."""
        request = _decode(body, wire.ChatBody)
        if not request.messages:
            raise RequestError("messages is empty", "send at least one message")
        if request.n is not None and request.n != 1:
            raise RequestError(f"n is {request.n}; one reply is sampled per request", "leave n out and send several requests")
        if request.response_format is not None and request.response_format.type != "text":
            kind = request.response_format.type
            raise RequestError(f"response_format {kind!r} is not supported", "use type text, or leave it out")
        stop = request.stop
        return ChatRequest(
            model=request.model or "",
            messages=tuple(_message(message, place) for place, message in enumerate(request.messages)),
            tools=tuple(_tool(tool, place) for place, tool in enumerate(request.tools or ())),
            tool_choice=_tool_choice(request.tool_choice),
            stream=bool(request.stream),
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
            requested=RequestedSampling(
                temperature=request.temperature,
                top_p=request.top_p,
                max_tokens=_max_tokens(request),
                seed=request.seed,
                stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
                n=request.n,
            ),
        )

    def digest(self, body: bytes) -> str:
        """SHA-256 over the fields in name order, without the transport's."""
        fields = _decode(body, dict[str, msgspec.Raw])
        digest = hashlib.sha256()
        for name in sorted(fields):
            if name not in TRANSPORT_FIELDS:
                digest.update(b"%d:%s=" % (len(bytes(fields[name])), name.encode("utf-8", "surrogatepass")))
                digest.update(bytes(fields[name]))
        return digest.hexdigest()

    def trim(self, body: bytes, trim: Trim) -> bytes:
        """The body without its first messages (and tools) that the base call has; says so in one further field."""
        if not trim.base:
            return body
        fields: dict[str, Any] = dict(_decode(body, dict[str, msgspec.Raw]))
        messages = msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])
        fields["messages"] = messages[trim.messages :]
        if trim.tools:
            fields.pop("tools", None)
        fields[TRIM_FIELD] = trim
        return msgspec.json.encode(fields)

    def trimmed(self, stored: bytes) -> Trim:
        """What was left out of a stored request."""
        fields = _decode(stored, dict[str, msgspec.Raw])
        return msgspec.json.decode(fields[TRIM_FIELD], type=Trim) if TRIM_FIELD in fields else Trim()

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage) -> bytes:
        """A whole reply."""
        out = wire.MessageOut(
            content=message.content if message.content or not message.tool_calls else None,
            reasoning_content=message.reasoning or msgspec.UNSET,
            tool_calls=[_tool_call_out(item) for item in message.tool_calls] or msgspec.UNSET,
        )
        return msgspec.json.encode(
            wire.ReplyOut(
                id=_reply_id(head),
                created=head.created,
                model=head.model,
                choices=[wire.ChoiceOut(message=out, finish_reason=_finish(message.finish_reason))],
                usage=_usage(call),
            )
        )

    def read_reply(self, reply: bytes) -> ParsedMessage:
        """The turn that a whole reply carries."""
        choice = _decode(reply, wire.ReplyOut).choices[0]
        calls = choice.message.tool_calls
        return ParsedMessage(
            content=choice.message.content or "",
            reasoning=choice.message.reasoning_content or "",
            tool_calls=tuple(
                ToolCall(id=item.id or "", name=item.function.name or "", arguments=item.function.arguments or "")
                for item in (calls or ())
            ),
            finish_reason=_read_finish(choice.finish_reason),
        )

    def stream(self, head: ReplyHead, *, include_usage: bool) -> ChatStream:
        """A writer for one streamed reply."""
        return ChatStream(head, include_usage)

    def error(self, error: RequestError) -> bytes:
        """{"error": {"message", "type", "code", "param"}}."""
        kind = ERROR_TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
        return msgspec.json.encode(wire.ErrorOut(error=wire.ErrorDetail(message=str(error), type=kind, code=error.code)))

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list."""
        return msgspec.json.encode(
            wire.ModelsOut(data=[wire.ModelOut(id=name, max_model_len=context_length) for name in names])
        )

    def model(self, name: str, context_length: int) -> bytes:
        """One model."""
        return msgspec.json.encode(wire.ModelOut(id=name, max_model_len=context_length))


class ChatStream:
    """Satisfies `dialects.StreamWriter`. The first event carries the role; arguments that stay empty become "{}" at the end."""

    def __init__(self, head: ReplyHead, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._started = False
        self._has_arguments: dict[int, bool] = {}

    def delta(self, delta: StreamDelta) -> bytes:
        """The event of one delta."""
        out = wire.DeltaOut(content=delta.content or None, reasoning_content=delta.reasoning or None)
        if delta.tool_index >= 0:
            out = msgspec.structs.replace(out, tool_calls=[self._tool_call(delta)])
        return self._chunk(out)

    def _tool_call(self, delta: StreamDelta) -> wire.ToolCallOut:
        first = delta.tool_index not in self._has_arguments
        self._has_arguments[delta.tool_index] = bool(delta.arguments) or self._has_arguments.get(delta.tool_index, False)
        return wire.ToolCallOut(
            index=delta.tool_index,
            id=delta.tool_id or None,
            type="function" if first else None,
            function=wire.FunctionOut(name=delta.tool_name or None, arguments=delta.arguments),
        )

    def end(self, call: Call, message: ParsedMessage) -> bytes:
        """Finish reason, usage where it was asked for, and the end mark."""
        events = [
            self._chunk(
                wire.DeltaOut(tool_calls=[wire.ToolCallOut(index=index, function=wire.FunctionOut(arguments=NO_ARGUMENTS))])
            )
            for index, filled in self._has_arguments.items()
            if not filled
        ]
        events.append(self._chunk(wire.DeltaOut(), finish_reason=_finish(message.finish_reason)))
        if self._include_usage:
            events.append(_event(self._envelope([], _usage(call))))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error(self, error: RequestError) -> bytes:
        """The error as an event; no end mark follows, so that no client takes the stream for complete."""
        return b"data: " + ChatDialect().error(error) + b"\n\n"

    def _chunk(self, delta: wire.DeltaOut, finish_reason: str | None = None) -> bytes:
        if not self._started:
            self._started = True
            first = delta.content if delta.content is not None else (None if delta.reasoning_content else "")
            delta = msgspec.structs.replace(delta, role="assistant", content=first)
        return _event(self._envelope([wire.ChunkChoice(delta=delta, finish_reason=finish_reason)]))

    def _envelope(self, choices: list[wire.ChunkChoice], usage: Any = msgspec.UNSET) -> wire.ChunkOut:
        head = self._head
        return wire.ChunkOut(id=_reply_id(head), created=head.created, model=head.model, choices=choices, usage=usage)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body cannot be read: {error}", "mend the field it names") from error


def _message(message: wire.WireMessage, place: int) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        known = ", ".join(ROLES)
        raise RequestError(f"messages[{place}].role is {message.role!r}", f"roles served here: {known}")
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    return Message(
        role=role,  # type: ignore[arg-type]  # the values of ROLES
        content=_text(message.content, place),
        reasoning=reasoning or "",
        tool_calls=tuple(_tool_call(item) for item in message.tool_calls or ()),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _text(content: str | list[wire.TextPart] | None, place: int) -> str:
    if isinstance(content, list):
        for part in content:
            if part.type not in ("text", "refusal"):
                raise RequestError(f"messages[{place}].content has a part of type {part.type!r}", "only text is served")
        return "".join(part.text for part in content)
    return content or ""


def _tool_call(item: wire.WireToolCall) -> ToolCall:
    function = item.function or wire.WireFunction()
    arguments = function.arguments
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    return ToolCall(id=item.id or "", name=function.name or "", arguments=arguments or "")


def _tool(tool: wire.WireTool, place: int) -> ToolSpec:
    if tool.type != "function" or tool.function is None:
        raise RequestError(f"tools[{place}] has type {tool.type!r}", "only function tools are served")
    function = tool.function
    return ToolSpec(name=function.name, description=function.description or "", parameters=function.parameters or {})


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if isinstance(choice, dict) or choice == "required":  # a forced tool is recorded; nothing is enforced while sampling
        return "required"
    if choice in (None, "auto", "none"):
        return choice or "auto"
    raise RequestError(f"tool_choice is {choice!r}", "use auto, none, required, or name a function")


def _max_tokens(request: wire.ChatBody) -> int | None:
    asked = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if asked is not None and asked < 1:
        raise RequestError(f"max_tokens is {asked}", "ask for at least one token")
    return asked


def _tool_call_out(item: ToolCall) -> wire.ToolCallOut:
    function = wire.FunctionOut(name=item.name, arguments=item.arguments or NO_ARGUMENTS)
    return wire.ToolCallOut(id=item.id, type="function", function=function)


def _usage(call: Call) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.sampled_tokens,
        total_tokens=call.prompt_tokens + call.sampled_tokens,
        prompt_tokens_details={"cached_tokens": call.cached_tokens},
        completion_tokens_details={"reasoning_tokens": 0},
    )


def _finish(reason: FinishReason) -> str:
    return reason if reason in ("stop", "length", "tool_calls") else "length"


def _read_finish(reason: str) -> FinishReason:
    return "tool_calls" if reason == "tool_calls" else "length" if reason == "length" else "stop"


def _reply_id(head: ReplyHead) -> str:
    return "chatcmpl-" + re.sub(r"^c-", "", head.call_id)


def _event(chunk: wire.ChunkOut) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
