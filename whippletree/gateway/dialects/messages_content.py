"""Messages of the Anthropic form → messages of the internal form.

    user:      tool_result … text …   → a tool message for each result, in order, then one user message with the text
    assistant: thinking text tool_use → one assistant message
    system:    inside `messages`      → text of the user message before it, in <system-reminder> marks (see `_system`)

Invariants (tests/gateway/test_gateway_messages_dialect.py, test_gateway_messages_recordings.py):
- text as a string and as one text block parse equal, with and without cache_control;
- what stands before an assistant message becomes the same messages, whatever follows it;
- a block of an unknown kind is named in `ignored` and fails nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import messages_wire as wire
from whippletree.gateway.dialects import signatures
from whippletree.gateway.dialects.media import Kind, from_address, from_base64, placeholder
from whippletree.types import Media, Message, ToolCall, ToolSpec

BILLING_LINE = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n?")
INVALID_JSON = "INVALID_JSON"  # the key under which Anthropic's documentation puts arguments that are no JSON object
UNPARSED = "__unparsedToolInput"  # Claude Code's key for the same
REMINDER_OPEN, REMINDER_CLOSE = "<system-reminder>", "</system-reminder>"


class Conversation:
    """The messages of one request, as they are read. `ignored` has the names of what was not used, each once."""

    def __init__(self, deferred: dict[str, ToolSpec], ignored: dict[str, None]) -> None:
        self.messages: list[Message] = []
        self.ignored = ignored
        self._deferred = deferred
        self._tool_names: dict[str, str] = {}

    def system(self, system: str | list[msgspec.Raw] | None) -> None:
        """The system prompt; Claude Code's billing line, which differs from request to request, is no part of it."""
        blocks = [system] if isinstance(system, str) else self._texts(system, "system", [])
        text = "\n".join(kept for block in blocks if (kept := BILLING_LINE.sub("", block)))
        if text:
            self.messages.append(Message(role="system", content=text))

    def add(self, message: wire.WireMessage, place: str) -> None:
        """One message, in order. Raises RequestError (400)."""
        if message.role == "assistant":
            self._assistant(message.content, f"{place}.content")
        elif message.role == "user":
            self._user(message.content, f"{place}.content")
        elif message.role in ("system", "developer"):
            self._system(message.content, f"{place}.content")
        else:
            raise RequestError(f"{place}.role: {message.role!r} is no role", "roles here: user, assistant, system")

    def _system(self, content: str | list[msgspec.Raw] | None, place: str) -> None:
        """A system message in the conversation. Before any other message it belongs to the system prompt. Later it is user text
        in the marks that Claude Code itself puts around such text for models without system messages: many chat templates
        refuse a system message, or two user messages in a row, in the middle of a conversation."""
        text = "\n".join([content] if isinstance(content, str) else self._texts(content, place, []))
        if not text:
            return
        if not self.messages:
            self.messages.append(Message(role="system", content=text))
            return
        last = self.messages[-1]
        if last.role == "system":
            self.messages[-1] = msgspec.structs.replace(last, content=f"{last.content}\n{text}")
            return
        if not text.startswith(REMINDER_OPEN):
            text = f"{REMINDER_OPEN}\n{text}\n{REMINDER_CLOSE}"
        if last.role == "user":
            self.messages[-1] = msgspec.structs.replace(last, content=f"{last.content}\n{text}" if last.content else text)
        else:
            self.messages.append(Message(role="user", content=text))

    def _user(self, content: str | list[msgspec.Raw] | None, place: str) -> None:
        if not isinstance(content, list):
            self.messages.append(Message(role="user", content=content or ""))
            return
        rest, results = [], 0
        for number, raw in enumerate(content):
            if self._head(raw, f"{place}.{number}").type == "tool_result":
                self._tool_result(raw, f"{place}.{number}")
                results += 1
            else:
                rest.append((number, raw))
        media: list[Media] = []
        texts = [text for number, raw in rest for text in self._text(raw, f"{place}.{number}", media)]
        if texts or media or not results:
            self.messages.append(Message(role="user", content="\n".join(texts), media=tuple(media)))

    def _tool_result(self, raw: msgspec.Raw, place: str) -> None:
        block = wire.decode(raw, wire.ToolResultBlock, place)
        media: list[Media] = []
        texts = [block.content] if isinstance(block.content, str) else self._texts(block.content, f"{place}.content", media)
        self.messages.append(
            Message(
                role="tool",
                content="\n".join(texts),
                tool_call_id=block.tool_use_id,
                name=self._tool_names.get(block.tool_use_id, ""),
                media=tuple(media),
                is_error=bool(block.is_error),
            )
        )

    def _assistant(self, content: str | list[msgspec.Raw] | None, place: str) -> None:
        if not isinstance(content, list):
            self.messages.append(Message(role="assistant", content=content or ""))
            return
        texts, thoughts, marks, calls = [], [], [], []
        for number, raw in enumerate(content):
            here = f"{place}.{number}"
            match self._head(raw, here).type:
                case "text":
                    texts.append(wire.decode(raw, wire.TextBlock, here).text)
                case "thinking":
                    thinking = wire.decode(raw, wire.ThinkingBlock, here)
                    thoughts.append(thinking.thinking or "")
                    marks.append(signatures.read(thinking.signature or ""))
                case "redacted_thinking":
                    marks.append(signatures.read(wire.decode(raw, wire.RedactedThinkingBlock, here).data or ""))
                case "tool_use":
                    use = wire.decode(raw, wire.ToolUseBlock, here)
                    calls.append(ToolCall(id=use.id, name=use.name, arguments=_arguments(use.input, f"{here}.input")))
                    self._tool_names[use.id] = use.name
                case "tool_result":
                    raise RequestError(f"{here}: a tool_result in an assistant message", "put it into a user message")
                case kind:  # made by tools that another server ran, so none of it is of this model
                    self.ignored[kind] = None
        self.messages.append(
            Message(
                role="assistant",
                content="".join(texts),
                reasoning="".join(thoughts),
                tool_calls=tuple(calls),
                signature=next(filter(None, marks), ""),
            )
        )

    # --- text of user, system and tool messages --------------------------------------------------------------------------

    def _texts(self, blocks: Sequence[msgspec.Raw] | None, place: str, media: list[Media]) -> list[str]:
        return [text for number, raw in enumerate(blocks or ()) for text in self._text(raw, f"{place}.{number}", media)]

    def _text(self, raw: msgspec.Raw, place: str, media: list[Media]) -> list[str]:
        """The texts of a block that are not empty; what is no text is added to `media` and stands as a placeholder."""
        kind = self._head(raw, place).type
        match kind:
            case "text":
                found = [wire.decode(raw, wire.TextBlock, place).text]
            case "image" | "document":
                found = self._media(wire.decode(raw, wire.MediaBlock, place), kind, place, media)
            case "search_result":
                result = wire.decode(raw, wire.SearchResultBlock, place)
                found = [result.title, result.source, *self._texts(result.content, f"{place}.content", media)]
            case "tool_reference":
                found = [self._reference(wire.decode(raw, wire.ToolReferenceBlock, place).tool_name)]
            case "tool_use":
                raise RequestError(f"{place}: a tool_use outside an assistant message", "put it into an assistant message")
            case "thinking" | "redacted_thinking":
                found = []
                self.ignored[kind] = None
            case _:
                found = [f"[{kind}]"]
                self.ignored[kind] = None
        return [text for text in found if text]

    def _media(self, block: wire.MediaBlock, kind: str, place: str, media: list[Media]) -> list[str]:
        source = block.source
        about = [block.title or "", block.context or ""]
        match source.type:
            case "text":
                return [*about, source.data or ""]
            case "content":
                inside = source.content
                within = f"{place}.source.content"
                return [*about, *([inside] if isinstance(inside, str) else self._texts(inside, within, media))]
            case "base64" | "url" | "file":
                media.append(_medium(source, "image" if kind == "image" else "file", f"{place}.source"))
                return [*about, placeholder(media[-1])]
            case _:
                self.ignored[f"{kind}.{source.type}"] = None
                return [*about, f"[{kind}]"]

    def _reference(self, name: str) -> str:
        """A tool that was found by a search: its definition stands where it was found, so that the tools that the prompt
        starts with stay the same."""
        tool = self._deferred.get(name)
        if tool is None:
            return f"[tool {name}]"
        definition = {"description": tool.description, "name": name, "parameters": tool.parameters}
        return f"<function>{msgspec.json.encode(definition).decode()}</function>"

    def _head(self, raw: msgspec.Raw, place: str) -> wire.BlockHead:
        head = wire.decode(raw, wire.BlockHead, place)
        if bytes(head.cache_control):
            self.ignored["cache_control"] = None
        return head


