"""A local chat endpoint that answers with given bytes, and what tests do with its chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from vllm_parts import serving

from whippletree.engines.config import HostedConfig
from whippletree.engines.hosted import HostedEngine
from whippletree.protocols import ChatChunk, ChatEngine
from whippletree.types import ChatRequest, ChatTurn, Message, ParsedMessage, Sampling, ToolCall

DONE = b"data: [DONE]\n\n"


def sse(*events: Any, done: bool = True) -> bytes:
    """Events as the body of a stream."""
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + (DONE if done else b"")


def says(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One event."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class Upstream:
    """Answers every chat request with `body`, in pieces of `piece` bytes; remembers what it was asked."""

    def __init__(
        self,
        body: bytes | Sequence[bytes],
        *,
        status: int = 200,
        content_type: str = "text/event-stream",
        piece: int = 0,
        headers: dict[str, str] | None = None,
        hang: bool = False,
    ) -> None:
        self.bodies = [body] if isinstance(body, bytes) else list(body)
        self.status = status
        self.headers = {"Content-Type": content_type, **(headers or {})}
        self.piece = piece
        self.hang = hang
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.gone = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/v1/chat/completions"
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("Authorization", ""))
        data = self.bodies[min(len(self.asked), len(self.bodies)) - 1]
        response = web.StreamResponse(status=self.status, headers=self.headers)
        try:
            await response.prepare(request)
            step = self.piece or max(len(data), 1)
            for start in range(0, len(data), step):
                await response.write(data[start : start + step])
            while self.hang:
                await asyncio.sleep(0.01)
                assert request.transport is not None
                if request.transport.is_closing():
                    break
        finally:
            self.gone.set()
        return response


@asynccontextmanager
async def hosted(upstream: Upstream, **settings: Any) -> AsyncIterator[HostedEngine]:
    async with serving(upstream.handle) as url:
        engine = HostedEngine(HostedConfig(base_url=f"{url}/v1", model="m", **settings))
        try:
            yield engine
        finally:
            await engine.close()


def chat_turn(request_id: str = "c-1-1", **fields: Any) -> ChatTurn:
    request = ChatRequest(model="policy", messages=(Message(role="user", content="hi"),))
    return ChatTurn(request_id=request_id, request=msgspec.structs.replace(request, **fields), sampling=Sampling(max_tokens=40))


async def chunks_of(engine: ChatEngine, turn: ChatTurn | None = None) -> list[ChatChunk]:
    return [chunk async for chunk in engine.chat(turn or chat_turn())]


def message_of(chunks: Sequence[ChatChunk]) -> ParsedMessage:
    """The turn as a consumer of the deltas puts it together."""
    assert [chunk.finish_reason is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    content, reasoning, calls = "", "", []
    for delta in (delta for chunk in chunks for delta in chunk.deltas):
        content += delta.content
        reasoning += delta.reasoning
        if delta.tool_name:
            assert delta.tool_index == len(calls)
            calls.append([delta.tool_id, delta.tool_name, ""])
        if delta.tool_index >= 0:
            calls[delta.tool_index][2] += delta.arguments
    made = tuple(ToolCall(id=a, name=b, arguments=c) for a, b, c in calls)
    finish = chunks[-1].finish_reason
    assert finish is not None
    return ParsedMessage(content=content, reasoning=reasoning, tool_calls=made, finish_reason=finish)
