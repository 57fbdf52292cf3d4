"""Dialects: pure converters between a harness's wire format and the internal form. No I/O, no clock."""

from __future__ import annotations

from typing import Protocol

from whippletree.errors import RequestError
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ChatRequest, ParsedMessage, Struct


class Trim(Struct):
    """What was left out of a stored request because the call `base` already has it: so many first messages, and the tools.

    Example: Trim(base="c-5d1f", messages=3, tools=True)
    """

    base: str = ""
    messages: int = 0
    tools: bool = False


class ReplyHead(Struct):
    """What a reply says of itself before anything is sampled. `created` is in seconds since the epoch.

    Example: ReplyHead(call_id="c-5d1f", model="policy", created=1700000000)
    """

    call_id: str
    model: str
    created: int


class StreamWriter(Protocol):
    """One streamed reply, as bytes of server-sent events."""

    def delta(self, delta: StreamDelta) -> bytes:
        """The events of one delta."""
        ...

    def end(self, call: Call, message: ParsedMessage) -> bytes:
        """The terminal events: what tells the harness that the reply is complete."""
        ...

    def error(self, error: RequestError) -> bytes:
        """The events that end a stream that cannot be completed."""
        ...


class Dialect(Protocol):
    """One wire format."""

    name: str

    def parse(self, body: bytes) -> ChatRequest:
        """Raises RequestError (400) that names the field which is wrong."""
        ...

    def digest(self, body: bytes) -> str:
        """Equal for a request and its retries, also when a retry asks for another transport (streamed or whole)."""
        ...

    def trim(self, body: bytes, trim: Trim) -> bytes:
        """The request as stored: without what its base call has, so that storage grows linearly."""
        ...

    def trimmed(self, stored: bytes) -> Trim:
        """What `trim` left out of a stored request."""
        ...

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage) -> bytes:
        """A whole reply."""
        ...

    def read_reply(self, reply: bytes) -> ParsedMessage:
        """The turn that `reply` wrote."""
        ...

    def stream(self, head: ReplyHead, *, include_usage: bool) -> StreamWriter:
        """A writer for one streamed reply."""
        ...

    def error(self, error: RequestError) -> bytes:
        """An error body."""
        ...

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list."""
        ...
