"""A judge as a real chat-completions server: what it says is a function of the question; faults are those of real servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from whippletree.control.rubrics.config import Criterion, RubricConfig
from whippletree.engines.config import HostedConfig
from whippletree.store import RecordStore
from whippletree.types import Call, CallPayload, CallTimes, Message, ParsedMessage, Sampling

ATTEMPT = re.compile(r"^Attempt ([A-Z]+):\n(.*?)(?=^Attempt [A-Z]+:\n|^The rubric:|^Answer with|\Z)", re.M | re.S)
BLOCK = re.compile(r"<<<([0-9a-f]{16}) ([^\n]*?)>>>\n(.*?)\n<<<end \1>>>", re.S)


def shown(question: str) -> dict[str, dict[str, str]]:
    """What a question shows of each attempt: label → title of the block → text (of several with one title, the last)."""
    return {name: {title: text for _, title, text in BLOCK.findall(body)} for name, body in ATTEMPT.findall(question)}


def record_said(
    store: RecordStore, rollout_id: str, index: int, sent: Sequence[Message], said: ParsedMessage | bytes, **fields: Any
) -> None:
    """Record one call of the first attempt: what was new in its request, and its reply; no tokens."""
    call = Call(
        call_id=f"c-{rollout_id}-{index}",
        rollout_id=rollout_id,
        attempt=1,
        index=index,
        digest="d",
        prompt_tokens=0,
        sampled_tokens=0,
        finish_reason="stop",
        times=CallTimes(received=1.0),
        sampling=Sampling(),
        logprob_source="none",
        delivered=True,
        **fields,
    )
    none = np.zeros(0, np.int32)
    payload = CallPayload(
        prompt_delta=none,
        sampled_ids=none,
        logprobs=np.zeros(0, np.float32),
        messages_json=msgspec.json.encode(sent),
        reply_json=said if isinstance(said, bytes) else msgspec.json.encode(said),
    )
    store.record_call(call, payload).result()


def points(**of_answer: int) -> Callable[[str], str]:
    """A judge that gives the criterion "good" the points that belong to the last message; 0 for any other."""

    def say(question: str) -> str:
        told = {name: {"why": "seen", "good": of_answer.get(one["last message"], 0)} for name, one in shown(question).items()}
        return json.dumps(told)

    return say


class JudgeServer:
    """Answers with what `say` makes of the user's message. `faults` come first, one a request: a status, a text to answer with,
    "drop" (the connection is cut), or a (status, headers). Once there is a `gate` its answers wait for it."""

    def __init__(self, say: Callable[[str], str]) -> None:
        self.say = say
        self.faults: list[Any] = []
        self.gate: asyncio.Event | None = None
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    @property
    def questions(self) -> list[str]:
        return [body["messages"][1]["content"] for body in self.asked]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        fault = self.faults.pop(0) if self.faults else None
        match fault:
            case "drop":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case int():
                return web.json_response({"error": {"message": f"fault {fault}"}}, status=fault)
            case (int() as status, dict() as headers):
                return web.json_response({"error": {"message": f"fault {status}"}}, status=status, headers=headers)
            case str():
                text = fault
            case _:
                text = self.say(body["messages"][1]["content"])
        return await self._stream(request, text)

    async def _stream(self, request: web.Request, text: str) -> web.StreamResponse:
        if self.gate is not None:
            await self.gate.wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        half = len(text) // 2
        events: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": text[:half]}}]},
            {"choices": [{"index": 0, "delta": {"content": text[half:]}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10}},
        ]
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def judging(say: Callable[[str], str]) -> AsyncIterator[JudgeServer]:
    """A judge that serves while the body runs."""
    judge = JudgeServer(say)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", judge.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield judge
    finally:
        await runner.cleanup()


def rubric(url: str, name: str = "style", **settings: Any) -> RubricConfig:
    """A rubric with one criterion, "good", of four points."""
    criteria = settings.pop("criteria", (Criterion(name="good", text="it is good", points=4),))
    return RubricConfig(name=name, judge=HostedConfig(base_url=url, model="judge-1"), criteria=criteria, **settings)
