"""Messages and tools of OpenAI chat-completions → the internal form.

Invariants (tests/gateway/test_gateway_chat_dialect.py):
- messages of the internal form correspond one to one, in order, to the request's messages; null content is "";
- every call and every result has an id, the same on every later turn (history.py);
- a part that a text model cannot read leaves a placeholder in the text and its digest in `media`;
- a free-text tool is a function with one string, `input`, and its calls are read back as such.
"""

from __future__ import annotations

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import chat_wire as wire
from whippletree.gateway.dialects import signatures
from whippletree.gateway.dialects.arguments import spelled
from whippletree.gateway.dialects.history import CallIds
from whippletree.gateway.dialects.media import Kind, from_address, from_base64, placeholder
from whippletree.types import Media, Message, ToolCall, ToolSpec

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
ADDRESSES: tuple[tuple[str, Kind], ...] = (("image_url", "image"), ("audio_url", "audio"), ("video_url", "file"))


class Ignored:
    """Names of what was accepted and is not used, each once, in order."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Once more or for the first time."""
        self._names[name] = None

    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._names)


def read_messages(messages: list[wire.WireMessage], ignored: Ignored) -> tuple[Message, ...]:
    """Raises RequestError (400) that names the message."""
    ids = CallIds()
    return tuple(_message(message, f"messages[{place}]", ids, ignored) for place, message in enumerate(messages))


def _message(message: wire.WireMessage, place: str, ids: CallIds, ignored: Ignored) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        raise RequestError(f"{place}.role is {message.role!r}", f"roles served here: {', '.join(ROLES)}")
    content, media, thoughts = _content(message.content, f"{place}.content", ignored)
    name = message.name or ""
    if role == "tool":
        call_id = ids.result(message.tool_call_id or "", name)
        return Message(role="tool", content=content, tool_call_id=call_id, name=name, media=media)
    if role != "assistant":
        return Message(role=role, content=content, name=name, media=media)  # type: ignore[arg-type]  # the values of ROLES
    ids.turn()
    return Message(
        role="assistant",
        content=content or message.refusal or "",
        reasoning=_reasoning(message) or thoughts,
        signature=_signature(message),
        tool_calls=tuple(ids.call(call) for call in _calls(message, place)),
        name=name,
        media=media,
    )


def _content(content: str | list[wire.Part] | None, place: str, ignored: Ignored) -> tuple[str, tuple[Media, ...], str]:
    """Text, media and thoughts of a content."""
    if not isinstance(content, list):
        return content or "", (), ""
    texts, media, thoughts = [], [], []
    for number, part in enumerate(content):
        here = f"{place}[{number}]"
        if part.type in ("text", "refusal", "input_text", "output_text"):
            text = part.text if part.text is not None else part.refusal
            if text is None:
                raise RequestError(f"{here} has no text", "send text with every part of this type")
            texts.append(text)
        elif part.type in ("thinking", "reasoning"):
            thoughts.append(part.thinking or part.text or "")
        elif (item := _media(part, here)) is not None:
            media.append(item)
            texts.append(placeholder(item))
        else:
            ignored.add(part.type)
            texts.append(f"[{part.type}]")
    return "".join(texts), tuple(media), "".join(thoughts)


def _media(part: wire.Part, place: str) -> Media | None:
    for kind, family in ADDRESSES:
        if part.type == kind:
            sent = getattr(part, kind)
            address = sent if isinstance(sent, str) else sent.url if sent is not None else None
            if address is None:
                raise RequestError(f"{place} has no {kind}", f"send {kind} with every part of this type")
            return from_address(address, "", f"{place}.{kind}", family)
    if part.type == "input_audio" and part.input_audio is not None:
        return from_base64(part.input_audio.data, f"audio/{part.input_audio.format}", f"{place}.input_audio.data")
    if part.type == "file" and part.file is not None:
        data = part.file.file_data
        if data is None or data.startswith("data:"):
            return from_address(data or part.file.file_id or "", "", f"{place}.file")
        return from_base64(data, "", f"{place}.file.file_data")
    return None


def _reasoning(message: wire.WireMessage) -> str:
    """Clients send it back under the name that they know; the first one that says something counts."""
    return (
        message.reasoning_content
        or message.reasoning
        or "".join(detail.text or detail.summary or "" for detail in message.reasoning_details or ())
        or "".join(block.thinking or "" for block in message.thinking_blocks or ())
    )


