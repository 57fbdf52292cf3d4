"""The wire structs of OpenAI Responses, as far as we read or write them. Fields we do not know are ignored on reading.

Input items and tools are read in two steps, first their type and then their fields, so that one of an unknown type may hold
anything.
Invariant (tests/gateway/test_gateway_responses_recordings.py): every recorded harness request decodes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whippletree.types import Struct


class Wire(Struct):
    """Base of what is read: absent and null are the same."""


class ToolFormat(Wire):
    """Format of a custom tool's input. Example: {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}"""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class Kind(Wire):
    """What an item or a tool is. Example: {"type": "message", "role": "user"}"""

    type: str | None = None
    role: str | None = None


class Tool(Wire):
    """A function, custom or namespace tool. Example: {"type": "function", "name": "bash", "parameters": {"type": "object"}}"""

    type: str
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: ToolFormat | None = None
    tools: list[msgspec.Raw] | None = None


class ChosenTool(Wire):
    """One tool of a tool choice. Example: {"type": "function", "name": "bash"}"""

    type: str = ""
    name: str | None = None
    namespace: str | None = None


class ToolChoice(ChosenTool):
    """Example: {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]}"""

    mode: str | None = None
    tools: list[ChosenTool] | None = None


class TextFormat(Wire):
    """Example: {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}"""

    type: str = "text"
    schema: dict[str, Any] | None = None


class TextConfig(Wire):
    """Example: {"format": {"type": "text"}, "verbosity": "low"}"""

    format: TextFormat | None = None


class Part(Wire):
    """One part of a content, an output or a summary. Example: {"type": "input_text", "text": "hi"}"""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    file_data: Any = None
    file_url: Any = None
    file_id: Any = None
    filename: Any = None
    input_audio: Any = None


class ShellOutput(Wire):
    """One command's output in a shell_call_output. Example: {"stdout": "a\\n", "stderr": ""}"""

    stdout: str | None = None
    stderr: str | None = None


class Item(Wire):
    """One input item of a type that we know.

    Example: {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": "{}"}
    """

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: msgspec.Raw = msgspec.Raw(b"null")
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    tools: list[msgspec.Raw] | None = None
    action: msgspec.Raw = msgspec.Raw(b"{}")
    operation: msgspec.Raw = msgspec.Raw(b"{}")


class Body(Wire):
    """The fields of a request that we use. Example: {"model": "policy", "input": "hi"}"""

    model: str | None = None
    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None
    additional_tools: list[msgspec.Raw] | None = None
    tool_choice: str | ToolChoice | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: Any = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None


# --- replies -----------------------------------------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Out(Struct, omit_defaults=False):
    """Base of what is written: null where there is nothing to say."""


class SummaryText(Out):
    """Reasoning as harnesses show it and send it back. Example: {"type": "summary_text", "text": "first look"}"""

    text: str
    type: Literal["summary_text"] = "summary_text"


class ReasoningOut(Out):
    """`encrypted_content` is our mark (dialects/signatures.py)."""

    id: str
    summary: list[SummaryText]
    encrypted_content: str
    status: ItemStatus = "completed"
    type: Literal["reasoning"] = "reasoning"


class LogprobOut(Out):
    """One sampled token. Example: {"token": " the", "logprob": -0.25, "bytes": [32, 116, 104, 101], "top_logprobs": []}"""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[str] = []


class TextOut(Out):
    """A part of a message: `output_text` of the assistant's, `input_text` of a user's."""

    text: str
    annotations: list[str] | msgspec.UnsetType = []
    logprobs: list[LogprobOut] | msgspec.UnsetType = []
    type: Literal["output_text", "input_text"] = "output_text"


class MessageOut(Out):
    """The assistant's message, or a user's that a compaction keeps."""

    id: str
    content: list[TextOut]
    status: ItemStatus = "completed"
    role: Literal["assistant", "user"] = "assistant"
    type: Literal["message"] = "message"


class FunctionCallOut(Out):
    """A call of a function tool; `namespace` where the tool came inside one."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function_call"] = "function_call"


class CustomCallOut(Out):
    """A call of a custom tool: `input` is free text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus = "completed"
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["custom_tool_call"] = "custom_tool_call"


class CompactionOut(Out):
    """The conversation so far; `encrypted_content` holds the summary (dialects/responses_compaction.py)."""

    id: str
    encrypted_content: str
    type: Literal["compaction"] = "compaction"


ItemOut = ReasoningOut | MessageOut | FunctionCallOut | CustomCallOut | CompactionOut


class InputDetails(Out):
    """Counts in tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Out):
    """Counts in tokens."""

    reasoning_tokens: int = 0


class Usage(Out):
    """Counts in tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()


class FailureOut(Out):
    """Why a response failed. Example: {"code": "server_error", "message": "the engine answered nonsense"}"""

    code: str
    message: str


class IncompleteOut(Out):
    """Why a response ends early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class FormatOut(Out):
    """Example: {"type": "text"}"""

    type: Literal["text", "json_schema"] = "text"
    name: str | msgspec.UnsetType = msgspec.UNSET
    schema: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ForcedOut(Out):
    """Example: {"type": "function", "name": "bash"}"""

    name: str
    type: Literal["function", "custom"] = "function"


class TextConfigOut(Out):
    """Example: {"format": {"type": "text"}}"""

    format: FormatOut = FormatOut()


class ReasoningConfigOut(Out):
    """Nothing of it is used."""

    effort: None = None
    summary: None = None


class ResponseOut(Out):
    """A response: whole, or as the events of a stream show it."""

    id: str
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[ItemOut]
    usage: Usage | None = None
    error: FailureOut | None = None
    incomplete_details: IncompleteOut | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    tool_choice: str | ForcedOut = "auto"
    text: TextConfigOut = TextConfigOut()
    reasoning: ReasoningConfigOut = ReasoningConfigOut()
    object: Literal["response"] = "response"
    instructions: None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    tools: list[str] = []
    store: bool = True
    background: bool = False
    truncation: Literal["disabled"] = "disabled"
    user: None = None


class CompactedOut(Out):
    """The answer to a compaction: the user's messages and one compaction item."""

    id: str
    created_at: int
    output: list[ItemOut]
    usage: Usage
    object: Literal["response.compaction"] = "response.compaction"


class EventOut(Wire):
    """One event of a stream; which fields it has depends on its type.

    Example: {"type": "response.output_text.delta", "sequence_number": 4, "item_id": "msg_5d1f_0", "output_index": 0,
              "content_index": 0, "delta": "hel", "logprobs": []}
    """

    type: str
    sequence_number: int = -1
    response: ResponseOut | msgspec.UnsetType = msgspec.UNSET
    item_id: str | msgspec.UnsetType = msgspec.UNSET
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    summary_index: int | msgspec.UnsetType = msgspec.UNSET
    item: ItemOut | msgspec.UnsetType = msgspec.UNSET
    part: TextOut | SummaryText | msgspec.UnsetType = msgspec.UNSET
    delta: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str | msgspec.UnsetType = msgspec.UNSET
    input: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[LogprobOut] | msgspec.UnsetType = msgspec.UNSET


class ErrorDetail(Out):
    """What went wrong, in OpenAI's form."""

    message: str
    type: str
    code: str
    param: None = None


class ErrorOut(Out):
    """An error body."""

    error: ErrorDetail


class CountOut(Out):
    """The answer to a token count."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
