"""The wire structs of OpenAI chat-completions, as far as we read or write them. Fields we do not know are ignored on reading.

Invariant (tests/gateway/test_gateway_chat_dialect.py): every recorded harness request decodes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whippletree.types import Struct


class Wire(Struct):
    """Base: absent and null are the same on reading; defaults are left out on writing."""


class TextPart(Wire):
    """One part of a message's content. Example: {"type": "text", "text": "hi"}"""

    type: str = "text"
    text: str = ""


class WireFunction(Wire):
    """The function of a tool call; `arguments` is JSON text, though some clients send the object itself."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class WireToolCall(Wire):
    """Example: {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}"""

    id: str | None = None
    type: str | None = None
    function: WireFunction | None = None


class WireMessage(Wire):
    """Example: {"role": "user", "content": "hi"}"""

    role: str
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class WireToolFunction(Wire):
    """Example: {"name": "bash", "description": "run", "parameters": {"type": "object"}}"""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class WireTool(Wire):
    """Example: {"type": "function", "function": {"name": "bash"}}"""

    type: str = "function"
    function: WireToolFunction | None = None


class StreamOptions(Wire):
    """Example: {"include_usage": true}"""

    include_usage: bool | None = None


class ResponseFormat(Wire):
    """Example: {"type": "text"}"""

    type: str = "text"


class ChatBody(Wire):
    """Example: {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}"""

    messages: list[WireMessage]
    model: str | None = None
    tools: list[WireTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    response_format: ResponseFormat | None = None


# --- replies -----------------------------------------------------------------------------------------------------------


class FunctionOut(Wire):
    """Example: {"name": "bash", "arguments": "{}"}"""

    name: str | None = None
    arguments: str | None = None


class ToolCallOut(Wire):
    """A tool call of a reply; in a stream, a piece of it, with its index."""

    function: FunctionOut
    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None


class Usage(Wire, omit_defaults=False):
    """Counts in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class MessageOut(Wire, omit_defaults=False):
    """The assistant's message; `content` is null where only tools are called."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallOut] | msgspec.UnsetType = msgspec.UNSET


class ChoiceOut(Wire, omit_defaults=False):
    """The one choice of a whole reply."""

    message: MessageOut
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ReplyOut(Wire, omit_defaults=False):
    """A whole reply."""

    id: str
    created: int
    model: str
    choices: list[ChoiceOut]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class DeltaOut(Wire):
    """What a chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallOut] | None = None


class ChunkChoice(Wire, omit_defaults=False):
    """The one choice of a chunk; `finish_reason` is set in the terminal one."""

    delta: DeltaOut
    finish_reason: str | None = None
    index: int = 0


class ChunkOut(Wire, omit_defaults=False):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType = msgspec.UNSET


class ErrorDetail(Wire, omit_defaults=False):
    """What went wrong, in OpenAI's form."""

    message: str
    type: str
    code: str | None = None
    param: None = None


class ErrorOut(Wire):
    """An error body."""

    error: ErrorDetail


class ModelOut(Wire, omit_defaults=False):
    """One entry of the model list; `max_model_len` is the context length in tokens, 0 when no engine has answered yet."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "whippletree"
    max_model_len: int = 0


class ModelsOut(Wire, omit_defaults=False):
    """The model list."""

    data: list[ModelOut]
    object: Literal["list"] = "list"
