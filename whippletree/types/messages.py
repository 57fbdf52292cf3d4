"""Messages: the gateway's one internal form of every dialect."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whippletree.types.base import FinishReason, Struct

MessageRole = Literal["system", "user", "assistant", "tool"]


class ToolCall(Struct):
    """One call that the model asks for. `arguments` is the exact JSON text that was sampled (it may be malformed).

    Example: ToolCall(id="call_7f", name="bash", arguments='{"command": "ls"}')
    """

    id: str
    name: str
    arguments: str


class Media(Struct):
    """An image or file of a message. A text model sees only the placeholder that stands for it in the message's content.

    `digest` is the SHA-256 of its bytes or address, so that two pictures are never taken for one; `size` is in bytes of the
    wire form.

    Example: Media(kind="image", media_type="image/png", digest="9f86d0…", size=1834)
    """

    kind: Literal["image", "audio", "file"]
    media_type: str
    digest: str
    size: int


class Message(Struct):
    """One chat message. `content` is text; `reasoning` is text between thinking marks, never shown as content.

    `signature` is what the harness sent back of the mark that we put on reasoning: the id of the call that sampled this turn,
    or ""; with it, reasoning that the harness dropped is put back. `is_error`: the harness calls this tool result a failure.

    Example: Message(role="assistant", tool_calls=(ToolCall(id="c1", name="bash", arguments="{}"),))
    """

    role: MessageRole
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    media: tuple[Media, ...] = ()
    is_error: bool = False
    signature: str = ""


class ToolSpec(Struct):
    """A tool offered to the model. `parameters` is a JSON Schema object; `name` is what the model sees, unique in its request.

    A harness may have offered it in another shape, which decides how a call of it is written back: `kind` "custom" is a tool
    whose one argument, `input`, is free text, "legacy" one of the old `functions`; `namespace` and `own_name` are its name
    there when it came inside a namespace.

    Example: ToolSpec(name="bash", description="run", parameters={"type": "object", "properties": {}})
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    kind: Literal["function", "custom", "legacy"] = "function"
    namespace: str = ""
    own_name: str = ""


class RequestedSampling(Struct):
    """What the harness asked for; recorded beside what was used, never obeyed blindly. None: not sent.

    Example: RequestedSampling(temperature=0.0, max_tokens=4096)
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int | None = None


class ChatRequest(Struct):
    """The internal form of every dialect's request.

    `forced_tool`: the tool that must be called ("" leaves the choice to `tool_choice`). `schema`: a JSON Schema that the reply
    must follow, enforced where the engine can. `continues`: the call whose request and reply come before these messages
    (Responses' previous_response_id). `wants_logprobs`: the reply is to carry logprobs. `ignored`: names of fields and tools
    that were accepted and are not used. `extra`: fields of no known meaning, for engines that take a whole chat request.

    Example: ChatRequest(model="policy", messages=(Message(role="user", content="hi"),))
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    forced_tool: str = ""
    stream: bool = False
    include_usage: bool = False
    wants_logprobs: bool = False
    schema: dict[str, Any] | None = None
    continues: str = ""
    ignored: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    requested: RequestedSampling = msgspec.field(default_factory=RequestedSampling)


class ParsedMessage(Struct):
    """An assistant turn parsed from sampled ids. `malformed` says why a tool call could not be parsed ("" when fine). Its raw
    text is then kept, as the call's arguments where its name could be read and in `content` where not, so that nothing sampled
    is hidden from the harness. `stop_sequence`: the requested stop string that ended the turn; it is in no part of the message.
    `reasoning_tokens`: how many of the sampled ids are thinking, its marks included; 0 where they were not counted.

    Example: ParsedMessage(content="done", finish_reason="stop")
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    malformed: str = ""
    stop_sequence: str = ""
    reasoning_tokens: int = 0
