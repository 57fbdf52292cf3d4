"""Anthropic Messages: parse a request, write a reply whole or streamed, count tokens, write an error.

What becomes of messages is in messages_content.py, of tools in messages_tools.py, of streams in messages_stream.py.
Invariants (tests/gateway/test_gateway_messages_dialect.py, test_gateway_messages_stream.py):
- a streamed reply, put together as the official client does, equals the whole reply, however the deltas are cut;
- a reply that the harness sends back parses to the message that was sampled, up to the normal form of lineage.py;
- a field that is accepted and not used is named in `ignored`; what is malformed is refused with its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, TokenText, signatures
from whippletree.gateway.dialects import messages_wire as wire
from whippletree.gateway.dialects.messages_content import Conversation, input_object
from whippletree.gateway.dialects.messages_stream import MessagesStream, error_out, reply_id, stop_of, usage_of
from whippletree.gateway.dialects.messages_tools import read_choice, read_tools
from whippletree.types import Call, ChatRequest, ParsedMessage, RequestedSampling

USED = frozenset(field for field in wire.MessagesBody.__struct_fields__ if field != "output_config")
# Fields with a meaning that is Anthropic's own. What is neither here nor used goes on to engines with a chat endpoint.
HINTS = frozenset(
    {
        "anthropic_beta",
        "betas",
        "cache_control",
        "container",
        "context_management",
        "inference_geo",
        "mcp_servers",
        "metadata",
        "output_config",
        "service_tier",
        "speed",
        "thinking",
        "top_k",
    }
)


class MessagesDialect:
    """Satisfies `dialects.Dialect`."""

    name = "messages"
    generate_paths: tuple[str, ...] = ("/v1/messages",)
    count_paths: tuple[str, ...] = ("/v1/messages/count_tokens",)
    limits = frozenset({"stream", "max_tokens"})
    keepalive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def target(self, match: Mapping[str, str], query: Mapping[str, str]) -> Target:
        """The body says everything; `?beta=true` changes nothing."""
        return Target()

    def parse(self, body: bytes, target: Target) -> ChatRequest:
        """The internal form of a request. Raises RequestError (400)."""
        request = wire.decode(body, wire.MessagesBody)
        extra, ignored = _other_fields(body)
        tools = read_tools(request.tools, ignored)
        choice = read_choice(request.tool_choice, tools, ignored)
        conversation = Conversation(tools.deferred, ignored)
        conversation.system(request.system)
        for place, message in enumerate(request.messages):
            conversation.add(message, f"messages.{place}")
        if not conversation.messages:
            raise RequestError("messages: at least one message is required", "send one")
        if conversation.messages[-1].role == "assistant":
            ignored["prefill"] = None  # the turn is a new one; it does not go on with this text
        return ChatRequest(
            model=request.model or "",
            messages=tuple(conversation.messages),
            tools=tools.offered,
            tool_choice=choice.mode,
            forced_tool=choice.tool,
            stream=bool(request.stream),
            schema=_schema(request),
            ignored=tuple(ignored),
            extra=extra,
            requested=_sampling(request),
        )

    def parse_count(self, body: bytes, target: Target) -> ChatRequest:
        """A count has the fields of a request without its limits."""
        return self.parse(body, target)

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """A whole reply. `content` is empty only where the turn has neither thinking nor text nor calls."""
        content: list[wire.BlockOut] = []
        if message.reasoning:
            content.append(wire.ThinkingOut(thinking=message.reasoning, signature=signatures.sign(head.call_id)))
        if message.content:
            content.append(wire.TextOut(text=message.content))
        for item in message.tool_calls:
            content.append(wire.ToolUseOut(id=item.id, name=item.name, input=input_object(item.arguments)))
        stop = stop_of(message)
        return msgspec.json.encode(
            wire.MessageOut(
                id=reply_id(head),
                model=head.model,
                content=content,
                usage=usage_of(call),
                stop_reason=stop.stop_reason,
                stop_sequence=stop.stop_sequence,
            )
        )

    def stream(self, head: ReplyHead) -> MessagesStream:
        """A writer for one streamed reply."""
        return MessagesStream(head)

    def counted(self, tokens: int) -> bytes:
        """{"input_tokens": n}."""
        return msgspec.json.encode(wire.CountOut(input_tokens=tokens))

    def error(self, error: RequestError) -> bytes:
        """{"type": "error", "error": {"type", "message"}, "request_id": null}."""
        return msgspec.json.encode(error_out(error))

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list."""
        data = [_model(name, context_length) for name in names]
        first, last = (names[0], names[-1]) if names else (None, None)
        return msgspec.json.encode(wire.ModelsOut(data=data, first_id=first, last_id=last))

    def model(self, name: str, context_length: int) -> bytes:
        """One model."""
        return msgspec.json.encode(_model(name, context_length))


def _model(name: str, context_length: int) -> wire.ModelOut:
    return wire.ModelOut(id=name, display_name=name, max_input_tokens=context_length or None)


def _other_fields(body: bytes) -> tuple[dict[str, Any], dict[str, None]]:
    """What is not used: the fields of no known meaning with their values, and the names of all."""
    fields = wire.decode(body, dict[str, msgspec.Raw])
    unused = {name: raw for name, raw in fields.items() if name not in USED and bytes(raw).strip() != b"null"}
    extra = {name: wire.decode(raw, object, name) for name, raw in unused.items() if name not in HINTS}
    ignored: dict[str, None] = {}
    for name, raw in unused.items():
        if name == "output_config":
            config = wire.decode(raw, dict[str, msgspec.Raw], name)
            ignored |= {f"output_config.{key}": None for key in config if key != "format"}
        else:
            ignored[name] = None
    return extra, ignored


def _schema(request: wire.MessagesBody) -> dict[str, Any] | None:
    place, wanted = "output_format", request.output_format
    if wanted is None and request.output_config is not None:
        place, wanted = "output_config.format", request.output_config.format
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise RequestError(f"{place}.type: {wanted.type!r} is not known", "use json_schema, or leave it out")
    if wanted.schema is None:
        raise RequestError(f"{place}.schema: a schema is required", "send a JSON Schema object")
    return wanted.schema


def _sampling(request: wire.MessagesBody) -> RequestedSampling:
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError(f"max_tokens: {request.max_tokens} is less than 1", "ask for at least one token")
    for place, stop in enumerate(request.stop_sequences or ()):
        if not stop:
            raise RequestError(f"stop_sequences.{place}: an empty text stops nothing", "leave it out")
    return RequestedSampling(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences or ()),
    )
