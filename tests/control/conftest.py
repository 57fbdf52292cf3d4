"""Shared parts of the control room's tests: the importable harnesses, and a chat endpoint that answers when told to."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)  # control_world and harness_parts
REPLY = b'{"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}'


@pytest.fixture(autouse=True)
def importable_harnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """`harness_parts` can be imported in every process that a test starts, too."""
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=":")


class ChatEndpoint(ThreadingHTTPServer):
    """Answers every chat completion once `gate` is open; remembers who asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request, client_address) -> None:
        """A client that was killed meanwhile is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    server: ChatEndpoint

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.headers["Authorization"])
        self.server.gate.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", str(len(REPLY)))
        self.end_headers()
        self.wfile.write(REPLY)

    def log_message(self, format: str, *values: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    server = ChatEndpoint()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """A port where nobody answers. It is the test's alone, which may listen on it: this socket is bound to it and does not."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
async def world(tmp_path: Path):
    """A run directory whose gateway serves."""
    from control_world import World

    made = World(tmp_path / "run")
    async with made.serving():
        yield made
    made.close()
