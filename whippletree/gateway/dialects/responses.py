"""OpenAI Responses: parse a request, write a reply whole or streamed, write an error.

    request: responses_tools.py (tools) and responses_items.py (history)
    reply:   responses_output.py (items), responses_reply.py (the object around them), responses_stream.py (events)

Invariants (tests/gateway/test_gateway_responses_dialect.py, test_gateway_responses_stream.py):
- a streamed reply, put together as the official client does, equals the whole reply, however the deltas are cut;
- a reply that the harness sends back parses to the message that was sampled, up to the normal form of lineage.py;
- a field that we do not use is accepted and named in `ignored`; one that would change the conversation is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, Target, TokenText
from whippletree.gateway.dialects import responses_ids as ids
from whippletree.gateway.dialects import responses_reply as reply
from whippletree.gateway.dialects import responses_wire as wire
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.dialects.responses_items import History
from whippletree.gateway.dialects.responses_stream import KEEPALIVE, ResponsesStream
from whippletree.gateway.dialects.responses_tools import Toolbox, decode
from whippletree.types import Call, ChatRequest, ParsedMessage, RequestedSampling

COMPACT = "compact"
LOGPROBS = "message.output_text.logprobs"
IGNORED_LIMIT = 64  # names, each of at most 64 characters
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


class ResponsesDialect:
    """Satisfies `dialects.Dialect`."""

    name = "responses"
    generate_paths: tuple[str, ...] = (
        "/v1/responses",
        "/responses",
        "/v1/responses/{operation:compact}",
        "/responses/{operation:compact}",
    )
    count_paths: tuple[str, ...] = ("/v1/responses/input_tokens", "/responses/input_tokens")
    limits = frozenset({"stream", "stream_options", "max_output_tokens"})
    keepalive = KEEPALIVE

    def target(self, match: Mapping[str, str], query: Mapping[str, str]) -> Target:
        """Whether a compaction is asked for; the body says everything else."""
        return Target(operation=match.get("operation", ""))

    def parse(self, body: bytes, target: Target) -> ChatRequest:
        """The internal form of a request. Raises RequestError (400, or 404 for a previous response that is not ours)."""
        request = _parse(body, compact=target.operation == COMPACT)
        return msgspec.structs.replace(request, stream=False) if target.operation == COMPACT else request

    def parse_count(self, body: bytes, target: Target) -> ChatRequest:
        """The same request without a reply."""
        return _parse(body)

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """A whole reply: a response, or on the path of a compaction {"object": "response.compaction", "output": [...]}."""
        if head.target.operation == COMPACT:
            return msgspec.json.encode(reply.compacted(head, call, message))
        return msgspec.json.encode(reply.closed(head, call, message, reply.whole_output(head, message, tokens)))

    def stream(self, head: ReplyHead) -> ResponsesStream:
        """A writer for one streamed reply."""
        return ResponsesStream(head)

    def counted(self, tokens: int) -> bytes:
        """{"object": "response.input_tokens", "input_tokens": n}."""
        return msgspec.json.encode(wire.CountOut(input_tokens=tokens))

    def error(self, error: RequestError) -> bytes:
        """{"error": {"message", "type", "code", "param"}}."""
        kind = ERROR_TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
        return msgspec.json.encode(wire.ErrorOut(error=wire.ErrorDetail(message=str(error), type=kind, code=error.code)))

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list, which is one with that of chat-completions."""
        return ChatDialect().models(names, context_length)

    def model(self, name: str, context_length: int) -> bytes:
        """One model."""
        return ChatDialect().model(name, context_length)


def _parse(data: bytes, *, compact: bool = False) -> ChatRequest:
    sent = decode(data, dict[str, msgspec.Raw], "the request body")
    body = decode(data, wire.Body, "the request body")
    _refuse(body)
    continues = ids.call_of_response(body.previous_response_id) if body.previous_response_id else ""
    ignored = {name[:64]: None for name, value in sent.items() if name not in _USED and bytes(value) != b"null"}
    toolbox = _tools(body)
    history = _history(body, toolbox, ignored, late=bool(continues))
    history.compacts = history.compacts or compact
    messages = history.messages()
    if not messages and not continues:
        raise RequestError("input is empty", "send at least one message")
    mode, forced = ("none", "") if history.compacts else toolbox.choice(body.tool_choice)
    return ChatRequest(
        model=body.model or "",
        messages=messages,
        tools=toolbox.specs,
        tool_choice=mode,  # type: ignore[arg-type]  # one of the values of choice()
        forced_tool=forced,
        stream=bool(body.stream),
        include_usage=True,
        wants_logprobs=LOGPROBS in (body.include or ()),
        schema=None if history.compacts else _schema(body),
        continues=continues,
        ignored=tuple([*ignored, *toolbox.ignored][:IGNORED_LIMIT]),
        requested=RequestedSampling(
            temperature=body.temperature, top_p=body.top_p, max_tokens=_max_tokens(body.max_output_tokens)
        ),
    )


_USED = frozenset(wire.Body.__struct_fields__)


def _refuse(body: wire.Body) -> None:
    """What cannot be left out without changing what the harness gets."""
    if body.background:
        raise RequestError("background is true; every reply is given on its own request", "leave background out")
    if body.conversation is not None:
        raise RequestError("conversation is not served", "send the whole input, or previous_response_id")
    if body.prompt is not None:
        raise RequestError("prompt names a stored template, and none are stored here", "send instructions and input")


def _tools(body: wire.Body) -> Toolbox:
    """The tools of the request, with those that came among the input items."""
    toolbox = Toolbox()
    toolbox.add(body.tools or (), "tools")
    toolbox.add(body.additional_tools or (), "additional_tools")
    for place, raw in enumerate(_items(body)):
        if b"additional_tools" in bytes(raw) and decode(raw, wire.Kind, f"input[{place}]").type == "additional_tools":
            toolbox.add(decode(raw, wire.Item, f"input[{place}]").tools or (), f"input[{place}].tools")
    return toolbox


def _history(body: wire.Body, toolbox: Toolbox, ignored: dict[str, None], *, late: bool) -> History:
    history = History(toolbox, ignored, late=late)
    history.instructions(body.instructions)
    if isinstance(body.input, str):
        history.text(body.input)
    for place, raw in enumerate(_items(body)):
        history.add(raw, f"input[{place}]")
    return history


def _items(body: wire.Body) -> list[msgspec.Raw]:
    return body.input if isinstance(body.input, list) else []


def _schema(body: wire.Body) -> dict[str, Any] | None:
    """The JSON Schema that the reply must follow; any object for `json_object`."""
    format_ = body.text.format if body.text is not None and body.text.format is not None else wire.TextFormat()
    if format_.type == "text":
        return None
    if format_.type == "json_object":
        return {"type": "object"}
    if format_.type == "json_schema" and format_.schema is not None:
        return format_.schema
    raise RequestError(
        f"text.format of type {format_.type!r} cannot be read", "use text, json_object, or json_schema with schema"
    )


def _max_tokens(asked: int | None) -> int | None:
    if asked is not None and asked < 1:
        raise RequestError(f"max_output_tokens is {asked}", "ask for at least one token")
    return asked
