"""Chat-completions servers on a thread of their own, for tests that block."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ThreadedChat(ThreadingHTTPServer):
    """A server on loopback. `answer` makes a content type and a body of a request; `asked` are the requests."""

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[str, bytes]], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answers)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Answers(BaseHTTPRequestHandler):
    server: ThreadedChat

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        kind, data = self.server.answer(body)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silence."""


@contextmanager
def threaded_chat(answer: Callable[[dict[str, Any]], tuple[str, bytes]], port: int = 0) -> Iterator[ThreadedChat]:
    """A server while the body runs."""
    with ThreadedChat(answer, port) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def judged(say: Callable[[str], object]) -> Callable[[dict[str, Any]], tuple[str, bytes]]:
    """The answer of a judge: whole, what `say` makes of the user's message, as JSON."""

    def answer(body: dict[str, Any]) -> tuple[str, bytes]:
        message = {"role": "assistant", "content": json.dumps(say(question_of(body)))}
        return "application/json", json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()

    return answer


def question_of(body: dict[str, Any]) -> str:
    """The user's message of a question to a judge."""
    return str(body["messages"][1]["content"])
