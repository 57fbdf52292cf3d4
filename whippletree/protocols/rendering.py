"""Messages to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from whippletree.types import Int32, Message, ParsedMessage, Struct, ToolSpec


class StreamDelta(Struct):
    """What newly sampled tokens add to the reply. `tool_index` is -1 unless this is a piece of a tool call.

    Example: StreamDelta(content="hel")  or  StreamDelta(tool_index=0, tool_name="bash", tool_id="call_1")
    """

    content: str = ""
    reasoning: str = ""
    tool_index: int = -1
    tool_id: str = ""
    tool_name: str = ""
    arguments: str = ""


class StreamParser(Protocol):
    """Incremental parse of one sampled turn. Joined deltas equal what `finish` returns, for any split of the ids.

    `stopped` is the stop string that was met ("" so far): what is fed after it is ignored, and sampling should end.
    """

    stopped: str

    def feed(self, token_ids: Sequence[int]) -> list[StreamDelta]:
        """Deltas that these further ids settle; text that may still turn into a mark is held back."""
        ...

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn. `finish_reason` is the engine's ("stop", "length", "abort")."""
        ...


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded ids that a new request goes on from. Shapes: prompt [P], sampled [S].

    `text`: the exact bytes that prompt and sampled ids stand for (Renderer.to_bytes). `messages`: how many of the request's
    messages are the recorded ones, the sampled turn included.
    """

    prompt: Int32
    sampled: Int32
    text: bytes
    messages: int


@runtime_checkable
class Renderer(Protocol):
    """messages ⇄ tokens for one model family. Safe to use from several threads."""

    stop_token_ids: list[int]

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids with the generation prompt at the end. Raises RequestError when the template refuses the messages."""
        ...

    def bridge(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """The ids that follow the recorded ones, such that the text of both is what `render` gives; None when re-rendering
        would give another text (then the prefix is broken and `render` is used)."""
        ...

    def forced(self, tools: Sequence[ToolSpec], name: str) -> list[int]:
        """Ids to put after the prompt so that the turn is a call of the tool `name` ("": of any tool); [] where the format
        has no such beginning. They are fed to the turn's parser before its sampled ids."""
        ...

    def parser(self, tools: Sequence[ToolSpec], stops: Sequence[str] = ()) -> StreamParser:
        """A fresh parser for one sampled turn, which ends at the first of the stop strings. Without tools, call marks are
        plain content."""
        ...

    def to_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The exact bytes behind the ids, special tokens included; joined over any split of the ids."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        ...