def _signature(message: wire.WireMessage) -> str:
    marks = [detail.signature for detail in message.reasoning_details or ()]
    marks += [block.signature for block in message.thinking_blocks or ()]
    return next((call_id for mark in marks if mark and (call_id := signatures.read(mark))), "")


def _calls(message: wire.WireMessage, place: str) -> list[ToolCall]:
    calls = []
    for number, item in enumerate(message.tool_calls or ()):
        if item.custom is not None:
            arguments = spelled({"input": item.custom.input})
            calls.append(ToolCall(id=item.id or "", name=item.custom.name, arguments=arguments))
        elif item.function is not None:
            calls.append(_function_call(item.function, item.id or ""))
        else:
            raise RequestError(f"{place}.tool_calls[{number}] has no function", "send the function's name and arguments")
    if message.function_call is not None:
        calls.append(_function_call(message.function_call, ""))
    return calls


def _function_call(function: wire.WireFunction, call_id: str) -> ToolCall:
    arguments = function.arguments
    if isinstance(arguments, dict):
        arguments = spelled(arguments)
    return ToolCall(id=call_id, name=function.name or "", arguments=arguments or "")


# --- tools -------------------------------------------------------------------------------------------------------------


def read_tools(body: wire.ChatBody, ignored: Ignored) -> tuple[ToolSpec, ...]:
    """The tools offered; those that a server would have to run are named in `ignored`. Raises RequestError (400)."""
    tools = []
    for place, tool in enumerate(body.tools or ()):
        if tool.type not in ("function", "custom"):
            ignored.add(f"tools.{tool.type}")
        elif tool.type == "function" and tool.function is not None:
            tools.append(_tool(tool.function))
        elif tool.type == "custom" and tool.custom is not None:
            tools.append(_custom_tool(tool.custom))
        else:
            raise RequestError(f"tools[{place}].{tool.type} is missing", "send the tool's name and what it takes")
    tools += [msgspec.structs.replace(_tool(function), kind="legacy") for function in body.functions or ()]
    return tuple(tools)


def _tool(function: wire.WireToolFunction) -> ToolSpec:
    return ToolSpec(name=function.name, description=function.description or "", parameters=function.parameters or {})


def _custom_tool(tool: wire.WireCustomTool) -> ToolSpec:
    description = tool.description or ""
    grammar = tool.format.grammar if tool.format is not None else None
    if grammar is not None and grammar.definition:
        description = f"{description}\n\nThe input follows this {grammar.syntax} grammar:\n{grammar.definition}".lstrip("\n")
    return ToolSpec(name=tool.name, description=description, parameters=CUSTOM_PARAMETERS, kind="custom")


def read_choice(body: wire.ChatBody, tools: tuple[ToolSpec, ...], ignored: Ignored) -> tuple[str, str]:
    """Tool choice and the one tool that is forced ("" for none). Raises RequestError (400)."""
    choice = body.tool_choice
    if choice is None and body.function_call is not None:
        legacy = body.function_call
        choice = legacy if isinstance(legacy, str) else wire.ToolChoice(function=legacy)
    if choice is None or isinstance(choice, str):
        return _word(choice or "auto", tools, ignored), ""
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        names = [_referred(item) for item in allowed.tools]
        if allowed.mode == "required" and len(names) == 1:
            return "required", _known(names[0], tools)
        ignored.add("allowed_tools")
        return _word(allowed.mode, tools, ignored), ""
    name = _referred(choice)
    if not name and choice.type not in ("function", "custom"):
        ignored.add("tool_choice")  # a tool that a server would have to run
        return "auto", ""
    return ("required", _known(name, tools)) if name else (_word("required", tools, ignored), "")


def _word(choice: str, tools: tuple[ToolSpec, ...], ignored: Ignored) -> str:
    if choice not in ("auto", "none", "required", "any"):
        raise RequestError(f"tool_choice is {choice!r}", "use auto, none, required, or name a function")
    if choice in ("required", "any"):
        if tools:
            return "required"
        ignored.add("tool_choice")
        return "auto"
    return choice


def _referred(reference: wire.ToolReference) -> str:
    named = reference.function or reference.custom
    return (named.name if named is not None else reference.name) or ""


def _known(name: str, tools: tuple[ToolSpec, ...]) -> str:
    if all(tool.name != name for tool in tools):
        raise RequestError(f"tool_choice names {name!r}, which is none of the tools", "name a tool of this request")
    return name
