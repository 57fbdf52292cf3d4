"""whippletree/control/contract/tap.py"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from whippletree.control.contract.tap import DROP_AFTER, Tap

BODY = b'{"tools": [{"name": "sh"}]}'
PATH = "/v1/chat/completions"


class Target:
    """A server that streams its answer in two pieces, the second when it is let go."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, bytes, str]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.got.append((request.method, request.raw_path, await request.read(), request.headers.get("Authorization", "")))
        response = web.StreamResponse(status=201, headers={"X-Own": "yes"})
        await response.prepare(request)
        await response.write(b"a" * 100)
        await self.go.wait()
        await response.write(b"b" * 300)
        await response.write_eof()
        return response


@pytest.fixture
async def target() -> AsyncIterator[tuple[Target, str]]:
    made = Target()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_requests_and_replies_pass_unchanged_and_are_noted(target: tuple[Target, str]) -> None:
    server, url = target
    tap = Tap(url, counts=lambda body: '"sh"' in body)
    async with tap.serving() as port, aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as client:
        path = URL(f"http://127.0.0.1:{port}/r/secret/v1/x?a=%2F", encoded=True)
        async with client.post(path, data=BODY) as reply:
            assert (reply.status, reply.headers["X-Own"], await reply.read()) == (201, "yes", b"a" * 100 + b"b" * 300)
    assert server.got == [("POST", "/r/secret/v1/x?a=%2F", BODY, "Bearer k")]
    assert [(one.method, one.path, one.status, one.fault) for one in tap.asked] == [("POST", "/r/<key>/v1/x", 201, "")]


async def test_a_reply_is_passed_on_piece_by_piece(target: tuple[Target, str]) -> None:
    server, url = target
    server.go.clear()
    tap = Tap(url)
    async with tap.serving() as port, aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/") as reply:
        assert await reply.content.readexactly(100) == b"a" * 100
        server.go.set()
        assert await reply.read() == b"b" * 300


async def test_each_fault_happens_once_to_requests_that_count(target: tuple[Target, str]) -> None:
    _, url = target
    tap = Tap(url, counts=lambda body: '"sh"' in body, faults={1: "429", 2: "500", 3: "drop"})
    async with tap.serving() as port, aiohttp.ClientSession() as client:
        place = f"http://127.0.0.1:{port}"
        statuses = []
        for path, body in ((PATH, b"{}"), (f"{PATH}/count_tokens", BODY), (PATH, BODY), ("/v1/messages", BODY)):
            async with client.post(place + path, data=body) as reply:
                statuses.append(reply.status)
                told = await reply.read()
                if reply.status == 429:
                    assert reply.headers["Retry-After"] == "1" and b'"rate_limit' in told
        assert statuses == [201, 201, 429, 500] and told.startswith(b'{"type":"error"')
        async with client.post(place + PATH, data=BODY) as reply:
            with pytest.raises(aiohttp.ClientPayloadError):
                await reply.read()
        async with client.post(place + PATH, data=BODY) as reply:
            assert len(await reply.read()) == 400
    assert [one.fault for one in tap.asked] == ["", "", "429", "500", "drop", ""] and tap.left == {}
    assert DROP_AFTER < 400
