"""The chat endpoint of a server as protocols.ChatEngine: what vLLM, SGLang and hosted APIs share.

    caller ── chat ──► POST /v1/chat/completions, events ──► ChatReader ──► ChatChunk
    caller closes the iterator ──► the HTTP response is closed ──► the server ends the request

Who waits for whom: `chat` waits for the server's next bytes, at most `Timeouts.read` seconds; once the finish reason has come,
only `GRACE_SECONDS` more for the counts, since some servers never close their streams.

Invariants (tests/engines/test_hosted.py):
- chunks are those of ChatReader, whatever the framing, the cuts and the length of the reads;
- an error page, an error in place of a stream and an error in a stream are errors that quote the server;
- closing the iterator early closes the HTTP response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import msgspec

from whippletree.engines.chat_reader import ChatReader
from whippletree.engines.chat_wire import Wording, chat_body, chat_event
from whippletree.engines.probe_chat import ChatSeen
from whippletree.engines.transport import Received, Running, Transport
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.protocols import ChatChunk
from whippletree.types import ChatTurn

GRACE_SECONDS = 5.0


class ChatClient:
    """Mixin: `chat` over the transport of the class that derives from it."""

    name: str
    model: str
    http: Transport
    wording: Wording
    chat_route = "/v1/chat/completions"

    async def chat_version(self) -> int:
        """Policy version to label a turn with, asked at its first token."""
        return 0

    async def chat(self, turn: ChatTurn) -> AsyncGenerator[ChatChunk, None]:
        """Sample one turn under the engine's own template (see protocols.ChatEngine). Raises EngineError and its kinds."""
        async with aclosing(self._turn(turn, self._reader(turn), self.wording)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def observe_chat(self, turn: ChatTurn, *, ids: bool) -> ChatSeen:
        """What one turn brings, joined; for the probe. With `ids` false neither ids nor logprobs are asked for."""
        wording = self.wording if ids else msgspec.structs.replace(self.wording, logprobs=False, token_ids=False)
        reader = self._reader(turn)
        chunks = [chunk async for chunk in self._turn(turn, reader, wording)]
        return ChatSeen(
            content="".join(delta.content for chunk in chunks for delta in chunk.deltas),
            prompt_ids=sum(len(chunk.prompt_ids) for chunk in chunks),
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            values=tuple(value for chunk in chunks for value in chunk.logprobs),
            logprobs=reader.logprobs,
        )

    def _reader(self, turn: ChatTurn) -> ChatReader:
        return ChatReader(self.name, turn.request_id, self.http.clean)

    async def _turn(self, turn: ChatTurn, reader: ChatReader, wording: Wording) -> AsyncGenerator[ChatChunk, None]:
        running = Running()
        body = chat_body(self.model, turn.request, turn.sampling, wording, turn.request_id)
        done = False
        try:
            async with aclosing(self._received(body, running, reader, turn.request_id)) as received:
                async for batch in received:
                    done = done or batch.done or batch.whole
                    chunk = await self._read(batch, reader)
                    if chunk is not None:
                        yield chunk
            last = reader.end(done=done)
        except EngineUnavailable:
            if not reader.finished:
                raise
            last = reader.end(done=True)
        finally:
            running.close()
        yield last

    async def _read(self, batch: Received, reader: ChatReader) -> ChatChunk | None:
        try:
            events = [chat_event(data) for data in batch.events]
        except msgspec.DecodeError as error:
            raise self.http.garbled(error, batch.events[0]) from error
        fresh = not reader.begun
        chunk = reader.feed(events)
        if batch.whole and not (reader.begun or reader.finished):
            raise EngineError(
                f"{self.name} at {self.http.base_url} answered without choices: {self.http.quote(batch.events[0])}",
                "check that the URL ends in /v1 and is a chat endpoint's",
            )
        if fresh and chunk is not None:
            reader.policy_version = await self.chat_version()
            chunk = msgspec.structs.replace(chunk, policy_version=reader.policy_version)
        return chunk

    async def _received(
        self, body: bytes, running: Running, reader: ChatReader, request_id: str
    ) -> AsyncGenerator[Received, None]:
        """What the server sends, until it ends or has been silent for too long after the finish reason."""
        who = f"{self.name}, request {request_id}"
        async with aclosing(self.http.stream(self.chat_route, body, running, who)) as received:
            while (batch := await _next(received, GRACE_SECONDS if reader.finished else None)) is not None:
                yield batch


async def _next(received: AsyncIterator[Received], seconds: float | None) -> Received | None:
    """The next batch, None at the end or after `seconds` of silence."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await anext(received, None)
    return None
