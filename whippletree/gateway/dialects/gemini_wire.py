"""The wire structs of Gemini's generateContent requests, as far as we read them, and how they are read.

The REST API takes every field in camelCase and in snake_case, and one value where a list is meant; so do we.
Invariants (tests/gateway/test_gateway_gemini_dialect.py):
- a request reads the same in both spellings; what is the user's own (arguments, responses, schemas) is never respelled;
- fields we do not know are ignored on reading.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from whippletree.errors import RequestError
from whippletree.types import Struct

T = TypeVar("T")


class Wire(Struct, rename="camel"):
    """Base: absent and null are the same on reading; defaults are left out on writing."""


class Blob(Wire):
    """Example: {"mimeType": "image/png", "data": "iVBORw0K"}"""

    data: str = ""
    mime_type: str = ""


class FileData(Wire):
    """Example: {"mimeType": "application/pdf", "fileUri": "https://..."}"""

    file_uri: str = ""
    mime_type: str = ""


class FunctionCall(Wire):
    """Example: {"name": "bash", "args": {"command": "ls"}}"""

    name: str = ""
    id: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ResponsePart(Wire):
    """A part of a function's response: media. Example: {"inlineData": {"mimeType": "image/png", "data": "iVBORw0K"}}"""

    inline_data: Blob | None = None
    file_data: FileData | None = None


class FunctionResponse(Wire):
    """Example: {"name": "bash", "response": {"output": "a.txt"}}"""

    name: str = ""
    id: str | None = None
    response: dict[str, Any] | None = None
    parts: list[ResponsePart] | None = None


class ExecutableCode(Wire):
    """Example: {"language": "PYTHON", "code": "print(1)"}"""

    code: str = ""
    language: str = ""


class CodeExecutionResult(Wire):
    """Example: {"outcome": "OUTCOME_OK", "output": "1"}"""

    output: str = ""
    outcome: str = ""


class Part(Wire):
    """Example: {"text": "hi"}"""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    executable_code: ExecutableCode | None = None
    code_execution_result: CodeExecutionResult | None = None


class Content(Wire):
    """Example: {"role": "user", "parts": [{"text": "hi"}]}"""

    parts: list[Part] | Part | None = None
    role: str | None = None


class FunctionDeclaration(Wire):
    """Example: {"name": "bash", "description": "run", "parameters": {"type": "OBJECT"}}"""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class Tool(Wire):
    """Example: {"functionDeclarations": [{"name": "bash"}]}"""

    function_declarations: list[FunctionDeclaration] | FunctionDeclaration | None = None


class FunctionCallingConfig(Wire):
    """Example: {"mode": "ANY", "allowedFunctionNames": ["bash"]}"""

    mode: str | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(Wire):
    """Example: {"functionCallingConfig": {"mode": "AUTO"}}"""

    function_calling_config: FunctionCallingConfig | None = None


class GenerationConfig(Wire):
    """Example: {"temperature": 1, "maxOutputTokens": 8192}"""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    candidate_count: int | None = None
    seed: int | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: Any = None
    response_logprobs: bool | None = None
    logprobs: int | None = None


class GenerateBody(Wire):
    """Example: {"contents": [{"parts": [{"text": "hi"}]}]}"""

    contents: list[Content] | Content | None = None
    model: str | None = None
    system_instruction: Content | str | None = None
    tools: list[Tool] | Tool | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None


class CountBody(GenerateBody):
    """Example: {"generateContentRequest": {"contents": [{"parts": [{"text": "hi"}]}]}}"""

    generate_content_request: GenerateBody | None = None


# --- reading -------------------------------------------------------------------------------------------------------------


def read(body: bytes, kind: type[T]) -> tuple[T, bytes]:
    """The struct, and the body in camelCase. Raises RequestError (400) that names the field."""
    try:
        if _snake_case().search(body):
            body = msgspec.json.encode(_respelled(msgspec.json.decode(body), kind))
        return msgspec.json.decode(body, type=kind, strict=False), body
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body cannot be read: {error}", "mend the field it names") from error
    except RecursionError as error:
        raise RequestError("the request body cannot be read: it is nested too deeply", "nest its values less") from error


@cache
def _snake_case() -> re.Pattern[bytes]:
    """Finds the snake_case name of a field in a body."""
    names: set[str] = set()
    waiting: list[Any] = [CountBody]
    while waiting:
        fields = _fields(waiting.pop())
        names.update(name for name, (camel, _) in fields.items() if name != camel)
        waiting += [child for name, (camel, child) in fields.items() if child is not None and name == camel]
    return re.compile(b'"(?:' + "|".join(sorted(names)).encode() + b')"\\s*:')


@cache
def _fields(kind: Any) -> dict[str, tuple[str, Any]]:
    """Every spelling of a struct's fields → its name on the wire, and the struct that its value is (None where it is none)."""
    hints = get_type_hints(kind)
    fields: dict[str, tuple[str, Any]] = {}
    for field in msgspec.structs.fields(kind):
        child = _struct_in(hints[field.name])
        fields[field.name] = fields[field.encode_name] = (field.encode_name, child)
    return fields


def _struct_in(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((found for argument in get_args(hint) if (found := _struct_in(argument)) is not None), None)


def _respelled(value: Any, kind: Any) -> Any:
    """The value with the names of `kind`'s fields in camelCase, down to where the user's own values begin."""
    if isinstance(value, list):
        return [_respelled(item, kind) for item in value]
    if not isinstance(value, dict):
        return value
    fields = _fields(kind)
    respelled = {}
    for name, item in value.items():
        camel, child = fields.get(name, (name, None))
        respelled[camel] = item if child is None else _respelled(item, child)
    return respelled


def as_list(value: list[T] | T | None) -> list[T]:
    """One value where a list is meant is a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
