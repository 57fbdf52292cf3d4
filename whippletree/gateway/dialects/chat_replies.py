"""The wire structs of OpenAI chat-completions replies."""

from __future__ import annotations

from typing import Literal

import msgspec

from whippletree.gateway.dialects.chat_wire import Wire


class FunctionOut(Wire):
    """Example: {"name": "bash", "arguments": "{}"}"""

    name: str | None = None
    arguments: str | None = None


class CustomOut(Wire):
    """A call of a free-text tool. Example: {"name": "apply_patch", "input": "*** Begin Patch"}"""

    name: str | None = None
    input: str | None = None


class ToolCallOut(Wire):
    """A tool call of a reply; in a stream, a piece of it, with its index."""

    function: FunctionOut | None = None
    custom: CustomOut | None = None
    index: int | None = None
    id: str | None = None
    type: Literal["function", "custom"] | None = None


class Usage(Wire, omit_defaults=False):
    """Counts in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class TokenOut(Wire, omit_defaults=False):
    """One sampled token. `bytes` is its text in UTF-8; no alternatives are kept, so `top_logprobs` is empty."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[int] = []


class LogprobsOut(Wire, omit_defaults=False):
    """The logprobs of a reply's tokens."""

    content: list[TokenOut]
    refusal: None = None


class MessageOut(Wire, omit_defaults=False):
    """The assistant's message; `content` is null where only tools are called."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallOut] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionOut | msgspec.UnsetType = msgspec.UNSET


class ChoiceOut(Wire, omit_defaults=False):
    """The one choice of a whole reply."""

    message: MessageOut
    finish_reason: str
    index: int = 0
    logprobs: LogprobsOut | None = None


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
    function_call: FunctionOut | None = None


class ChunkChoice(Wire, omit_defaults=False):
    """The one choice of a chunk; `finish_reason` is set in the terminal one."""

    delta: DeltaOut
    finish_reason: str | None = None
    index: int = 0
    logprobs: LogprobsOut | msgspec.UnsetType = msgspec.UNSET


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
    param: str | None = None


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
