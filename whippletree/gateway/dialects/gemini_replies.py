"""The wire structs of Gemini's replies, and how a sampled turn becomes one.

Invariants (tests/gateway/test_gateway_gemini_stream.py):
- arguments of a functionCall are an object; arguments that are none are told in finishMessage, and the call is not written;
- the mark that restores reasoning is on the first functionCall, or, where there is none but reasoning, on the last part;
- counts are numbers, never null, and promptTokenCount + candidatesTokenCount + thoughtsTokenCount = totalTokenCount.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from whippletree.gateway.dialects import ReplyHead, TokenText, signatures
from whippletree.gateway.dialects.gemini_wire import Wire
from whippletree.types import Call, ParsedMessage, ToolCall

NO_ARGUMENTS = msgspec.Raw(b"{}")
UNSET = msgspec.UNSET


class CallOut(Wire, omit_defaults=False):
    """Example: {"id": "call_1", "name": "bash", "args": {"command": "ls"}}"""

    id: str
    name: str
    args: msgspec.Raw


class PartOut(Wire):
    """A part of a reply: text, a thought, or a call."""

    text: str | None = None
    thought: bool = False
    function_call: CallOut | None = None
    thought_signature: str | None = None


class ContentOut(Wire, omit_defaults=False):
    """What the model said."""

    parts: list[PartOut]
    role: str = "model"


class TokenOut(Wire, omit_defaults=False):
    """One sampled token and its natural logprob."""

    token: str
    log_probability: float


class TopOut(Wire, omit_defaults=False):
    """The alternatives of one token; none are kept but the sampled one."""

    candidates: list[TokenOut]


class LogprobsOut(Wire, omit_defaults=False):
    """The logprobs of a reply's tokens."""

    chosen_candidates: list[TokenOut]
    top_candidates: list[TopOut]


class CandidateOut(Wire, omit_defaults=False):
    """The one candidate of a reply, or a piece of it."""

    content: ContentOut
    index: int = 0
    finish_reason: str | msgspec.UnsetType = UNSET
    finish_message: str | msgspec.UnsetType = UNSET
    avg_logprobs: float | msgspec.UnsetType = UNSET
    logprobs_result: LogprobsOut | msgspec.UnsetType = UNSET


class UsageOut(Wire, omit_defaults=False):
    """Counts in tokens. `prompt_token_count` is the whole prompt, what came from the cache included."""

    prompt_token_count: int
    candidates_token_count: int
    total_token_count: int
    cached_content_token_count: int
    thoughts_token_count: int = 0


class ReplyOut(Wire, omit_defaults=False):
    """A whole reply, or one event of a stream; the last one carries the usage."""

    candidates: list[CandidateOut]
    model_version: str
    response_id: str
    create_time: str
    usage_metadata: UsageOut | msgspec.UnsetType = UNSET


class ErrorDetail(Wire, omit_defaults=False):
    """What went wrong, in Google's form."""

    code: int
    message: str
    status: str


class ErrorOut(Wire, omit_defaults=False):
    """An error body."""

    error: ErrorDetail


class CountOut(Wire, omit_defaults=False):
    """Answer to countTokens."""

    total_tokens: int


class ModelOut(Wire, omit_defaults=False):
    """One entry of the model list. Limits are in tokens, 0 when no engine has answered yet."""

    name: str
    display_name: str
    input_token_limit: int
    output_token_limit: int
    version: str = "1"
    description: str = ""
    supported_generation_methods: tuple[str, ...] = ("generateContent", "countTokens")


class ModelsOut(Wire, omit_defaults=False):
    """The model list."""

    models: list[ModelOut]


def arguments_out(arguments: str) -> msgspec.Raw | None:
    """The arguments as an object on one line, in the numbers and escapes that were sampled; None where they are no object."""
    if not arguments.strip():
        return NO_ARGUMENTS
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
        return msgspec.Raw(msgspec.json.format(arguments.encode(), indent=-1))
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None


def call_part(call: ToolCall, signature: str | None) -> PartOut | None:
    """A call as a part; None where its arguments are no object."""
    arguments = arguments_out(call.arguments)
    if arguments is None:
        return None
    return PartOut(function_call=CallOut(id=call.id, name=call.name, args=arguments), thought_signature=signature)


def call_parts(head: ReplyHead, calls: Iterable[ToolCall], signed: bool) -> list[PartOut]:
    """Calls as parts, without those that cannot be written; the first one is signed unless an earlier one was."""
    parts: list[PartOut] = []
    for call in calls:
        mark = None if signed or parts else signatures.sign(head.call_id)
        part = call_part(call, mark)
        if part is not None:
            parts.append(part)
    return parts


def text_parts(content: str, reasoning: str) -> list[PartOut]:
    """Thought and text, where there is any."""
    parts = [PartOut(text=reasoning, thought=True)] if reasoning else []
    return [*parts, PartOut(text=content)] if content else parts


def whole_parts(head: ReplyHead, message: ParsedMessage) -> list[PartOut]:
    """All parts of a turn; a turn that says nothing is one empty text."""
    parts = text_parts(message.content, message.reasoning)
    calls = call_parts(head, message.tool_calls, signed=False)
    if message.reasoning and not calls:
        parts[-1] = msgspec.structs.replace(parts[-1], thought_signature=signatures.sign(head.call_id))
    return [*parts, *calls] or [PartOut(text="")]


def last_candidate(parts: list[PartOut], message: ParsedMessage, tokens: Sequence[TokenText]) -> CandidateOut:
    """The candidate that ends a reply."""
    unreadable = [call for call in message.tool_calls if arguments_out(call.arguments) is None]
    told = "; ".join(f"Malformed function call: {call.name}({call.arguments})" for call in unreadable)
    reason = "MAX_TOKENS"
    if message.finish_reason in ("stop", "tool_calls"):
        reason = "MALFORMED_FUNCTION_CALL" if unreadable else "STOP"
    out = CandidateOut(content=ContentOut(parts=parts), finish_reason=reason, finish_message=told or UNSET)
    if not tokens:
        return out
    chosen = [TokenOut(token=token.text, log_probability=token.logprob) for token in tokens]
    return msgspec.structs.replace(
        out,
        avg_logprobs=sum(token.logprob for token in tokens) / len(tokens),
        logprobs_result=LogprobsOut(chosen_candidates=chosen, top_candidates=[TopOut(candidates=[item]) for item in chosen]),
    )


def usage_out(call: Call) -> UsageOut:
    """True counts."""
    return UsageOut(
        prompt_token_count=call.prompt_tokens,
        candidates_token_count=call.sampled_tokens - call.reasoning_tokens,
        thoughts_token_count=call.reasoning_tokens,
        total_token_count=call.prompt_tokens + call.sampled_tokens,
        cached_content_token_count=call.cached_tokens,
    )


def reply_out(head: ReplyHead, candidate: CandidateOut, call: Call | None = None) -> ReplyOut:
    """A reply around its candidate; with usage where `call` is given."""
    created = datetime.datetime.fromtimestamp(head.created, datetime.UTC)
    return ReplyOut(
        candidates=[candidate],
        model_version=head.model,
        response_id=head.call_id.removeprefix("c-"),
        create_time=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        usage_metadata=UNSET if call is None else usage_out(call),
    )
