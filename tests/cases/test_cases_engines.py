"""What upstream servers do to streams, ids and logprobs: cases by their ids, on the adapters over real sockets."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from chat_server import chat_turn
from vllm_parts import serving

from whippletree.engines.chat_reader import ChatReader
from whippletree.engines.chat_wire import chat_event
from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.config import HostedConfig
from whippletree.engines.hosted import HostedEngine
from whippletree.engines.probe import Draw, Measurement, decide
from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.protocols import ChatChunk
from whippletree.types import GenerateRequest, Sampling, TokenChunk

DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def upstream(*writes: bytes, content_type: str = "text/event-stream", delay: float = 0.0) -> AsyncIterator[str]:
    """A server that answers everything with these writes, one network write each."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        assert request.transport is not None
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in writes:
            await response.write(data)
            await asyncio.sleep(delay)
        return response

    async with serving(handle) as url:
        yield url


async def hosted_chunks(*writes: bytes, content_type: str = "text/event-stream") -> list[ChatChunk]:
    async with upstream(*writes, content_type=content_type) as url:
        engine = HostedEngine(HostedConfig(base_url=f"{url}/v1", model="m"))
        try:
            return [chunk async for chunk in engine.chat(chat_turn())]
        finally:
            await engine.close()


def calls_of(chunks: list[ChatChunk]) -> list[list[str]]:
    """[id, name, arguments] of each call, by its index."""
    calls: list[list[str]] = []
    for delta in (delta for chunk in chunks for delta in chunk.deltas if delta.tool_index >= 0):
        if delta.tool_name:
            calls.append([delta.tool_id, delta.tool_name, ""])
        calls[delta.tool_index][2] += delta.arguments
    return calls


def fragment(finish: str | None = None, **call: Any) -> dict[str, Any]:
    delta = {"tool_calls": [call]} if call else {}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def stream(*events: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [DONE]


async def test_A02_missing_ids_and_indices_of_streamed_calls() -> None:
    events = stream(
        fragment(index=0, id="c1", function={"name": "now", "arguments": "{}"}),
        fragment(index=1, id=None, function={"name": "here", "arguments": ""}),
        fragment(function={"arguments": "{}"}),
        fragment("tool_calls"),
    )
    chunks = await hosted_chunks(*events)
    first, second = calls_of(chunks)
    assert first == ["c1", "now", "{}"]
    assert second[1:] == ["here", "{}"]
    assert second[0].startswith("call_")  # filled once: the id of the deltas is the one that is stored and sent back
    assert calls_of(await hosted_chunks(*events))[1][0] == second[0]
    heads = [delta for chunk in chunks for delta in chunk.deltas if delta.tool_id]
    assert len(heads) == 2
    assert chunks[-1].finish_reason == "tool_calls"


# A06: a Responses upstream that sends arguments only in its done events. No adapter here talks Responses upstream; the same
# meaning on a chat upstream is a call that comes only as a whole, in a reply that is not streamed.
async def test_A06_a_call_that_comes_only_as_a_whole() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "Glob", "arguments": '{"pattern":"*.py"}'}}
    reply = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    chunks = await hosted_chunks(json.dumps(reply).encode(), content_type="application/json")
    assert calls_of(chunks) == [["c1", "Glob", '{"pattern":"*.py"}']]


