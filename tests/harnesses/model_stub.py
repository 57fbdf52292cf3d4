"""A chat-completions server whose answers are scripted per key."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], web.Response]


def reply(message: dict[str, Any], finish: str = "stop") -> web.Response:
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice], "usage": usage}
    return web.json_response(body)


def bash(*commands: str) -> Answer:
    """One turn with a tool call per command."""
    return raw(*(json.dumps({"command": command}) for command in commands))


def raw(*arguments: str, name: str = "bash") -> Answer:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}
        for number, text in enumerate(arguments)
    ]
    return lambda _: reply({"content": "", "tool_calls": calls}, "tool_calls")


def text(content: str) -> Answer:
    return lambda _: reply({"content": content})


def error(status: int, message: str, code: str = "error") -> Answer:
    return lambda _: web.json_response({"error": {"message": message, "type": code, "code": code}}, status=status)


class ModelStub:
    """`script[key]` are the answers for that key, in order; the last one repeats. `seen[key]` are the request bodies."""

    def __init__(self) -> None:
        self.script: dict[str, list[Answer]] = {}
        self.seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.paths: set[str] = set()
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.paths.add(request.path)
        body = await request.json()
        number = len(self.seen[key])
        self.seen[key].append(body)
        script = self.script[key]
        return script[min(number, len(script) - 1)](body)
