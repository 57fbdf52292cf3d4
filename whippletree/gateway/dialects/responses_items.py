"""Input items of a Responses request → messages of the internal form. Pure.

    instructions, leading system and developer messages  → one system message
    reasoning, message, function_call, custom_tool_call … → one assistant message for all that follow each other
    function_call_output and its like                     → one tool message each
    a later system or developer message                   → a user message, so that it stays where it is in every template

Invariants (tests/gateway/test_gateway_responses_items.py):
- what an item becomes depends on it and on earlier ones only, so a longer conversation starts with the same messages;
- items of one sampled turn make one assistant message; those of two turns do not, where their ids say so;
- an item or part of an unknown type is named in `ignored` and fails nothing.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import media, signatures
from whippletree.gateway.dialects import responses_compaction as compaction
from whippletree.gateway.dialects import responses_ids as ids
from whippletree.gateway.dialects import responses_wire as wire
from whippletree.gateway.dialects.responses_custom import wrap
from whippletree.gateway.dialects.responses_tools import Toolbox, decode
from whippletree.types import Media, Message, ToolCall

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class _Turn:
    """One assistant message while its items come. `owner`: the call that sampled them, as far as their ids say."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self.signature = ""
        self.owner = ""
        self.spoken = False

    def message(self) -> Message | None:
        """The message; None when nothing is in it."""
        if not (self.spoken or self.reasoning or self.calls or self.signature):
            return None
        return Message(
            role="assistant",
            content="".join(self.content),
            reasoning="\n\n".join(self.reasoning),
            tool_calls=tuple(self.calls),
            signature=self.signature,
        )


