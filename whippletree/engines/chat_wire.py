"""The wire of OpenAI-compatible chat endpoints: the request that we write, the events that they send. No I/O.

Reading is lenient about types that differ between servers, and never about meaning (chat_reader.py decides that).

Invariants (tests/engines/test_chat_wire.py):
- every message, call and tool of the internal form is in the request, in order; unknown fields of the harness are passed on;
- what a run fixes (model, sampling, streaming) cannot be changed by such a field.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whippletree.engines.wire import StreamOptions, TokenDetails
from whippletree.types import ChatRequest, Message, Sampling, Struct, ToolSpec

# --- requests ---


class FunctionOut(Struct):
    """The function of a call, or only its name where a choice names it.

    Example: FunctionOut(name="bash", arguments="{}")
    """

    name: str
    arguments: str | None = None


class CallOut(Struct):
    """One tool call of an assistant message, or the choice of a tool (no id then).

    Example: CallOut(id="call_7f", type="function", function=FunctionOut(name="bash", arguments="{}"))
    """

    type: Literal["function"]
    function: FunctionOut
    id: str | None = None


class MessageOut(Struct):
    """One message. `content` is written as null where there is none.

    Example: MessageOut(role="user", content="hi")
    """

    role: str
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallOut] = []
    tool_call_id: str | None = None
    name: str | None = None


class ToolFunctionOut(Struct):
    """What is said of a tool.

    Example: ToolFunctionOut(name="bash", description="run", parameters={"type": "object", "properties": {}})
    """

    name: str
    parameters: dict[str, Any]
    description: str | None = None


class ToolOut(Struct):
    """One tool.

    Example: ToolOut(type="function", function=ToolFunctionOut(name="bash", parameters={}))
    """

    type: Literal["function"]
    function: ToolFunctionOut


class SchemaOut(Struct):
    """A named JSON Schema.

    Example: SchemaOut(name="reply", schema={"type": "object"}, strict=True)
    """

    name: str
    schema: dict[str, Any]
    strict: bool


class FormatOut(Struct):
    """The form that a reply must have.

    Example: FormatOut(type="json_schema", json_schema=SchemaOut(...))
    """

    type: Literal["json_schema"]
    json_schema: SchemaOut


class ChatBody(Struct):
    """Body of POST /v1/chat/completions. Fields that are None are not sent.

    Example: ChatBody(model="policy", messages=[MessageOut(role="user", content="hi")], temperature=1.0, top_p=1.0, stream=True,
                      stream_options=StreamOptions(include_usage=True), logprobs=True)
    """

    model: str
    messages: list[MessageOut]
    temperature: float
    top_p: float
    stream: bool
    stream_options: StreamOptions
    logprobs: bool
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] = []
    tools: list[ToolOut] = []
    tool_choice: str | CallOut | None = None
    response_format: FormatOut | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None


class Wording(Struct):
    """What differs between servers in how a request is written. `extra` fields go with every request, `omit` fields with none.

    Example: Wording(limit="max_completion_tokens", reasoning="reasoning_content", omit=("temperature",))
    """

    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    reasoning: Literal["", "reasoning", "reasoning_content"] = ""
    logprobs: bool = True
    token_ids: bool = False
    request_id: bool = False
    extra: dict[str, Any] = {}
    omit: tuple[str, ...] = ()


def chat_body(model: str, request: ChatRequest, sampling: Sampling, wording: Wording, request_id: str = "") -> bytes:
    """The request as JSON. `sampling` is the run's; what the harness asked for is not obeyed, except for its stop strings."""
    body = ChatBody(
        model=model,
        messages=[message_out(message, wording) for message in request.messages],
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or None,
        seed=sampling.seed,
        stream=True,
        stream_options=StreamOptions(include_usage=True),
        logprobs=wording.logprobs,
        stop=list(request.requested.stop),
        tools=[tool_out(tool) for tool in request.tools],
        tool_choice=_choice(request),
        response_format=_format(request),
        return_token_ids=True if wording.token_ids else None,
        request_id=request_id if wording.request_id and request_id else None,
        **{wording.limit: sampling.max_tokens},
    )
    ours = {key: value for key, value in msgspec.to_builtins(body).items() if value is not None}
    fields = {**request.extra, **wording.extra, **ours}
    return msgspec.json.encode({key: value for key, value in fields.items() if key not in wording.omit})


