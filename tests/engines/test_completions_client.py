"""The completions client against real HTTP servers: recorded replies, cut connections, silence, aborts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from vllm_parts import PROMPT, Recording, Replay, recording, serving, turn

from whippletree.engines.completions import CompletionsEngine
from whippletree.engines.transport import Timeouts
from whippletree.errors import ConfigurationError, ContextOverflow, EngineError, EngineUnavailable
from whippletree.protocols import Engine
from whippletree.types import TokenChunk, WeightUpdate

ANSWERS = {"/v1/models": recording("models"), "/v1/completions": recording("completion_stream")}


@asynccontextmanager
async def client(handler: Any, **settings: Any) -> AsyncIterator[CompletionsEngine]:
    async with serving(handler) as url:
        engine = CompletionsEngine(url, **settings)
        try:
            yield engine
        finally:
            await engine.close()


async def turn_of(engine: Engine, **sampling: Any) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(turn(**sampling))]


class Stream:
    """A server that sends the first events of a recorded stream, then does `rest`. It counts connections that went away."""

    def __init__(self, events: int, rest: str) -> None:
        self.events = events
        self.rest = rest
        self.gone = asyncio.Event()
        self.requests = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            if self.rest == "silence before headers":
                await asyncio.sleep(60)
            await response.prepare(request)
            for event in recording("completion_stream").body.split("\n\n")[: self.events]:
                await response.write(event.encode() + b"\n\n")
            if self.rest == "cut":
                await asyncio.sleep(0.1 if self.events else 0)  # let the client read what it was sent
                assert request.transport is not None
                request.transport.abort()
            elif self.rest == "silence":
                while True:
                    await asyncio.sleep(0.01)
                    await response.write(b": still here\n\n" if request.query else b"")
                    assert request.transport is not None
                    if request.transport.is_closing():
                        break
        finally:
            self.gone.set()
        return response


# --- turns ---


@pytest.mark.parametrize("piece", [1, 7, 65536])
async def test_a_recorded_stream_gives_the_same_chunks_however_it_is_split(piece: int) -> None:
    replay = Replay(ANSWERS, piece=piece)
    async with client(replay.handle, policy_version=5) as engine:
        chunks = await turn_of(engine)
    assert sum(len(chunk.token_ids) for chunk in chunks) == sum(len(chunk.logprobs) for chunk in chunks) == 6
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert {chunk.policy_version for chunk in chunks} == {5}


async def test_a_whole_reply_to_a_streamed_request_is_read_too() -> None:
    replay = Replay({"/v1/completions": recording("completion_whole")})
    async with client(replay.handle) as engine:
        (chunk,) = await turn_of(engine)
    assert len(chunk.token_ids) == len(chunk.logprobs) == 6
    assert chunk.finish_reason == "length"


async def test_the_request_fixes_every_sampling_knob_and_asks_for_ids() -> None:
    replay = Replay(ANSWERS)
    async with client(replay.handle, api_key="k") as engine:
        await turn_of(engine, temperature=0.0, max_tokens=9)
    ((path, body),) = replay.asked
    assert path == "/v1/completions"
    assert body["prompt"] == PROMPT
    fixed = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 9}
    wanted = {"logprobs": 0, "return_token_ids": True, "stream": True, "ignore_eos": True, "request_id": "r1"}
    assert {key: body[key] for key in fixed | wanted} == fixed | wanted


async def test_connections_are_used_again() -> None:
    ports = set()
    replay = Replay(ANSWERS)

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return await replay.handle(request)

    async with client(handle) as engine:
        for _ in range(4):
            await turn_of(engine)
            await engine.status()
    assert len(ports) == 1


async def test_a_request_id_is_free_again_once_its_turn_is_over() -> None:
    async with client(Replay(ANSWERS).handle) as engine:
        async for chunk in engine.generate(turn()):
            if chunk.finish_reason:
                assert [c.finish_reason for c in await turn_of(engine)][-1] == "length"


# --- failures ---


@pytest.mark.parametrize("events", [0, 3])
async def test_a_cut_connection_is_unavailable(events: int) -> None:
    async with client(Stream(events, "cut").handle) as engine:
        with pytest.raises(EngineUnavailable):
            await turn_of(engine)


async def test_a_stream_that_ends_early_is_unavailable() -> None:
    async with client(Stream(3, "end").handle) as engine:
        with pytest.raises(EngineUnavailable, match="after 3 tokens"):
            await turn_of(engine)


async def test_a_stream_cut_after_its_finish_reason_is_whole() -> None:
    async with client(Stream(6, "cut").handle) as engine:
        assert [chunk.finish_reason for chunk in await turn_of(engine)][-1] == "length"


@pytest.mark.parametrize("rest", ["silence", "silence before headers"])
async def test_silence_is_unavailable_after_its_limit(rest: str) -> None:
    async with client(Stream(2, rest).handle, timeouts=Timeouts(read=0.2)) as engine:
        with pytest.raises(EngineUnavailable):
            await turn_of(engine)


async def test_a_refused_connection_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        engine = CompletionsEngine(f"http://127.0.0.1:{unused.getsockname()[1]}")
        for attempt in (lambda: turn_of(engine), engine.status, lambda: engine.score([1, 2])):
            with pytest.raises(EngineUnavailable, match="check that the engine runs"):
                await attempt()
        await engine.close()


async def test_a_kept_connection_that_the_server_closed_is_tried_again() -> None:
    replay = Replay(ANSWERS)
    asked = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked == 2:  # as if it had been closed while the request was on its way
            assert request.transport is not None
            request.transport.abort()
        return await replay.handle(request)

    async with client(handle) as engine:
        await turn_of(engine)
        assert sum(len(chunk.token_ids) for chunk in await turn_of(engine)) == 6
    assert asked == 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [("completion_overflow", ContextOverflow), ("completion_unknown_model", EngineError), ("rpc_failure", EngineUnavailable)],
)
async def test_error_replies_are_typed_and_name_the_request(name: str, kind: type[EngineError]) -> None:
    async with client(Replay({"/v1/completions": recording(name)}).handle) as engine:
        with pytest.raises(EngineError, match="request r1") as caught:
            await turn_of(engine)
    assert type(caught.value) is kind


async def test_what_is_not_json_is_an_engine_error() -> None:
    answer = Recording(method="POST", path="", status=200, content_type="text/html", body="<html>hello</html>")
    replay = Replay({"/v1/completions": answer, "/v1/models": answer})
    async with client(replay.handle) as engine:
        for attempt in (lambda: turn_of(engine), engine.status, lambda: engine.score([1, 2])):
            with pytest.raises(EngineError, match="cannot be read"):
                await attempt()


def test_a_url_that_is_none_is_a_configuration_error() -> None:
    for url in ("", "localhost:8000", "ftp://x", "http://"):
        with pytest.raises(ConfigurationError):
            CompletionsEngine(url)
    assert CompletionsEngine("http://x:1/v1/").http.base_url == "http://x:1"


# --- ending a turn ---


async def test_closing_the_iterator_closes_the_connection() -> None:
    stream = Stream(2, "silence")
    async with client(stream.handle) as engine:
        chunks = engine.generate(turn())
        await anext(chunks)
        assert not stream.gone.is_set()
        await chunks.aclose()
        await asyncio.wait_for(stream.gone.wait(), 60)


async def test_abort_ends_the_turn_with_what_was_sampled() -> None:
    stream = Stream(2, "silence")
    async with client(stream.handle) as engine:
        chunks = []
        async for chunk in engine.generate(turn()):
            chunks.append(chunk)
            if sum(len(chunk.token_ids) for chunk in chunks) == 2 and chunk.finish_reason is None:
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, engine.abort("r1"))
        await asyncio.wait_for(stream.gone.wait(), 60)
    assert sum(len(chunk.token_ids) for chunk in chunks) == 2
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["abort"]


async def test_abort_before_any_reply_ends_the_turn() -> None:
    stream = Stream(0, "silence before headers")
    async with client(stream.handle) as engine:
        going = asyncio.create_task(turn_of(engine))
        while not stream.requests:
            await asyncio.sleep(0.01)
        await engine.abort("r1")
        (chunk,) = await going
    assert (chunk.token_ids, chunk.finish_reason) == ([], "abort")


async def test_a_cancelled_reader_leaves_nothing_in_flight() -> None:
    stream = Stream(2, "silence")
    async with client(stream.handle) as engine:
        going = asyncio.create_task(turn_of(engine))
        while not stream.requests:
            await asyncio.sleep(0.01)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        await asyncio.wait_for(stream.gone.wait(), 60)
        await engine.abort("r1")  # unknown by now: ignored


async def test_close_ends_what_is_in_flight() -> None:
    stream = Stream(2, "silence")
    async with client(stream.handle) as engine:
        chunks = engine.generate(turn())
        await anext(chunks)
        await engine.close()
        rest = [chunk async for chunk in chunks]
    assert rest[-1].finish_reason == "abort"


async def test_an_id_in_flight_is_refused() -> None:
    async with client(Stream(2, "silence").handle) as engine:
        chunks = engine.generate(turn())
        await anext(chunks)
        with pytest.raises(EngineError, match="already in flight"):
            await turn_of(engine)
        await chunks.aclose()


# --- the rest of the protocol ---


async def test_status_is_the_models_card() -> None:
    async with client(Replay(ANSWERS).handle, policy_version=5) as engine:
        status = await engine.status()
        assert (status.model, status.context_length, status.policy_version) == ("policy", 256, 5)
        engine.model = "nobody"
        with pytest.raises(EngineError, match="serves policy, not nobody"):
            await engine.status()


async def test_scores_come_from_prompt_logprobs() -> None:
    replay = Replay({"/v1/completions": recording("completion_scores")})
    async with client(replay.handle) as engine:
        scores = await engine.score(PROMPT)
        assert await engine.score([4]) == []
    ((_, body),) = replay.asked
    assert (body["temperature"], body["max_tokens"], body["prompt_logprobs"], body["stream"]) == (1.0, 1, 1, False)
    assert len(scores) == len(PROMPT) - 1


async def test_a_plain_server_has_no_control_routes() -> None:
    engine = CompletionsEngine("http://127.0.0.1:9")
    for refused in (engine.pause, engine.resume, lambda: engine.update_weights(WeightUpdate(directory="/x", policy_version=1))):
        with pytest.raises(EngineError, match="cannot"):
            await refused()
