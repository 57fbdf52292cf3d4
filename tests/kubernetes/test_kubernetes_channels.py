"""Commands over a websocket: against a small server that speaks the protocol, and says what kubelets say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import WSMsgType, web

from whippletree.errors import ClusterError
from whippletree.kubernetes.access import Access, UserEntry
from whippletree.kubernetes.channels import PIECE, CommandEnd, Container, end_of, messages

SUCCESS = b'{"metadata":{},"status":"Success"}'
Speak = Callable[[web.WebSocketResponse, web.Request], Awaitable[None]]


def failure(code: object) -> bytes:
    cause = {"reason": "ExitCode", "message": str(code)}
    said = {"status": "Failure", "reason": "NonZeroExitCode", "message": f"exit {code}", "details": {"causes": [cause]}}
    return json.dumps(said).encode()


class Kubelet:
    """Says what its test tells it to."""

    def __init__(self) -> None:
        self.speak: Speak
        self.requests: list[web.Request] = []
        self.pings = True
        self.refuses = False

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.refuses:
            raise web.HTTPForbidden
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), autoping=self.pings)
        await socket.prepare(request)
        await self.speak(socket, request)
        return socket


@pytest.fixture
async def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
async def container(kubelet: Kubelet) -> AsyncIterator[Container]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ns/pods/pod/exec", kubelet.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = Access(f"http://127.0.0.1:{runner.addresses[0][1]}", None, UserEntry(token="t0ken"))
    made = Container(access, namespace="ns", pod="pod", container="c", request_seconds=30.0, ping_seconds=1.0)
    async with made:
        yield made
    await runner.cleanup()


def test_the_end_is_what_channel_3_says() -> None:
    assert end_of(SUCCESS) == CommandEnd(0)
    assert end_of(failure(3)).code == 3 and end_of(failure(137)).code == 137
    refused = end_of(b'{"status":"Failure","reason":"InternalError","message":"container not found"}')
    assert (refused.code, refused.message) == (None, "InternalError: container not found")
    assert end_of(failure("x")).code is None
    for broken in (b"", b"command terminated", b"[]"):
        with pytest.raises(ClusterError, match="no Status"):
            end_of(broken)


def test_input_is_cut_into_messages() -> None:
    data = [b"a" * (PIECE + 1), b"", b"b"]
    assert list(messages(data)) == [b"\0" + b"a" * PIECE, b"\0a", b"\0b"]


async def test_a_command_has_output_errors_and_an_end(kubelet: Kubelet, container: Container) -> None:
    async def speak(socket: web.WebSocketResponse, request: web.Request) -> None:
        got = b""
        while len(got) < 5:
            message = await socket.receive()
            assert message.type is WSMsgType.BINARY and message.data[0] == 0
            got += message.data[1:]
        for data in (b"\1", b"\2", b"\1" + got, b"\2oh", b"\1!", b"\3" + failure(7)):
            await socket.send_bytes(data)
        await socket.close()

    kubelet.speak = speak
    pieces: list[bytes] = []
    end = await container.run(("sh", "-c", "a & b"), stdin=(b"he", b"llo"), on_output=pieces.append)
    assert (end.code, end.errors, pieces) == (7, "oh", [b"hello", b"!"])
    (request,) = kubelet.requests
    assert request.query.getall("command") == ["sh", "-c", "a & b"] and request.query["stdin"] == "true"
    assert request.headers["Authorization"] == "Bearer t0ken"


async def test_a_connection_that_ends_without_an_end_is_lost(kubelet: Kubelet, container: Container) -> None:
    async def speak(socket: web.WebSocketResponse, request: web.Request) -> None:
        await socket.send_bytes(b"\1half")
        await socket.close()

    kubelet.speak = speak
    with pytest.raises(ClusterError, match="is lost") as caught:
        await container.run(("x",), on_output=lambda data: None)
    assert caught.value.status == 0


async def test_a_connection_that_answers_no_ping_is_given_up(kubelet: Kubelet, container: Container) -> None:
    kubelet.pings = False

    async def speak(socket: web.WebSocketResponse, request: web.Request) -> None:
        await asyncio.sleep(600)

    kubelet.speak = speak
    with pytest.raises(ClusterError, match="is lost"):
        await asyncio.wait_for(container.run(("x",), on_output=lambda data: None), 60)


async def test_a_silent_command_that_answers_pings_is_waited_for(kubelet: Kubelet, container: Container) -> None:
    kubelet.pings = False  # they are answered here

    async def speak(socket: web.WebSocketResponse, request: web.Request) -> None:
        for _ in range(2):
            message = await socket.receive()
            assert message.type is WSMsgType.PING
            await socket.pong(message.data)
        await socket.send_bytes(b"\3" + SUCCESS)

    kubelet.speak = speak
    assert (await container.run(("x",), on_output=lambda data: None)).code == 0


async def test_a_refusal_has_its_status(kubelet: Kubelet, container: Container) -> None:
    kubelet.refuses = True
    with pytest.raises(ClusterError, match="403") as caught:
        await container.run(("x",), on_output=lambda data: None)
    assert caught.value.status == 403 and "pods/exec" in caught.value.next_step


async def test_what_a_listener_raises_comes_through(kubelet: Kubelet, container: Container) -> None:
    async def speak(socket: web.WebSocketResponse, request: web.Request) -> None:
        await socket.send_bytes(b"\1x")
        await socket.receive()

    def listener(data: bytes) -> None:
        raise KeyError(data)

    kubelet.speak = speak
    with pytest.raises(KeyError):
        await container.run(("x",), on_output=listener)