def message_out(message: Message, wording: Wording) -> MessageOut:
    """A message as it is sent."""
    calls = [
        CallOut(id=call.id, type="function", function=FunctionOut(name=call.name, arguments=call.arguments))
        for call in message.tool_calls
    ]
    reasoning = {wording.reasoning: message.reasoning} if wording.reasoning and message.reasoning else {}
    return MessageOut(
        role=message.role,
        content=None if calls and not message.content else message.content,
        tool_calls=calls,
        tool_call_id=message.tool_call_id or None,
        name=message.name or None,
        **reasoning,
    )


def tool_out(tool: ToolSpec) -> ToolOut:
    """A tool as it is sent."""
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = ToolFunctionOut(name=tool.name, description=tool.description or None, parameters=parameters)
    return ToolOut(type="function", function=function)


def _choice(request: ChatRequest) -> str | CallOut | None:
    if not request.tools:
        return None
    if request.forced_tool:
        return CallOut(type="function", function=FunctionOut(name=request.forced_tool))
    return request.tool_choice if request.tool_choice != "auto" else None


def _format(request: ChatRequest) -> FormatOut | None:
    if request.schema is None:
        return None
    return FormatOut(type="json_schema", json_schema=SchemaOut(name="reply", schema=request.schema, strict=True))


# --- events; servers disagree on types, so what may be several things is Any ---


class FunctionIn(Struct):
    """A fragment of a call's function. Some servers send arguments as an object.

    Example: FunctionIn(name="bash", arguments='{"comm')
    """

    name: str | None = None
    arguments: Any = None


class CallIn(Struct):
    """A fragment of a tool call; any of its fields may be missing.

    Example: CallIn(index=0, id="call_7f", function=FunctionIn(name="bash", arguments=""))
    """

    index: int | None = None
    id: str | None = None
    function: FunctionIn | None = None


class DeltaIn(Struct):
    """What an event adds, or a whole message. Content may be text or a list of parts.

    Example: DeltaIn(content="hel")
    """

    content: Any = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[CallIn] | None = None
    function_call: FunctionIn | None = None


class LogprobIn(Struct):
    """Logprob of one sampled token.

    Example: LogprobIn(logprob=-0.1)
    """

    logprob: float | None = None


class LogprobsIn(Struct):
    """Logprobs of the sampled tokens, one each.

    Example: LogprobsIn(content=[LogprobIn(logprob=-0.1)])
    """

    content: list[LogprobIn] | None = None


class ChoiceIn(Struct):
    """A piece of the answer (`delta`), or the whole (`message`).

    Example: ChoiceIn(delta=DeltaIn(content="hel"))
    """

    delta: DeltaIn | None = None
    message: DeltaIn | None = None
    logprobs: LogprobsIn | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class UsageIn(Struct):
    """Token counts of one request; any may be null.

    Example: UsageIn(prompt_tokens=20, completion_tokens=8)
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None


class ChatEvent(Struct):
    """One event of a stream, or a whole reply. `error` has many forms.

    Example: ChatEvent(choices=[ChoiceIn(delta=DeltaIn(content="hel"))])
    """

    choices: list[ChoiceIn] | None = None
    usage: UsageIn | None = None
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    prompt_token_ids: list[int] | None = None


_EVENT = msgspec.json.Decoder(ChatEvent)


def chat_event(data: bytes) -> ChatEvent:
    """Read one event, or a whole reply. Raises msgspec.DecodeError."""
    return _EVENT.decode(data)


def text_of(content: Any) -> str:
    """The text of a content field: a string, a list of parts with text, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def arguments_of(arguments: Any) -> str:
    """The text of an arguments field; an object is written as JSON."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