@pytest.mark.parametrize("framing", ["lf", "crlf"])
@pytest.mark.parametrize("cut", ["report", "bytes"])
async def test_A41_multi_byte_characters_cut_anywhere(cut: str, framing: str) -> None:
    parts = [
        bytes.fromhex("646174613a207b2263686f69636573223a5b7b2264656c7461223a7b22636f6e74656e74223a22e69d"),
        bytes.fromhex("ade5b79ef09fa680227d7d5d7d0a0a"),
    ]
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n' + DONE
    if framing == "crlf":
        parts, end = [part.replace(b"\n", b"\r\n") for part in parts], end.replace(b"\n", b"\r\n")
    whole = b"".join(parts) + end
    writes = [*parts, end] if cut == "report" else [whole[place : place + 1] for place in range(len(whole))]
    chunks = await hosted_chunks(*writes)
    assert "".join(delta.content for chunk in chunks for delta in chunk.deltas) == "杭州🦀"


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b'data: {"error":{"code":"1210","message":"bad parameter"}}\n\n', "text/event-stream", "bad parameter"),
        (b'{"error":{"code":"1210","message":"bad parameter"}}', "application/json", "bad parameter"),
        (b"<html><body>Bad Gateway</body></html>", "text/html", "Bad Gateway"),
        (b"<html><body>Bad Gateway</body></html>", "text/event-stream", "Bad Gateway"),
    ],
)
async def test_A42_an_error_inside_a_200_is_an_error_with_the_upstreams_text(
    body: bytes, content_type: str, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        await hosted_chunks(body, content_type=content_type)
    async with upstream(body, content_type=content_type) as url:
        engine = CompletionsEngine(url)
        asked = GenerateRequest(request_id="r1", prompt_ids=[1, 2], sampling=Sampling(max_tokens=4))
        with pytest.raises(EngineError) as caught:
            [chunk async for chunk in engine.generate(asked)]
        await engine.close()
    # a stream without any event ended early: the call is tried again, never taken for an empty turn
    assert words in str(caught.value) or isinstance(caught.value, EngineUnavailable)


async def test_A47_a_repeated_call_with_an_empty_name() -> None:
    chunks = await hosted_chunks(
        *stream(
            fragment(index=0, id="c1", type="function", function={"name": "bash", "arguments": ""}),
            fragment(index=0, id="", function={"name": "", "arguments": "{}"}),
            fragment("tool_calls"),
        )
    )
    assert calls_of(chunks) == [["c1", "bash", "{}"]]


async def generated(*events: dict[str, Any]) -> list[TokenChunk]:
    async with upstream(*stream(*events)) as url:
        engine = CompletionsEngine(url)
        try:
            asked = GenerateRequest(request_id="r1", prompt_ids=[1, 2], sampling=Sampling(max_tokens=4))
            return [chunk async for chunk in engine.generate(asked)]
        finally:
            await engine.close()


async def test_B05_lists_that_differ_by_one_are_an_error_and_never_zipped() -> None:
    choice = {"text": "", "token_ids": [20, 21], "logprobs": {"token_logprobs": [-0.1, -0.2, -0.01]}, "finish_reason": "stop"}
    with pytest.raises(EngineError, match="request r1: 2 token ids came with 3 logprobs"):
        await generated({"choices": [choice]})
    fine = {**choice, "token_ids": [20, 21, 2]}
    (chunk,) = await generated({"choices": [fine]})
    assert (chunk.token_ids, chunk.logprobs) == ([20, 21, 2], [-0.1, -0.2, -0.01])


def test_B07_ids_without_the_prompts_ids_are_no_tokens() -> None:
    content = [{"logprob": value} for value in (-0.1, -0.2, -0.01)]
    choice = {"token_ids": [20, 21, 2], "logprobs": {"content": content}, "message": {"content": "hi"}, "finish_reason": "stop"}
    for prompt, expected in ((None, 0), ([5, 6], 3)):
        reader = ChatReader("engine", "c-1")
        body = json.dumps({"choices": [choice], "prompt_token_ids": prompt}).encode()
        chunk = reader.feed([chat_event(body)])
        assert chunk is not None
        assert len(chunk.token_ids) == len(chunk.logprobs) == expected
        assert "".join(delta.content for delta in chunk.deltas) == ("" if expected else "hi")  # still answered and scored


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
async def test_B08_logprobs_are_after_the_temperature_and_the_mode_is_measured(temperature: float) -> None:
    logits = [2.0, 1.0, 0.0]

    def logprob(token: int, divisor: float) -> float:
        return logits[token] / divisor - math.log(sum(math.exp(logit / divisor) for logit in logits))

    assert logprob(0, 1.0) == pytest.approx(-0.407606, abs=1e-5)
    assert logprob(0, 0.6) == pytest.approx(-0.202573, abs=1e-5)
    draws = {
        mode: tuple(Draw(token_id=t, returned=logprob(t, divisor), score=logprob(t, 1.0)) for t in range(3))
        for mode, divisor in (("raw", 1.0), ("processed", 2.0))
    }
    for mode, found in draws.items():
        report = decide(Measurement(sampled=8, agreement=0.0, temperature=2.0, draws=found), tolerance=0.1)
        assert (report.grade, report.logprobs) == ("tokens", mode)
    divided = tuple(Draw(token_id=t, returned=logprob(t, 1.0) / 0.6, score=logprob(t, 1.0)) for t in range(3))
    report = decide(Measurement(sampled=8, agreement=0.0, temperature=0.6, draws=divided), tolerance=0.1)
    assert report.logprobs != "raw"

    engine = ScriptedEngine(vocabulary=64)
    asked = GenerateRequest(
        request_id="r1", prompt_ids=[5, 6], sampling=Sampling(temperature=temperature, max_tokens=1, seed=1)
    )
    (chunk,) = [chunk async for chunk in engine.generate(asked)]
    raw = [(await engine.score([5, 6, token]))[-1] for token in range(64)]
    scaled = [value / temperature for value in raw]
    expected = scaled[chunk.token_ids[0]] - math.log(sum(map(math.exp, scaled)))
    assert math.exp(chunk.logprobs[0] - expected) == pytest.approx(1.0, abs=1e-3)
    assert (await engine.probe()).logprobs == "processed"
