"""What a client makes of a reply, for every dialect: bytes of a whole or a streamed reply → the turn, its counts, why it ended.

A reader is written from the format's public description, not from our writers: it keeps the text of arguments as it came, and
it refuses a stream that is out of order or has no end. Add a reader of another dialect to READERS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from whippletree.types import ParsedMessage, ToolCall


class Counts(NamedTuple):
    """In tokens: the whole prompt, the part of it that came from a cache, what was sampled (thinking too)."""

    prompt: int
    cached: int
    sampled: int


class Reading(NamedTuple):
    """`stop` is the dialect's own word for why the turn ended; `message.finish_reason` is what it means."""

    message: ParsedMessage
    counts: Counts
    stop: str


def read_whole(dialect: str, body: bytes) -> Reading:
    """A whole reply as its client reads it."""
    return READERS[dialect][0](body)


def read_stream(dialect: str, data: bytes) -> Reading:
    """A streamed reply as its client reads it. Fails with AssertionError on a stream that is out of order or not ended."""
    return READERS[dialect][1](data)


def events(data: bytes) -> list[tuple[str, str]]:
    """Server-sent events as (event, data); comments are left out."""
    found = []
    text = data.decode()
    assert text.endswith("\n\n"), "the last event is cut"
    for block in text.split("\n\n")[:-1]:
        lines = [line.partition(":") for line in block.split("\n") if not line.startswith(":")]
        fields = {name: value.removeprefix(" ") for name, _, value in lines}
        if fields:
            found.append((fields.get("event", ""), fields.get("data", "")))
    return found


def raw_value(body: bytes, *path: str | int) -> str:
    """The JSON text of a value inside `body`, as it is written there."""
    for step in path:
        kind: Any = dict[str, msgspec.Raw] if isinstance(step, str) else list[msgspec.Raw]
        body = bytes(msgspec.json.decode(body, type=kind)[step])
    return body.decode()


# --- chat --------------------------------------------------------------------------------------------------------------

CHAT_STOPS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


def _chat_counts(usage: dict[str, Any]) -> Counts:
    details = usage.get("prompt_tokens_details") or {}
    return Counts(usage["prompt_tokens"] or 0, details.get("cached_tokens") or 0, usage["completion_tokens"] or 0)


def _chat_whole(body: bytes) -> Reading:
    reply = json.loads(body)
    (choice,) = reply["choices"]
    message = choice["message"]
    calls = tuple(
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    )
    parsed = ParsedMessage(
        content=message.get("content") or "",
        reasoning=message.get("reasoning_content") or "",
        tool_calls=calls,
        finish_reason=CHAT_STOPS[choice["finish_reason"]],
    )
    return Reading(parsed, _chat_counts(reply["usage"]), choice["finish_reason"])


def _chat_stream(data: bytes) -> Reading:
    *chunks, end = [text for _, text in events(data)]
    assert end == "[DONE]"
    content, reasoning, stop, usage = "", "", "", None
    calls: dict[int, list[str]] = {}
    for chunk in map(json.loads, chunks):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            assert not stop, "a piece after the finish reason"
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls") or []:
                call = calls.setdefault(piece["index"], ["", "", ""])
                function = piece.get("function") or {}
                for place, text in enumerate((piece.get("id"), function.get("name"), function.get("arguments"))):
                    call[place] += text or ""
            stop = choice.get("finish_reason") or ""
    assert list(calls) == list(range(len(calls)))
    parsed = ParsedMessage(
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(ToolCall(id=call[0], name=call[1], arguments=call[2]) for call in calls.values()),
        finish_reason=CHAT_STOPS[stop],
    )
    return Reading(parsed, _chat_counts(usage or {"prompt_tokens": 0, "completion_tokens": 0}), stop)


# --- messages ----------------------------------------------------------------------------------------------------------

