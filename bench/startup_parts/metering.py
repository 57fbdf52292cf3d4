"""One attempt with a proxy that takes times: what it takes to start, and what the gateway adds to each call.

    harness ──► meter ──► gateway ──► scripted engine        seconds of a call, less those of its engine
    replay  ──► meter ──► bare server                        seconds of the same request with nothing but a reply behind it

The replay follows each attempt, with its requests and replies of the same length, so both are measured in turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from startup_parts.model import CONTEXT
from whippletree.control.contract.model import VOCABULARY
from whippletree.control.contract.script import is_main
from whippletree.control.contract.tap import Tap
from whippletree.control.contract.world import Run, World
from whippletree.control.launch import Launcher
from whippletree.engines.scripted import ScriptedEngine
from whippletree.protocols import AttemptSpec, Sandbox
from whippletree.types import GenerateRequest, TokenChunk

_SIZE = "X-Reply-Size"


@dataclass
class Timed:
    """One call of the main conversation: its request, the length of its reply, and when it was under way (perf_counter)."""

    path: str
    headers: dict[str, str]
    body: bytes
    size: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """From the whole request to the end of the reply."""
        return self.ended - self.began


class Meter(Tap):
    """A tap that keeps the times of the main conversation's calls, and tells of the first one before it passes it on."""

    def __init__(self, target: str, counts: Callable[[str], bool] = lambda _: True) -> None:
        super().__init__(target, counts=counts)
        self.calls: list[Timed] = []
        self.at_first: Callable[[], Awaitable[None]] | None = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        main = request.method == "POST" and "count" not in request.path.lower() and self._counts(body.decode(errors="replace"))
        if main and self.at_first is not None:
            told, self.at_first = self.at_first, None
            await told()
        began = time.perf_counter()
        response = await self._pass(request, body, time.time(), "")
        if main and response.status == 200:
            headers = {name: value for name, value in request.headers.items() if name.lower() == "content-type"}
            size = int(response.body_length)
            self.calls.append(Timed(request.raw_path, headers, body, size, began, time.perf_counter()))
        return response


class TimedEngine(ScriptedEngine):
    """Keeps how long each generation took: (when it ended, seconds without what its reader took)."""

    def __init__(self, answer: Callable[[Sequence[int]], list[int]]) -> None:
        super().__init__(answer, context=CONTEXT, vocabulary=VOCABULARY, chunk_tokens=4)
        self.times: list[tuple[float, float]] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Sample one turn."""
        began, spent = time.perf_counter(), 0.0
        async for chunk in super().generate(request):
            spent += time.perf_counter() - began
            yield chunk
            began = time.perf_counter()
        ended = time.perf_counter()
        self.times.append((ended, spent + ended - began))


class MeteredWorld(World):
    """A check's world whose runs are timed. `started`: CPU-seconds until each run's first request."""

    def make_tap(self, run: Run, target: str) -> Tap:
        """The meter of a run."""
        self.meter = Meter(target, lambda body: is_main(self.facts, body))
        self.started: float | None = None
        return self.meter

    def make_engine(self, answer: Callable[[Sequence[int]], list[int]]) -> ScriptedEngine:
        """An engine that is timed."""
        self.engine = TimedEngine(answer)
        return self.engine

    async def _act(self, run: Run, attempt: AttemptSpec, box: Sandbox, launcher: Launcher) -> None:
        async def first() -> None:
            self.started = (await box.usage()).cpu_seconds - run.used_before

        self.meter.at_first = first
        await super()._act(run, attempt, box, launcher)

    def served(self) -> list[float]:
        """Seconds of each main call of the last run, less those of its engine."""
        return [
            call.seconds - sum(spent for ended, spent in self.engine.times if call.began <= ended <= call.ended)
            for call in self.meter.calls
        ]


async def replayed(calls: Sequence[Timed]) -> list[float]:
    """Seconds of the same requests through a meter with a bare server behind it, whose replies have the same lengths."""

    async def bare(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"x" * int(request.headers[_SIZE]))

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", bare)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        meter = Meter(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with meter.serving() as port, aiohttp.ClientSession() as client:
            for call in calls:
                headers = call.headers | {_SIZE: str(call.size)}
                async with client.post(f"http://127.0.0.1:{port}/", data=call.body, headers=headers) as reply:
                    await reply.read()
            return [call.seconds for call in meter.calls]
    finally:
        await runner.cleanup()
