"""The HTTP of every engine: pools, kept connections, redaction."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web
from vllm_parts import serving

from whippletree.engines.transport import Received, Running, Timeouts, Transport, retry_after
from whippletree.errors import ConfigurationError, EngineError, EngineUnavailable
from whippletree.types import Struct


async def stream_of(http: Transport, running: Running | None = None) -> list[Received]:
    return [received async for received in http.stream("/stream", b"{}", running or Running(), "engine, request r1")]


async def test_many_requests_are_open_at_once_and_each_has_its_own_answer() -> None:
    waiting: list[asyncio.Event] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        gate = asyncio.Event()
        waiting.append(gate)
        if len(waiting) == 300:
            for other in waiting:
                other.set()
        await gate.wait()  # no answer before all 300 are here
        return web.Response(body=b"data: " + body + b"\n\n", content_type="text/event-stream")

    async with serving(handle) as url:
        http = Transport("engine", url)

        async def one(number: int) -> list[Received]:
            return [r async for r in http.stream("/", str(number).encode(), Running(), "engine")]

        answers = await asyncio.wait_for(asyncio.gather(*map(one, range(300))), 60)
        await http.close()
    assert answers == [[Received([str(number).encode()])] for number in range(300)]


async def test_what_one_read_completes_comes_together_and_the_end_is_told() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        body = b"".join(b"data: %d\n\n" % number for number in range(50)) + b"data: [DONE]\n\n"
        return web.Response(body=body, content_type="text/event-stream")

    async with serving(handle) as url:
        http = Transport("engine", url)
        received = await stream_of(http)
        await http.close()
    assert [event for batch in received for event in batch.events] == [b"%d" % number for number in range(50)]
    assert len(received) < 5
    assert [batch.done for batch in received] == [False] * (len(received) - 1) + [True]


async def test_a_cut_reply_silence_and_a_refused_connection_are_unavailable() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/silent":
            await asyncio.sleep(60)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(handle) as url:
        http = Transport("engine", url, timeouts=Timeouts(read=0.2))
        with pytest.raises(EngineUnavailable):
            await stream_of(http)
        with pytest.raises(EngineUnavailable):
            [r async for r in http.stream("/silent", b"", Running(), "engine")]
        with pytest.raises(EngineUnavailable):
            await http.request("GET", "/silent", seconds=0.2)
        await http.close()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        http = Transport("engine", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(EngineUnavailable, match="check that the engine runs"):
            await stream_of(http)
        await http.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_kept_connection_that_was_closed_is_tried_once_more(times: int) -> None:
    asked = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if 1 < asked <= 1 + times:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=b"{}")

    async with serving(handle) as url:
        http = Transport("engine", url)
        await http.request("POST", "/", seconds=60)
        if times == 1:
            assert await http.request("POST", "/", seconds=60) == b"{}"
        else:
            with pytest.raises(EngineUnavailable):
                await http.request("POST", "/", seconds=60)
        await http.close()


async def test_ending_a_request_closes_it_before_and_after_its_headers() -> None:
    gone = asyncio.Event()
    arrived = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        arrived.set()
        try:
            await asyncio.sleep(60)
        finally:
            gone.set()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    http, running = Transport("engine", f"http://127.0.0.1:{runner.addresses[0][1]}"), Running()
    going = asyncio.create_task(stream_of(http, running))
    await asyncio.wait_for(arrived.wait(), 60)
    running.end()
    with pytest.raises(EngineUnavailable, match="aborted"):
        await going
    await asyncio.wait_for(gone.wait(), 60)
    await http.close()
    await runner.cleanup()


class Reply(Struct):
    """A typed reply.

    Example: Reply(a=1)
    """

    a: int = 0


@pytest.mark.parametrize("body", [b'{"a": "secret-key"}', b"secret-key", b"<p>secret-key"])
async def test_the_key_is_in_no_error_even_where_the_server_repeats_it(body: bytes) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret-key"
        return web.Response(status=200 if request.path == "/ok" else 401, body=body)

    async with serving(handle) as url:
        http = Transport("engine", url, api_key="secret-key")
        for path in ("/ok", "/refused"):
            with pytest.raises(EngineError) as caught:
                await http.call("GET", path, Reply)
            assert "[key]" in str(caught.value)
            assert "secret" not in str(caught.value)
        await http.close()


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("3", "", 3.0),
        ("0.5", "", 0.5),
        ("-1", "", 0.0),
        ("inf", "", 300.0),
        ("nan", "", 0.0),
        ("soon", "", 0.0),
        ("Fri, 02 Jan 2026 00:00:09 GMT", "Fri, 02 Jan 2026 00:00:00 GMT", 9.0),
        ("Fri, 02 Jan 2026 00:00:09 GMT", "", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date_and_bounded(value: str, date: str, seconds: float) -> None:
    assert retry_after(value, date) == seconds


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://user:word@x"])
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Transport("engine", url)
    assert "word@" not in str(caught.value)
