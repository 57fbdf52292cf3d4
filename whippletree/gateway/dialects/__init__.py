"""Dialects: pure converters between a harness's wire format and the internal form. No I/O, no clock.

What every dialect keeps (tests/gateway/test_gateway_dialects.py replays every recording through it):
- a streamed reply, put together as the official client does, equals the whole reply, however the deltas are cut;
- a reply that the harness sends back parses to the message that was sampled, up to the normal form of lineage.py;
- bad input is a RequestError (400) that names the field; a field that we do not use is accepted and named in `ignored`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from whippletree.errors import RequestError
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ChatRequest, ParsedMessage, Struct


class Target(Struct):
    """What the address of a request says, where the body does not: Gemini names model and transport in the path, Responses has
    an `operation` ("compact") whose reply has another form.

    Example: Target(model="gemini-3-pro", stream=True, sse=True)
    """

    model: str = ""
    stream: bool | None = None
    sse: bool = True
    operation: str = ""


class ReplyHead(Struct):
    """What a reply says of itself before anything is sampled. `created` is in seconds since the epoch; `prompt_tokens` is 0
    where an engine renders by itself and has not said yet.

    Example: ReplyHead(call_id="c-5d1f", model="policy", created=1700000000, request=ChatRequest(...), prompt_tokens=17664)
    """

    call_id: str
    model: str
    created: int
    request: ChatRequest = msgspec.field(default_factory=lambda: ChatRequest(model="", messages=()))
    prompt_tokens: int = 0
    target: Target = Target()


class TokenText(Struct):
    """One sampled token for a harness that asked for logprobs. Example: TokenText(text=" the", logprob=-0.25)"""

    text: str
    logprob: float


class StreamWriter(Protocol):
    """One streamed reply, as bytes of its transport."""

    content_type: str

    def delta(self, delta: StreamDelta) -> bytes:
        """The events of one delta; the first call also writes what opens the stream."""
        ...

    def end(self, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """The terminal events: what tells the harness that the reply is complete. Also opens a stream without deltas."""
        ...

    def error(self, error: RequestError) -> bytes:
        """The events that end a stream that cannot be completed."""
        ...


class Dialect(Protocol):
    """One wire format.

    `generate_paths`, `count_paths`: aiohttp route patterns (POST). `limits`: top-level fields of a body which only say how the
    reply is to be transported or where it is to be cut; a retry may change them. `keepalive` may be written to a silent stream
    at any time.
    """

    name: str
    generate_paths: tuple[str, ...]
    count_paths: tuple[str, ...]
    limits: frozenset[str]
    keepalive: bytes

    def target(self, match: Mapping[str, str], query: Mapping[str, str]) -> Target:
        """What the address says. Raises RequestError (404) for a method that is not served."""
        ...

    def parse(self, body: bytes, target: Target) -> ChatRequest:
        """Raises RequestError (400) that names the field which is wrong."""
        ...

    def parse_count(self, body: bytes, target: Target) -> ChatRequest:
        """The request whose prompt tokens are to be counted. Raises RequestError (400)."""
        ...

    def reply(self, head: ReplyHead, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """A whole reply. The same arguments give the same bytes, so a reply can be made again from the record."""
        ...

    def stream(self, head: ReplyHead) -> StreamWriter:
        """A writer for one streamed reply."""
        ...

    def counted(self, tokens: int) -> bytes:
        """The answer to a token count."""
        ...

    def error(self, error: RequestError) -> bytes:
        """An error body."""
        ...

    def models(self, names: tuple[str, ...], context_length: int) -> bytes:
        """The model list."""
        ...

    def model(self, name: str, context_length: int) -> bytes:
        """One model."""
        ...
