"""The wire structs of Anthropic Messages, as far as we read or write them. Fields we do not know are ignored on reading.

Blocks are kept as raw JSON until their type is known, so that a block of a kind that we do not know cannot fail a request.

Invariants (tests/gateway/test_gateway_messages_recordings.py, test_gateway_messages_dialect.py):
- every recorded request to /v1/messages decodes;
- a value that does not decode is a RequestError (400) whose text starts with its place, as in "messages.2.content.0.text".
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import msgspec

from whippletree.errors import RequestError
from whippletree.types import Struct

T = TypeVar("T")


class Wire(Struct):
    """Base: absent and null are the same on reading; defaults are left out on writing."""


def decode(data: bytes | msgspec.Raw, kind: type[T], place: str = "") -> T:
    """`data` as a `kind`. Raises RequestError (400) that names the place of what is wrong, below `place`."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(_located(str(error), place), "mend the field it names") from error


def _located(text: str, place: str) -> str:
    """msgspec's "<what> - at `$.messages[2].role`" as "messages.2.role: <what>"."""
    what, _, path = text.partition(" - at `$")
    below = re.sub(r"\[(\d+|\.\.\.)\]", r".\1", path.removesuffix("`"))
    return f"{(place + below).removeprefix('.') or 'the request body cannot be read'}: {what}"


# --- requests ----------------------------------------------------------------------------------------------------------


class BlockHead(Wire):
    """What every block has. Example: {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}"""

    type: str
    cache_control: msgspec.Raw = msgspec.Raw()


class TextBlock(Wire):
    """Example: {"type": "text", "text": "hi"}"""

    text: str


class ThinkingBlock(Wire):
    """Example: {"type": "thinking", "thinking": "hm", "signature": "d2hp..."}"""

    thinking: str | None = None
    signature: str | None = None


class RedactedThinkingBlock(Wire):
    """Example: {"type": "redacted_thinking", "data": "d2hp..."}"""

    data: str | None = None


class ToolUseBlock(Wire):
    """Example: {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}}"""

    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw()


class ToolResultBlock(Wire):
    """Example: {"type": "tool_result", "tool_use_id": "call_1", "content": "a.txt", "is_error": false}"""

    tool_use_id: str
    content: str | list[msgspec.Raw] | None = None
    is_error: bool | None = None


class Source(Wire):
    """Example: {"type": "base64", "media_type": "image/png", "data": "iVBO..."}"""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[msgspec.Raw] | None = None


class MediaBlock(Wire):
    """An image or a document. Example: {"type": "image", "source": {"type": "url", "url": "https://..."}}"""

    source: Source
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Wire):
    """Example: {"type": "search_result", "source": "https://...", "title": "A", "content": [{"type": "text", "text": "b"}]}"""

    source: str = ""
    title: str = ""
    content: list[msgspec.Raw] | None = None


class ToolReferenceBlock(Wire):
    """Example: {"type": "tool_reference", "tool_name": "weather"}"""

    tool_name: str


class WireMessage(Wire):
    """Example: {"role": "user", "content": "hi"}"""

    role: str
    content: str | list[msgspec.Raw] | None = None


class WireTool(Wire):
    """Example: {"name": "bash", "description": "run", "input_schema": {"type": "object"}}"""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None
    cache_control: msgspec.Raw = msgspec.Raw()


class ToolChoice(Wire):
    """Example: {"type": "tool", "name": "bash"}"""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Wire):
    """Example: {"type": "json_schema", "schema": {"type": "object"}}"""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Wire):
    """Example: {"format": {"type": "json_schema", "schema": {}}, "effort": "high"}"""

    format: OutputFormat | None = None


class MessagesBody(Wire):
    """The fields that are used. Example: {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}"""

    messages: list[WireMessage]
    model: str | None = None
    system: str | list[msgspec.Raw] | None = None
    tools: list[WireTool] | None = None
    tool_choice: ToolChoice | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    output_format: OutputFormat | None = None
    output_config: OutputConfig | None = None