MESSAGES_STOPS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def _messages_counts(usage: dict[str, Any]) -> Counts:
    cached = usage.get("cache_read_input_tokens") or 0
    fresh = (usage.get("input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    return Counts(fresh + cached, cached, usage.get("output_tokens") or 0)


def _messages_turn(blocks: list[dict[str, Any]], stop: str, stop_sequence: str | None) -> ParsedMessage:
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return ParsedMessage(
        content="".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tool_calls=tuple(ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"]) for call in calls),
        finish_reason=MESSAGES_STOPS[stop],
        stop_sequence=stop_sequence or "",
    )


def _messages_whole(body: bytes) -> Reading:
    reply = json.loads(body)
    assert (reply["type"], reply["role"]) == ("message", "assistant")
    for place, block in enumerate(reply["content"]):
        if block["type"] == "tool_use":
            assert isinstance(block["input"], dict)
            invalid = block["input"].get("INVALID_JSON")
            block["arguments"] = raw_value(body, "content", place, "input") if invalid is None else invalid
    turn = _messages_turn(reply["content"], reply["stop_reason"], reply["stop_sequence"])
    return Reading(turn, _messages_counts(reply["usage"]), reply["stop_reason"])


def _messages_stream(data: bytes) -> Reading:
    told = [(name, json.loads(text)) for name, text in events(data) if name != "ping"]
    assert all(name == event["type"] for name, event in told)
    names = [name for name, _ in told]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, event in told[1:-2]:
        if name == "content_block_start":
            assert not is_open, "two blocks are open"
            assert event["index"] == len(blocks), "indices do not rise by one"
            blocks.append({**event["content_block"], "arguments": ""})
            is_open = True
            continue
        assert is_open and event["index"] == len(blocks) - 1, f"{name} of a block that is not open"
        if name == "content_block_stop":
            is_open = False
            continue
        delta = event["delta"]
        kind, field = {
            "text_delta": ("text", "text"),
            "thinking_delta": ("thinking", "thinking"),
            "signature_delta": ("thinking", "signature"),
            "input_json_delta": ("tool_use", "partial_json"),
        }[delta["type"]]
        assert blocks[-1]["type"] == kind
        blocks[-1]["arguments" if kind == "tool_use" else field] += delta[field]
    assert not is_open
    start, ending = told[0][1]["message"], told[-2][1]
    usage = {**start["usage"], **{name: count for name, count in ending["usage"].items() if count is not None}}
    stop = ending["delta"]["stop_reason"]
    return Reading(_messages_turn(blocks, stop, ending["delta"]["stop_sequence"]), _messages_counts(usage), stop)


# --- responses ---------------------------------------------------------------------------------------------------------


def _responses_call(item: dict[str, Any]) -> ToolCall:
    namespace = item.get("namespace") or ""
    name = namespace + ("" if not namespace or namespace.endswith("__") else "__") + item["name"]
    arguments = json.dumps({"input": item["input"]}) if item["type"] == "custom_tool_call" else item["arguments"]
    return ToolCall(id=item["call_id"], name=name, arguments=arguments)


def responses_turn(response: dict[str, Any]) -> Reading:
    """A finished response object."""
    items = response["output"]
    assert len({item["id"] for item in items}) == len(items), "two items have one id"
    calls = tuple(_responses_call(item) for item in items if item["type"] in ("function_call", "custom_tool_call"))
    stop, usage = response["status"], response["usage"]
    if stop == "incomplete":
        stop = response["incomplete_details"]["reason"]
    done = "tool_calls" if calls else "stop"
    parsed = ParsedMessage(
        content="".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        reasoning="".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]),
        tool_calls=calls,
        finish_reason="length" if stop == "max_output_tokens" else done if stop == "completed" else "error",
    )
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    counts = Counts(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])
    return Reading(parsed, counts, stop)


_RESPONSES_PIECES = {  # a delta's event → the event that repeats the whole text, and the field that has it
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.reasoning_summary_text.delta": ("response.reasoning_summary_text.done", "text"),
    "response.function_call_arguments.delta": ("response.function_call_arguments.done", "arguments"),
    "response.custom_tool_call_input.delta": ("response.custom_tool_call_input.done", "input"),
}


