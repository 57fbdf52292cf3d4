"""OpenAI chat-completions: parse a request, write a reply whole or streamed, write an error.

Invariants (tests/gateway/test_gateway_chat_dialect.py, test_gateway_chat_stream.py):
- a streamed reply, put together as the official client does, equals the whole reply, however the deltas are cut;
- a reply that the harness sends back parses to the message that was sampled ("" as arguments becomes "{}");
- a field that is not used is named in `ignored`; one of no known meaning is kept in `extra` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, TokenText, overflow
from whippletree.gateway.dialects import chat_replies as replies
from whippletree.gateway.dialects import chat_wire as wire
from whippletree.gateway.dialects.chat_messages import Ignored, read_choice, read_messages, read_tools
from whippletree.gateway.dialects.chat_stream import ChatStream, whole_reply
from whippletree.types import Call, ChatRequest, ParsedMessage, RequestedSampling

T = TypeVar("T")

HINTS = frozenset({
    "audio", "bad_words", "best_of", "chat_template", "chat_template_kwargs", "early_stopping", "echo", "enable_thinking",
    "frequency_penalty", "function_call_options", "ignore_eos", "include_stop_str_in_output", "length_penalty",
    "logit_bias", "logits_processors", "metadata", "min_p", "min_tokens", "modalities", "parallel_tool_calls", "prediction",
    "presence_penalty", "priority", "prompt_cache_key", "prompt_cache_retention", "reasoning", "reasoning_effort",
    "repetition_penalty", "safety_identifier", "service_tier", "skip_special_tokens", "spaces_between_special_tokens",
    "stop_token_ids", "store", "thinking", "top_a", "top_k", "truncate_prompt_tokens", "typical_p", "use_beam_search",
    "user", "verbosity", "web_search_options",
})  # fmt: skip
"""Fields whose meaning is known and that are not used: the run decides on sampling, the renderer on the template."""

KNOWN = frozenset(wire.ChatBody.__struct_fields__)
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class ChatDialect:
    """Satisfies `dialects.Dialect`."""

    name = "chat"
    generate_paths: tuple[str, ...] = ("/v1/chat/completions", "/chat/completions")
    count_paths: tuple[str, ...] = ()
    limits = frozenset({"stream", "stream_options", "max_tokens", "max_completion_tokens"})
    keepalive = b": keep-alive\n\n"

    def target(self, match: Mapping[str, str], query: Mapping[str, str]) -> Target:
        """The body says everything."""
        return Target()

    def parse(self, body: bytes, target: Target) -> ChatRequest:
        """The internal form of a request. Raises RequestError (400)."""
        sent = _decode(body, dict[str, msgspec.Raw])
        request = _decode(body, wire.ChatBody)
        if not request.messages:
            raise RequestError("messages is empty", "send at least one message")
        if request.n is not None and request.n != 1:
            raise RequestError(f"n is {request.n}; one reply is sampled per request", "leave n out and send several requests")
        ignored = Ignored()
        extra = _unused(sent, ignored)
        tools = read_tools(request, ignored)
        choice, forced = read_choice(request, tools, ignored)
        if request.top_logprobs:
            ignored.add("top_logprobs")  # only the sampled token's own is kept
        options = request.stream_options
        return ChatRequest(
            model=request.model or "",
            messages=read_messages(request.messages, ignored),
            tools=tools,
            tool_choice=choice,  # type: ignore[arg-type]  # one of the three words
            forced_tool=forced,
            stream=bool(request.stream),
            include_usage=bool(options is not None and options.include_usage),
            wants_logprobs=bool(request.logprobs),
            schema=_schema(request.response_format, ignored),
            requested=_sampling(request),
            ignored=ignored.names(),
            extra=extra,
        )

    def parse_count(self, body: bytes, target: Target) -> ChatRequest:
        """There is no token count in this dialect; the request of a generation."""
        return self.parse(body, target)

    def counted(self, tokens: int) -> bytes:
        """{"prompt_tokens": n}."""
        return msgspec.json.encode({"prompt_tokens": tokens})

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """A whole reply."""
        return msgspec.json.encode(whole_reply(head, call, message, tokens))

    def stream(self, head: ReplyHead) -> ChatStream:
        """A writer for one streamed reply."""
        return ChatStream(head, self.error)

    def error(self, error: RequestError) -> bytes:
        """{"error": {"message", "type", "code", "param"}}; a prompt that does not fit is told in OpenAI's words."""
        kind = ERROR_TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
        detail = replies.ErrorDetail(message=str(error), type=kind, code=error.code)
        if error.code == overflow.CODE:
            detail = msgspec.structs.replace(detail, message=_too_long(error), param="messages")
        return msgspec.json.encode(replies.ErrorOut(error=detail))

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list."""
        entries = [replies.ModelOut(id=name, max_model_len=context_length) for name in names]
        return msgspec.json.encode(replies.ModelsOut(data=entries))

    def model(self, name: str, context_length: int) -> bytes:
        """One model."""
        return msgspec.json.encode(replies.ModelOut(id=name, max_model_len=context_length))


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body cannot be read: {error}", "mend the field it names") from error
    except RecursionError as error:
        raise RequestError("the request body cannot be read: it is nested too deeply", "nest its values less") from error


def _unused(sent: dict[str, msgspec.Raw], ignored: Ignored) -> dict[str, Any]:
    """Name the fields that are not used; return those of no known meaning."""
    extra = {}
    for name, raw in sent.items():
        if name not in KNOWN and bytes(raw) != b"null":
            ignored.add(name)
            if name not in HINTS:
                extra[name] = _decode(bytes(raw), object)
    return extra


def _schema(asked: wire.ResponseFormat | None, ignored: Ignored) -> dict[str, Any] | None:
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_schema" and asked.json_schema is not None:
        return asked.json_schema.definition or {"type": "object"}
    if asked.type == "json_object":
        return {"type": "object"}
    if asked.type == "json_schema":
        raise RequestError("response_format.json_schema is missing", "send the schema, or leave response_format out")
    ignored.add("response_format")
    return None


def _sampling(request: wire.ChatBody) -> RequestedSampling:
    asked = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    if asked is not None and asked < 1:
        raise RequestError(f"max_tokens is {asked}", "ask for at least one token")
    stop = request.stop
    return RequestedSampling(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=asked,
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        n=request.n,
    )


def _too_long(error: RequestError) -> str:
    numbers = overflow.overflow_of(error)
    if numbers is None:
        return f"This model's maximum context length is smaller than this request: {error}"
    return (
        f"This model's maximum context length is {numbers.limit} tokens. However, your messages resulted in {numbers.prompt} "
        "tokens. Please reduce the length of the messages."
    )
