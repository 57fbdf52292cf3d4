"""Gemini's generateContent: parse a request, write a reply whole or streamed, count, list models, write an error.

Model and transport are in the address: /v1beta/models/{model}:generateContent, :streamGenerateContent (with alt=sse as events,
otherwise as a JSON list), :countTokens; the same below /v1, /v1alpha, no version, and Vertex AI's longer addresses.
Invariants (tests/gateway/test_gateway_gemini_dialect.py, test_gateway_gemini_stream.py):
- a streamed reply, put together as the official client does, equals the whole reply, however the deltas are cut;
- a reply that the harness sends back parses to the message that was sampled, its dropped thoughts marked by `signature`;
- a field that is not used is named in `ignored`; a signature is never demanded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, TokenText, overflow
from whippletree.gateway.dialects import gemini_replies as replies
from whippletree.gateway.dialects import gemini_wire as wire
from whippletree.gateway.dialects.gemini_contents import Conversation
from whippletree.gateway.dialects.gemini_schema import json_schema
from whippletree.gateway.dialects.gemini_stream import EVENT_END, GeminiStream
from whippletree.types import Call, ChatRequest, ParsedMessage, RequestedSampling, ToolSpec

ADDRESSES = ("/{version:v1(?:alpha|beta[0-9]?)?}/{model:[^:]+}:", "/{model:(?:models|tunedModels)/[^:]+}:")
STREAMS = {"generateContent": False, "streamGenerateContent": True}
USED = frozenset(
    {"contents", "model", "systemInstruction", "tools", "toolConfig", "generationConfig", "generateContentRequest"}
)
USED_OF_CONFIG = frozenset(field.encode_name for field in msgspec.structs.fields(wire.GenerationConfig))
STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
ANY_JSON = {"anyOf": [{"type": "object"}, {"type": "array"}]}
MODES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto"}


class GeminiDialect:
    """Satisfies `dialects.Dialect`. Blank lines keep a silent stream alive: comments break Google's own Python client."""

    name = "gemini"
    generate_paths: tuple[str, ...] = tuple(address + "{method:(?!countTokens$)[A-Za-z]+}" for address in ADDRESSES)
    count_paths: tuple[str, ...] = tuple(address + "{method:countTokens}" for address in ADDRESSES)
    limits: frozenset[str] = frozenset()
    keepalive = EVENT_END

    def target(self, match: Mapping[str, str], query: Mapping[str, str]) -> Target:
        """Model and transport. Raises RequestError (404) for a method that is not served."""
        method, address = match["method"], match["model"]
        if method not in STREAMS and method != "countTokens":
            served = ", ".join((*STREAMS, "countTokens"))
            raise RequestError(f"the method {method!r} is not served", f"use one of {served}", status=404, code="not_found")
        sse = query.get("alt", query.get("$alt")) == "sse"
        return Target(model=_model_name(address), stream=STREAMS.get(method, False), sse=sse)

    def parse(self, body: bytes, target: Target) -> ChatRequest:
        """The internal form of a request. Raises RequestError (400)."""
        request, camel = wire.read(body, wire.GenerateBody)
        return _internal(request, camel, target)

    def parse_count(self, body: bytes, target: Target) -> ChatRequest:
        """The request whose tokens are counted: `contents`, or a whole `generateContentRequest`. Raises RequestError (400)."""
        request, camel = wire.read(body, wire.CountBody)
        if request.generate_content_request is None:
            return _internal(request, camel, target)
        inner = msgspec.json.decode(camel, type=dict[str, msgspec.Raw])["generateContentRequest"]
        return _internal(request.generate_content_request, bytes(inner), target)

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """A whole reply."""
        wanted = tokens if head.request.wants_logprobs else ()
        candidate = replies.last_candidate(replies.whole_parts(head, message), message, wanted)
        return msgspec.json.encode(replies.reply_out(head, candidate, call))

    def stream(self, head: ReplyHead) -> GeminiStream:
        """A writer for one streamed reply."""
        return GeminiStream(head, self.error)

    def counted(self, tokens: int) -> bytes:
        """{"totalTokens": n}."""
        return msgspec.json.encode(replies.CountOut(total_tokens=tokens))

    def error(self, error: RequestError) -> bytes:
        """{"error": {"code", "message", "status"}}; a prompt that does not fit is told in Gemini's words."""
        message = _too_long(error) if error.code == overflow.CODE else str(error)
        status = STATUS.get(error.status) or ("INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
        return msgspec.json.encode(
            replies.ErrorOut(error=replies.ErrorDetail(code=error.status, message=message, status=status))
        )

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list."""
        return msgspec.json.encode(replies.ModelsOut(models=[_model(name, context_length) for name in names]))

    def model(self, name: str, context_length: int) -> bytes:
        """One model."""
        return msgspec.json.encode(_model(name, context_length))


def _model_name(address: str) -> str:
    """models/x and Vertex AI's projects/.../models/x name x; tunedModels/x stays as it is."""
    return address.rpartition("models/")[2]


def _model(name: str, context_length: int) -> replies.ModelOut:
    address = name if "/" in name else f"models/{name}"
    return replies.ModelOut(
        name=address, display_name=name, input_token_limit=context_length, output_token_limit=context_length
    )


def _too_long(error: RequestError) -> str:
    numbers = overflow.overflow_of(error)
    if numbers is None:
        return f"The input token count exceeds the maximum number of tokens allowed: {error}"
    return f"The input token count ({numbers.prompt}) exceeds the maximum number of tokens allowed ({numbers.limit})."


def _internal(request: wire.GenerateBody, body: bytes, target: Target) -> ChatRequest:
    contents = wire.as_list(request.contents)
    if not contents:
        raise RequestError("contents is empty", "send at least one content")
    config = request.generation_config or wire.GenerationConfig()
    conversation = Conversation()
    conversation.system(request.system_instruction)
    for place, content in enumerate(contents):
        conversation.add(content, f"contents[{place}]")
    tools = tuple(_tool(item) for tool in wire.as_list(request.tools) for item in wire.as_list(tool.function_declarations))
    choice, forced, unused = _choice(request.tool_config, tools)
    return ChatRequest(
        model=target.model or _model_name(request.model or ""),
        messages=tuple(conversation.messages),
        tools=tools,
        tool_choice=choice,
        forced_tool=forced,
        stream=bool(target.stream),
        include_usage=True,
        wants_logprobs=bool(config.response_logprobs),
        schema=_schema(config),
        requested=_sampling(config),
        ignored=tuple(dict.fromkeys((*_unused(body, config), *unused, *conversation.ignored))),
    )


def _unused(body: bytes, config: wire.GenerationConfig) -> list[str]:
    """Names of what was sent and is not used: fields, parts of the generation config, tools that a server would have to run."""
    sent = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    names = [name for name, raw in sent.items() if name not in USED and bytes(raw) != b"null"]
    settings = msgspec.json.decode(sent.get("generationConfig", b"null"), type=dict[str, msgspec.Raw] | None) or {}
    names += [f"generationConfig.{name}" for name in settings if name not in USED_OF_CONFIG]
    if config.logprobs:
        names.append("generationConfig.logprobs")  # only the sampled token's own is kept
    offered = msgspec.json.decode(sent.get("tools", b"null"))
    for tool in offered if isinstance(offered, list) else [offered or {}]:
        names += [f"tools.{name}" for name in tool if name != "functionDeclarations"]
    return names


def _tool(declared: wire.FunctionDeclaration) -> ToolSpec:
    parameters = declared.parameters_json_schema
    if parameters is None:
        parameters = json_schema(declared.parameters or {})
    return ToolSpec(name=declared.name, description=declared.description or "", parameters=parameters)


def _choice(config: wire.ToolConfig | None, tools: tuple[ToolSpec, ...]) -> tuple[Any, str, tuple[str, ...]]:
    """Tool choice, the one tool that is forced ("" for none), and what is not used. Raises RequestError (400)."""
    calling = config.function_calling_config if config is not None else None
    if calling is None:
        return "auto", "", ()
    mode = (calling.mode or "AUTO").upper()
    if mode not in MODES:
        raise RequestError(f"toolConfig.functionCallingConfig.mode is {calling.mode!r}", f"use one of {', '.join(MODES)}")
    allowed = calling.allowed_function_names or []
    known = {tool.name for tool in tools}
    for name in allowed:
        if name not in known:
            raise RequestError(
                f"allowedFunctionNames names {name!r}, which is none of the functions", "declare it, or leave it out"
            )
    if MODES[mode] == "required" and not tools:
        return "auto", "", ("toolConfig",)
    if MODES[mode] == "required" and len(allowed) == 1:
        return "required", allowed[0], ()
    return MODES[mode], "", ("allowedFunctionNames",) if allowed else ()


def _schema(config: wire.GenerationConfig) -> dict[str, Any] | None:
    given = config.response_json_schema
    if isinstance(given, dict):
        return given
    if config.response_schema is not None:
        return json_schema(config.response_schema)  # type: ignore[no-any-return]  # an object stays an object
    return ANY_JSON if config.response_mime_type == "application/json" else None


def _sampling(config: wire.GenerationConfig) -> RequestedSampling:
    if config.candidate_count is not None and config.candidate_count != 1:
        cause = f"generationConfig.candidateCount is {config.candidate_count}; one reply is sampled per request"
        raise RequestError(cause, "leave it out and send several requests")
    if config.max_output_tokens is not None and config.max_output_tokens < 1:
        raise RequestError(f"generationConfig.maxOutputTokens is {config.max_output_tokens}", "ask for at least one token")
    return RequestedSampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_output_tokens,
        seed=config.seed,
        stop=tuple(config.stop_sequences or ()),
        n=config.candidate_count,
    )