class History:
    """The messages of one request, as they are read. `compacts`: the harness asks for a summary.

    `late`: a conversation is under way before the first item (previous_response_id).
    """

    def __init__(self, toolbox: Toolbox, ignored: dict[str, None], *, late: bool = False) -> None:
        self.compacts = False
        self.ignored = ignored
        self._toolbox = toolbox
        self._late = late
        self._system: list[str] = []
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._readers: dict[str, Callable[[wire.Item, str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "local_shell_call": self._native_call,
            "shell_call": self._native_call,
            "apply_patch_call": self._native_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "local_shell_call_output": self._output,
            "apply_patch_call_output": self._output,
            "shell_call_output": self._shell_output,
            "compaction": self._compaction,
            "compaction_summary": self._compaction,
            "context_compaction": self._compaction,
        }

    def instructions(self, text: str | None) -> None:
        """The system text that stands before everything."""
        if text:
            self._system.append(text)

    def text(self, text: str) -> None:
        """A whole input that is one text of the user."""
        self._append(Message(role="user", content=text))

    def add(self, raw: msgspec.Raw, place: str) -> None:
        """One item, in order. Raises RequestError (400)."""
        kind = decode(raw, wire.Kind, place)
        name = kind.type or ("message" if kind.role else None)
        if name is None:
            raise RequestError(f"{place} has neither type nor role", "give the item a type")
        if name == "compaction_trigger":
            self.compacts = True
        elif name in self._readers:
            self._readers[name](decode(raw, wire.Item, place), place)
        elif name != "additional_tools":  # read before the items (responses.py)
            self._ignore(f"input.{name}")

    def messages(self) -> tuple[Message, ...]:
        """The whole conversation."""
        self._close()
        if self.compacts:
            self._append(compaction.REQUEST)
        system = [Message(role="system", content="\n\n".join(self._system))] if self._system else []
        return (*system, *self._messages)

    # --- what the items become -----------------------------------------------------------------------------------------

    def _message(self, item: wire.Item, place: str) -> None:
        if item.role not in ROLES:
            raise RequestError(f"{place}.role is {item.role!r}", f"roles served here: {', '.join(ROLES)}")
        text, found = self._content(item.content, f"{place}.content")
        if item.role == "assistant":
            turn = self._open(ids.call_of_item(item.id))
            turn.content.append(text)
            turn.spoken = True
        elif item.role == "user" or self._late or self._messages or self._turn:
            self._append(Message(role="user", content=text, media=found))
        elif text:
            self._system.append(text)

    def _reasoning(self, item: wire.Item, place: str) -> None:
        signature = signatures.read(item.encrypted_content or "")
        if item.encrypted_content and not signature:
            self._ignore("input.reasoning.encrypted_content")
        turn = self._open(signature or ids.call_of_item(item.id))
        turn.signature = turn.signature or signature
        parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
        turn.reasoning += [part.text for part in parts if part.text]

    def _function_call(self, item: wire.Item, place: str) -> None:
        arguments = item.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        self._call(item, item.name, arguments or "", place)

    def _custom_call(self, item: wire.Item, place: str) -> None:
        text = item.input or ""
        self._call(item, item.name, text if ids.is_raw(item.id) else wrap(text), place)

    def _native_call(self, item: wire.Item, place: str) -> None:
        """A call of a tool that is part of the wire format: its arguments are what it does, as JSON."""
        action = item.operation if item.type == "apply_patch_call" else item.action
        self._call(item, str(item.type).removesuffix("_call"), bytes(action).decode(), place)

    def _call(self, item: wire.Item, name: str | None, arguments: str, place: str) -> None:
        if not name:
            raise RequestError(f"{place}.name is missing", "name the tool that was called")
        turn = self._open(ids.call_of_item(item.id))
        flat = self._toolbox.name(item.namespace or "", name)
        turn.calls.append(ToolCall(id=item.call_id or item.id or "", name=flat, arguments=arguments))

    def _output(self, item: wire.Item, place: str) -> None:
        output = decode(item.output, _OUTPUT, f"{place}.output")
        if isinstance(output, dict):
            output = msgspec.json.encode(output).decode()
        text, found = self._content(output, f"{place}.output")
        self._append(Message(role="tool", content=text, tool_call_id=item.call_id or item.id or "", media=found))

    def _shell_output(self, item: wire.Item, place: str) -> None:
        runs = decode(item.output, _SHELL_OUTPUT, f"{place}.output") or ()
        text = "".join((run.stdout or "") + (run.stderr or "") for run in runs)
        self._append(Message(role="tool", content=text, tool_call_id=item.call_id or item.id or ""))

    def _compaction(self, item: wire.Item, place: str) -> None:
        summary = compaction.unseal(item.encrypted_content or "")
        if summary is None:
            self._ignore(f"input.{item.type}")
        else:
            self._append(compaction.summary_message(summary))

    # --- putting together ----------------------------------------------------------------------------------------------

    def _open(self, owner: str) -> _Turn:
        """The assistant message that an item of this call belongs to."""
        if self._turn is not None and owner and self._turn.owner and owner != self._turn.owner:
            self._close()
        if self._turn is None:
            self._turn = _Turn()
        self._turn.owner = self._turn.owner or owner
        return self._turn

    def _close(self) -> None:
        message = self._turn.message() if self._turn is not None else None
        self._turn = None
        if message is not None:
            self._messages.append(message)

    def _append(self, message: Message) -> None:
        self._close()
        self._messages.append(message)

    def _ignore(self, name: str) -> None:
        self.ignored[name[:64]] = None

    def _content(self, content: str | list[wire.Part] | None, place: str) -> tuple[str, tuple[Media, ...]]:
        """Text, with a placeholder for each image and file."""
        if not isinstance(content, list):
            return content or "", ()
        texts, found = [], []
        for number, part in enumerate(content):
            if part.type in _TEXTS:
                texts.append(part.text or "")
            elif part.type == "refusal":
                texts.append(part.refusal or "")
            elif (one := _medium(part, f"{place}[{number}]")) is not None:
                texts.append(media.placeholder(one))
                found.append(one)
            else:
                self._ignore(f"content.{part.type}")
        return "".join(texts), tuple(found)


_OUTPUT: Any = str | list[wire.Part] | dict[str, Any] | None
_SHELL_OUTPUT: Any = list[wire.ShellOutput] | None


def _medium(part: wire.Part, place: str) -> Media | None:
    """The image, audio or file of a part; None for a part of another type. Raises RequestError (400)."""
    if part.type in ("input_image", "computer_screenshot"):
        given = part.image_url.get("url") if isinstance(part.image_url, dict) else part.image_url
        return media.from_address(_address(given, part.file_id, f"{place}.image_url"), "", place, "image")
    if part.type == "input_file":
        guessed = mimetypes.guess_type(part.filename)[0] if isinstance(part.filename, str) else None
        if isinstance(part.file_data, str) and not part.file_data.startswith("data:"):
            return media.from_base64(part.file_data, guessed or "", f"{place}.file_data")
        given = part.file_data or part.file_url
        return media.from_address(_address(given, part.file_id, f"{place}.file_data"), guessed or "", place)
    if part.type == "input_audio" and isinstance(part.input_audio, dict):
        data, kind = part.input_audio.get("data"), part.input_audio.get("format")
        if isinstance(data, str):
            return media.from_base64(data, f"audio/{kind if isinstance(kind, str) else '*'}", f"{place}.input_audio.data")
    return None


def _address(given: object, file_id: object, place: str) -> str:
    address = given or file_id
    if not isinstance(address, str):
        raise RequestError(f"{place} is missing", "give an address, a data address or a file id")
    return address
