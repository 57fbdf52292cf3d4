"""Servers that stand for a teacher: recorded shapes of answers, silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

Answer = Callable[[str, Any], tuple[int, Any]]
"""(path, body) → (status, reply)."""


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server on loopback with these answers to POST; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
            status, reply = answer(self.path, body)
            data = msgspec.json.encode(reply)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def vllm_scores(ids: list[int], logprob: Callable[[int], float]) -> dict[str, Any]:
    """What vLLM answers to prompt_logprobs=1: at each place the token itself, and the best one where that is another."""
    places: list[Any] = [None]
    for token in ids[1:]:
        entry = {str(token): {"logprob": logprob(token), "rank": 40, "decoded_token": "a"}}
        places.append(entry | {"0": {"logprob": -0.5, "rank": 1, "decoded_token": "!"}})
    choice = {
        "index": 0, "text": "x", "logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": [7],
        "prompt_logprobs": places, "prompt_token_ids": ids,
    }  # fmt: skip
    return {"id": "cmpl-1", "object": "text_completion", "model": "policy", "choices": [choice], "usage": {"prompt_tokens": 3}}


def echoed_scores(ids: list[int], logprob: Callable[[int], float]) -> dict[str, Any]:
    """What a server answers to echo with logprobs=1 and one sampled token."""
    values = [None, *(logprob(token) for token in ids[1:]), -0.25]
    columns = {"tokens": ["t"] * len(values), "token_logprobs": values, "top_logprobs": None, "text_offset": [0] * len(values)}
    return {"choices": [{"index": 0, "text": "...", "logprobs": columns, "finish_reason": "length"}]}
