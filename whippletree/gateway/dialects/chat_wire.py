"""The wire structs of OpenAI chat-completions requests, as far as we read them. Fields we do not know are ignored on reading.

Invariant (tests/gateway/test_gateway_chat_recordings.py): every recorded harness request decodes.
"""

from __future__ import annotations

from typing import Any

from whippletree.types import Struct


class Wire(Struct):
    """Base: absent and null are the same on reading; defaults are left out on writing."""


class ImageUrl(Wire):
    """Example: {"url": "data:image/png;base64,iVBORw0K"}"""

    url: str


class InputAudio(Wire):
    """Example: {"data": "UklGRg==", "format": "wav"}"""

    data: str
    format: str = "wav"


class FilePart(Wire):
    """Example: {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}"""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class Part(Wire):
    """One part of a message's content. Example: {"type": "text", "text": "hi"}"""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    signature: str | None = None
    image_url: ImageUrl | str | None = None
    video_url: ImageUrl | str | None = None
    audio_url: ImageUrl | str | None = None
    input_audio: InputAudio | None = None
    file: FilePart | None = None


class WireFunction(Wire):
    """The function of a tool call; `arguments` is JSON text, though some clients send the object itself."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class WireCustomCall(Wire):
    """The call of a tool that takes free text. Example: {"name": "apply_patch", "input": "*** Begin Patch"}"""

    name: str
    input: str = ""


class WireToolCall(Wire):
    """Example: {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}"""

    id: str | None = None
    type: str | None = None
    function: WireFunction | None = None
    custom: WireCustomCall | None = None


class ReasoningDetail(Wire):
    """A piece of reasoning as some routers send it. Example: {"type": "reasoning.text", "text": "hm"}"""

    text: str | None = None
    summary: str | None = None
    signature: str | None = None


class ThinkingBlock(Wire):
    """A piece of reasoning as Anthropic's clients send it. Example: {"type": "thinking", "thinking": "hm"}"""

    thinking: str | None = None
    signature: str | None = None


class WireMessage(Wire):
    """Example: {"role": "user", "content": "hi"}"""

    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    thinking_blocks: list[ThinkingBlock] | None = None
    tool_calls: list[WireToolCall] | None = None
    function_call: WireFunction | None = None
    tool_call_id: str | None = None
    name: str | None = None


class WireToolFunction(Wire):
    """Example: {"name": "bash", "description": "run", "parameters": {"type": "object"}}"""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Grammar(Wire):
    """Example: {"syntax": "lark", "definition": "start: /.+/"}"""

    syntax: str = ""
    definition: str = ""


class CustomFormat(Wire):
    """What a free-text tool takes. Example: {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}"""

    type: str = "text"
    grammar: Grammar | None = None


class WireCustomTool(Wire):
    """Example: {"name": "apply_patch", "description": "edit files", "format": {"type": "text"}}"""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class WireTool(Wire):
    """Example: {"type": "function", "function": {"name": "bash"}}"""

    type: str = "function"
    function: WireToolFunction | None = None
    custom: WireCustomTool | None = None


class Named(Wire):
    """A tool by its name; other fields are not read. Example: {"name": "bash"}"""

    name: str | None = None


class ToolReference(Wire):
    """Example: {"type": "function", "function": {"name": "bash"}}"""

    type: str = "function"
    function: Named | None = None
    custom: Named | None = None
    name: str | None = None


class AllowedTools(Wire):
    """Example: {"mode": "required", "tools": [{"type": "function", "function": {"name": "bash"}}]}"""

    mode: str = "auto"
    tools: list[ToolReference] = []


class ToolChoice(ToolReference):
    """Example: {"type": "function", "function": {"name": "bash"}}"""

    allowed_tools: AllowedTools | None = None


class StreamOptions(Wire):
    """Example: {"include_usage": true}"""

    include_usage: bool | None = None


class JsonSchema(Wire, rename={"definition": "schema"}):
    """Example: {"name": "answer", "schema": {"type": "object"}}"""

    definition: dict[str, Any] | None = None


class ResponseFormat(Wire):
    """Example: {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}"""

    type: str = "text"
    json_schema: JsonSchema | None = None


class ChatBody(Wire):
    """Example: {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}"""

    messages: list[WireMessage]
    model: str | None = None
    tools: list[WireTool] | None = None
    tool_choice: str | ToolChoice | None = None
    functions: list[WireToolFunction] | None = None
    function_call: str | Named | None = None
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
    logprobs: bool | None = None
    top_logprobs: int | None = None