def _medium(source: wire.Source, kind: Kind, place: str) -> Media:
    media_type = source.media_type or ""
    if source.type == "base64":
        return from_base64(source.data or "", media_type or f"{kind}/*", f"{place}.data")
    return from_address(source.url or source.file_id or "", media_type, place, kind)


def _arguments(raw: msgspec.Raw, place: str) -> str:
    """A call's arguments as JSON text, or the sampled text where that was no JSON object.

    The client has parsed what was sampled, so its spelling is lost; it is written with a space after comma and colon, as chat
    templates and other servers write objects, and so as most models have learnt to.
    """
    text = bytes(raw)
    value: Any = wire.decode(text, object, place) if text else None
    if value is None:
        return "{}"
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise RequestError(f"{place}: the input of a tool_use is no object", "send a JSON object")
    if len(value) == 1:
        invalid, unparsed = value.get(INVALID_JSON), value.get(UNPARSED)
        if isinstance(invalid, str):
            return invalid
        if isinstance(unparsed, dict) and isinstance(unparsed.get("raw"), str):
            return str(unparsed["raw"])
    return json.dumps(value, ensure_ascii=False)


def input_object(arguments: str) -> msgspec.Raw:
    """A call's arguments as the object that a whole reply needs: as sampled, or {"INVALID_JSON": "<text>"} for what is none."""
    if not arguments.strip():
        return msgspec.Raw(b"{}")
    data = arguments.encode()
    try:
        if isinstance(msgspec.json.decode(data), dict):
            return msgspec.Raw(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.Raw(msgspec.json.encode({INVALID_JSON: arguments}))