# --- replies -----------------------------------------------------------------------------------------------------------


class Usage(Wire, omit_defaults=False):
    """Counts in tokens, never null. `input_tokens` are those of the prompt that no cache had."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    service_tier: Literal["standard"] = "standard"


class DeltaUsage(Wire, omit_defaults=False):
    """The final counts of a stream, in tokens."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextOut(Wire, tag_field="type", tag="text", omit_defaults=False):
    """Example: {"type": "text", "text": "hi"}"""

    text: str = ""


class ThinkingOut(Wire, tag_field="type", tag="thinking", omit_defaults=False):
    """Example: {"type": "thinking", "thinking": "hm", "signature": "d2hp..."}"""

    thinking: str = ""
    signature: str = ""


class ToolUseOut(Wire, tag_field="type", tag="tool_use", omit_defaults=False):
    """Example: {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}}"""

    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


BlockOut = TextOut | ThinkingOut | ToolUseOut


class MessageOut(Wire, tag_field="type", tag="message", omit_defaults=False):
    """A whole reply; in a stream, what opens it."""

    id: str
    model: str
    content: list[BlockOut]
    usage: Usage
    role: Literal["assistant"] = "assistant"
    stop_reason: str | None = None
    stop_sequence: str | None = None


class MessageStart(Wire, tag_field="type", tag="message_start"):
    """The event that opens a stream."""

    message: MessageOut


class BlockStart(Wire, tag_field="type", tag="content_block_start", omit_defaults=False):
    """The event that opens a block."""

    index: int
    content_block: BlockOut


class TextDelta(Wire, tag_field="type", tag="text_delta"):
    """Example: {"type": "text_delta", "text": "hel"}"""

    text: str


class ThinkingDelta(Wire, tag_field="type", tag="thinking_delta"):
    """Example: {"type": "thinking_delta", "thinking": "hm"}"""

    thinking: str


class SignatureDelta(Wire, tag_field="type", tag="signature_delta"):
    """Example: {"type": "signature_delta", "signature": "d2hp..."}"""

    signature: str


class InputDelta(Wire, tag_field="type", tag="input_json_delta"):
    """Example: {"type": "input_json_delta", "partial_json": "{\\"comm"}"""

    partial_json: str


class BlockDelta(Wire, tag_field="type", tag="content_block_delta", omit_defaults=False):
    """A piece of the open block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Wire, tag_field="type", tag="content_block_stop"):
    """The event that closes a block."""

    index: int


class Stop(Wire, omit_defaults=False):
    """Why a turn ended."""

    stop_reason: str
    stop_sequence: str | None = None


class MessageDelta(Wire, tag_field="type", tag="message_delta"):
    """How a stream's turn ended, with the final counts."""

    delta: Stop
    usage: DeltaUsage


class MessageStop(Wire, tag_field="type", tag="message_stop"):
    """The event that ends a stream."""


class ErrorDetail(Wire):
    """Example: {"type": "invalid_request_error", "message": "messages: at least one message is required"}"""

    type: str
    message: str


class ErrorOut(Wire, tag_field="type", tag="error", omit_defaults=False):
    """An error body, also the data of an error event. No id is given to a request that made no call."""

    error: ErrorDetail
    request_id: None = None


class CountOut(Wire):
    """Example: {"input_tokens": 2095}"""

    input_tokens: int


class ModelOut(Wire, tag_field="type", tag="model", omit_defaults=False):
    """One entry of the model list; `max_input_tokens` is the context length, null when no engine has answered yet. The time of
    release is the epoch, Anthropic's word for an unknown one."""

    id: str
    display_name: str
    created_at: str = "1970-01-01T00:00:00Z"
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None


class ModelsOut(Wire, omit_defaults=False):
    """The model list, in one page."""

    data: list[ModelOut]
    has_more: bool = False
    first_id: str | None = None
    last_id: str | None = None