def _responses_stream(data: bytes) -> Reading:
    told = [json.loads(text) for name, text in events(data)]
    assert [name for name, _ in events(data)] == [event["type"] for event in told]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    done: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    text = ""
    for event in told[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert item is None, "two items are open"
            item, text = event["item"], ""
            assert event["output_index"] == len(done), "indices do not rise by one"
            continue
        assert item is not None and event["output_index"] == len(done), f"{kind} of an item that is not open"
        if kind == "response.output_item.done":
            assert {name: event["item"].get(name) for name in ("id", "type", "call_id", "name")} == {
                name: item.get(name) for name in ("id", "type", "call_id", "name")
            }
            done.append(event["item"])
            item = None
            continue
        assert event["item_id"] == item["id"]
        if kind in _RESPONSES_PIECES:
            text += event["delta"]
        for name, field in _RESPONSES_PIECES.values():
            assert kind != name or event[field] == text, "the whole is not what the pieces join to"
    response = told[-1]["response"]
    assert told[-1]["type"] == f"response.{response['status']}"
    assert item is None and [strip_logprobs(one) for one in response["output"]] == [strip_logprobs(one) for one in done]
    return responses_turn(response)


def strip_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    """An item without logprobs, which only the last event of a stream has."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}


def _responses_whole(body: bytes) -> Reading:
    return responses_turn(json.loads(body))


# --- gemini ------------------------------------------------------------------------------------------------------------

GEMINI_STOPS = {"STOP": "stop", "MAX_TOKENS": "length", "MALFORMED_FUNCTION_CALL": "stop"}
_GEMINI_TOLD = re.compile(r"Malformed function call: ([^(]*)\((.*?)\)(?:; (?=Malformed function call: )|\Z)", re.DOTALL)


def _gemini_turn(chunks: list[bytes]) -> Reading:
    """A turn of one chunk (a whole reply) or many."""
    content, reasoning, stop, usage = "", "", "", {}
    calls: list[ToolCall] = []
    for raw in chunks:
        chunk = json.loads(raw)
        assert not stop, "a piece after the finish reason"
        usage = chunk.get("usageMetadata") or usage
        (candidate,) = chunk["candidates"]
        for place, part in enumerate(candidate["content"]["parts"]):
            if "functionCall" in part:
                call = part["functionCall"]
                assert isinstance(call["args"], dict)
                arguments = raw_value(raw, "candidates", 0, "content", "parts", place, "functionCall", "args")
                calls.append(ToolCall(id=call.get("id", ""), name=call["name"], arguments=arguments))
            elif part.get("thought"):
                reasoning += part["text"]
            else:
                content += part["text"]
        stop = candidate.get("finishReason", "")
    for name, arguments in _GEMINI_TOLD.findall(candidate.get("finishMessage", "")):
        calls.append(ToolCall(id="", name=name, arguments=arguments))
    finish = GEMINI_STOPS[stop]
    assert all(isinstance(count, int) for count in usage.values())
    sampled = usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + sampled
    parsed = ParsedMessage(
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
    )
    return Reading(parsed, Counts(usage["promptTokenCount"], usage.get("cachedContentTokenCount", 0), sampled), stop)


def _gemini_whole(body: bytes) -> Reading:
    return _gemini_turn([body])


def _gemini_stream(data: bytes) -> Reading:
    """Server-sent events, or a JSON list that grew."""
    if data.startswith(b"["):
        return _gemini_turn([bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])])
    return _gemini_turn([text.encode() for _, text in events(data.replace(b"\r\n", b"\n"))])


READERS: dict[str, tuple[Callable[[bytes], Reading], Callable[[bytes], Reading]]] = {
    "chat": (_chat_whole, _chat_stream),
    "messages": (_messages_whole, _messages_stream),
    "responses": (_responses_whole, _responses_stream),
    "gemini": (_gemini_whole, _gemini_stream),
}
