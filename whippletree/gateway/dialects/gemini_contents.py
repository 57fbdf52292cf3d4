"""Gemini's contents → messages of the internal form.

    user:  functionResponse … text …  → a tool message for each response, a user message for each run of other parts, in order
    model: text, thought, call parts  → one assistant message; model contents in a row are pieces of one turn

Invariants (tests/gateway/test_gateway_gemini_dialect.py):
- model contents in a row (clients keep one for each chunk of a stream) are one assistant message;
- every call and every response has an id, the same on every later turn (history.py);
- what a content becomes depends on it and on earlier ones only.
"""

from __future__ import annotations

from typing import Any

from whippletree.errors import RequestError
from whippletree.gateway.dialects import gemini_wire as wire
from whippletree.gateway.dialects import signatures
from whippletree.gateway.dialects.arguments import respelled, spelled
from whippletree.gateway.dialects.history import CallIds
from whippletree.gateway.dialects.media import from_address, from_base64, placeholder
from whippletree.types import Media, Message, ToolCall

NO_ARGUMENTS = "{}"
OUTPUT_KEYS = ("output", "result", "content")
MODEL_ROLES = frozenset({"model", "assistant"})
USER_ROLES = frozenset({"user", "function", "tool", ""})


class Conversation:
    """The messages of one request, as its contents are read. `ignored` has the kinds of parts that were not used."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.ignored: dict[str, None] = {}
        self._ids = CallIds()
        self._in_turn = False

    def system(self, instruction: wire.Content | str | None) -> None:
        """The system instruction; an empty one is none."""
        if isinstance(instruction, wire.Content):
            parts = wire.as_list(instruction.parts)
            instruction = "\n".join(part.text for part in parts if part.text is not None)
        if instruction:
            self.messages.append(Message(role="system", content=instruction))

    def add(self, content: wire.Content, place: str) -> None:
        """One content, in order. Raises RequestError (400)."""
        role = content.role or ""
        parts = wire.as_list(content.parts)
        if role in MODEL_ROLES:
            self._model(parts, place)
            return
        self._in_turn = False
        if role == "system":
            self.system(content)
        elif role in USER_ROLES:
            self._user(parts, place)
        else:
            raise RequestError(f"{place}.role is {role!r}", "roles served here: user, model, function")

    def _model(self, parts: list[wire.Part], place: str) -> None:
        texts, thoughts, signature = [], [], ""
        media: list[Media] = []
        calls: list[ToolCall] = []
        if not self._in_turn:
            self._ids.turn()
        for number, part in enumerate(parts):
            here = f"{place}.parts[{number}]"
            signature = signature or signatures.read(part.thought_signature or "")
            if part.function_call is not None:
                calls.append(self._ids.call(_call(part.function_call, here)))
            elif part.thought:
                thoughts.append(part.text or "")
            else:
                texts.append(self._text(part, here, media))
        turn = self.messages.pop() if self._in_turn else Message(role="assistant")
        self._in_turn = True
        self.messages.append(
            Message(
                role="assistant",
                content=turn.content + "".join(texts),
                reasoning=turn.reasoning + "".join(thoughts),
                tool_calls=(*turn.tool_calls, *calls),
                media=(*turn.media, *media),
                signature=turn.signature or signature,
            )
        )

    def _user(self, parts: list[wire.Part], place: str) -> None:
        texts: list[str] = []
        media: list[Media] = []
        for number, part in enumerate(parts):
            here = f"{place}.parts[{number}]"
            if part.function_response is None:
                texts.append(self._text(part, here, media))
                continue
            self._flush(texts, media)
            texts, media = [], []
            self._response(part.function_response, here)
        if texts or not parts:
            self._flush(texts or [""], media)

    def _flush(self, texts: list[str], media: list[Media]) -> None:
        if texts:
            self.messages.append(Message(role="user", content="\n".join(texts), media=tuple(media)))

    def _response(self, response: wire.FunctionResponse, place: str) -> None:
        text, failed = response_text(response.response or {})
        media = [
            _media(part.inline_data, part.file_data, f"{place}.functionResponse.parts[{number}]")
            for number, part in enumerate(response.parts or ())
            if part.inline_data is not None or part.file_data is not None
        ]
        texts = [text, *(placeholder(item) for item in media)]
        self.messages.append(
            Message(
                role="tool",
                content="\n".join(texts) if text or not media else "\n".join(texts[1:]),
                tool_call_id=self._ids.result(response.id or "", response.name),
                name=response.name,
                media=tuple(media),
                is_error=failed,
            )
        )

    def _text(self, part: wire.Part, place: str, media: list[Media]) -> str:
        """The text of a part, or what stands for it."""
        if part.inline_data is not None or part.file_data is not None:
            media.append(_media(part.inline_data, part.file_data, place))
            return placeholder(media[-1])
        if part.executable_code is not None:
            return f"```{part.executable_code.language.lower()}\n{part.executable_code.code}\n```\n"
        if part.code_execution_result is not None:
            return f"```output\n{part.code_execution_result.output}\n```\n"
        if part.text is None and not part.thought_signature:
            self.ignored["contents.parts"] = None
        return part.text or ""


def _call(call: wire.FunctionCall, place: str) -> ToolCall:
    arguments = respelled(bytes(call.args))
    if arguments == "null":
        arguments = NO_ARGUMENTS
    if not arguments.startswith("{"):
        raise RequestError(f"{place}.functionCall.args is not an object", "send the arguments by name")
    return ToolCall(id=call.id or "", name=call.name, arguments=arguments)


def _media(blob: wire.Blob | None, file: wire.FileData | None, place: str) -> Media:
    if blob is not None:
        return from_base64(blob.data, blob.mime_type, f"{place}.inlineData.data")
    named = file or wire.FileData()
    return from_address(named.file_uri, named.mime_type, f"{place}.fileData.fileUri")


def response_text(response: dict[str, Any]) -> tuple[str, bool]:
    """What a function answered, as text, and whether it failed.

    Gemini's rule: `error` is the error and `output` the output; without either the whole object is the output. `result` and
    `content` count as `output` where they are all there is beside the function's name, since clients wrap plain text in them.
    """
    rest = {name: value for name, value in response.items() if name != "name"}
    if len(rest) == 1:
        (key, value), *_ = rest.items()
        if key == "error" or key in OUTPUT_KEYS:
            return _plain(value), key == "error"
    return (_plain(response) if response else ""), bool(response.get("error")) and "output" not in response


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else spelled(value)
