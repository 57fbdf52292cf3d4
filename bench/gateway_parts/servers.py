"""The servers of the benchmark, each a process of its own: `python -m gateway_parts.servers KIND SPEC.json`.

engine   answers every request with the same 200 tokens and logprobs at a given pace: /v1/completions in the form of our own
         engine, /v1/chat/completions (for direct access, the relay and peers) in that of vLLM with logprobs and token ids;
         costs as little as possible, so that what is measured is what stands before it
relay    aiohttp server and client, passing bytes on: the cheapest thing that this server library can do
gateway  the real one: SQLite on disk, the real renderer, the completions engine over HTTP
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from aiohttp import web


class EngineSpec(msgspec.Struct, kw_only=True):
    """Pace of the fake engine: seconds to the first token and per token after it. `group`: tokens per event and network write,
    what vLLM and SGLang call the stream interval."""

    port_file: str
    ids: list[int]
    first: float = 0.0
    token: float = 0.0
    group: int = 8
    context: int = 131072


def events(spec: EngineSpec) -> list[bytes]:
    """The stream, one piece per network write."""
    total = len(spec.ids)
    lines = []
    for start in range(0, total, spec.group):
        ids = spec.ids[start : start + spec.group]
        choice = {
            "index": 0,
            "text": "x" * len(ids),
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-0.25 - (start + place) / 1000 for place in range(len(ids))]},
            "finish_reason": "stop" if start + len(ids) == total else None,
        }
        lines.append(b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice]}).encode() + b"\n\n")
    usage = {"prompt_tokens": 4096, "completion_tokens": total, "prompt_tokens_details": {"cached_tokens": 4000}}
    lines[-1] += b"data: " + json.dumps({"id": "cmpl-1", "choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
    return lines


def _chat_logprob(place: int) -> dict[str, Any]:
    return {"token": "word", "logprob": -0.25 - place / 1000, "bytes": [119, 111, 114, 100], "top_logprobs": []}


def chat_events(spec: EngineSpec) -> list[bytes]:
    """The stream of the chat endpoint, one piece per network write."""
    head = {"id": "chatcmpl-88ad4ed126548ee7", "object": "chat.completion.chunk", "created": 1795976440, "model": "policy"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    lines = [{**head, "choices": [first], "prompt_token_ids": list(range(4096)), "prompt_text": None}]
    for start in range(0, len(spec.ids), spec.group):
        ids = spec.ids[start : start + spec.group]
        choice = {
            "index": 0,
            "delta": {"content": " word" * len(ids)},
            "logprobs": {"content": [_chat_logprob(start + place) for place in range(len(ids))]},
            "finish_reason": "stop" if start + len(ids) == len(spec.ids) else None,
            "token_ids": ids,
        }
        lines.append({**head, "choices": [choice]})
    texts = [b"data: " + json.dumps(line, separators=(",", ":")).encode() + b"\n\n" for line in lines]
    texts[-1] += b"data: [DONE]\n\n"
    texts[:2] = [texts[0] + texts[1]]
    return texts


def chat_whole(spec: EngineSpec) -> bytes:
    """A whole reply of the chat endpoint."""
    content = " word" * len(spec.ids)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "tool_calls": []},
        "logprobs": {"content": [_chat_logprob(place) for place in range(len(spec.ids))]},
        "finish_reason": "stop",
        "token_ids": spec.ids,
    }
    usage = {"prompt_tokens": 4096, "total_tokens": 4096 + len(spec.ids), "completion_tokens": len(spec.ids)}
    head = {"id": "chatcmpl-88ad4ed126548ee7", "object": "chat.completion", "created": 1795976440, "model": "policy"}
    reply = {**head, "choices": [choice], "usage": usage, "prompt_token_ids": list(range(4096))}
    return json.dumps(reply, separators=(",", ":")).encode()


def engine(spec: EngineSpec) -> web.Application:
    """The fake engine."""
    forms = {"/v1/completions": events(spec), "/v1/chat/completions": chat_events(spec)}
    whole = chat_whole(spec)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": spec.context}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if spec.first:
            await asyncio.sleep(spec.first)
        if b'"stream": false' in body[-200:]:
            if spec.token:
                await asyncio.sleep(spec.token * len(spec.ids))
            return web.Response(body=whole, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in forms[request.path]:
            if spec.token:
                await asyncio.sleep(spec.token * spec.group)
            await response.write(piece)
        return response

    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", answer)
    app.router.add_post("/v1/chat/completions", answer)
    return app


class RelaySpec(msgspec.Struct, kw_only=True):
    """Where the relay sends to."""

    port_file: str
    upstream: str


def relay(spec: RelaySpec) -> web.Application:
    """A bare relay."""

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with request.app["http"].post(spec.upstream + request.path, data=body) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    async def start(app: web.Application) -> None:
        app["http"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def stop(app: web.Application) -> None:
        await app["http"].close()

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", forward)
    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    return app


class GatewaySpec(msgspec.Struct, kw_only=True):
    """The real gateway: its run directory, model directory, engine and number of rollouts."""

    port_file: str
    directory: str
    model: str
    template: str
    engine: str
    rollouts: int
    workers: int = 1
    max_tokens: int = 400


def gateway(spec: GatewaySpec) -> None:
    """Serve until SIGTERM."""
    from whippletree.engines.completions import CompletionsEngine
    from whippletree.gateway import workers
    from whippletree.gateway.config import GatewayConfig
    from whippletree.gateway.keys import load_secret
    from whippletree.gateway.server import Parts, run
    from whippletree.rendering import RenderingConfig, load_renderer
    from whippletree.store import open_store
    from whippletree.types import EngineReport, RolloutSpec, Sampling

    directory = Path(spec.directory)
    with open_store(directory / "store") as store:
        for index in range(spec.rollouts):
            rollout = RolloutSpec(
                rollout_id=f"r{index}",
                group_id="g",
                source="bench",
                task_id="t",
                task_path="",
                harness="bench",
                sampling=Sampling(max_tokens=spec.max_tokens),
            )
            last = store.open_session(rollout)
        last.result()

    def parts(worker: int = 0) -> Parts:
        return Parts(
            store=open_store(directory / "store", instance=f"gateway-{worker}"),
            engines=[CompletionsEngine(spec.engine)],
            renderer=load_renderer(Path(spec.model), RenderingConfig(template=spec.template)),
            secret=load_secret(directory / "secret"),
            reports={"completions": EngineReport(grade="tokens", logprobs="processed", context_length=131072)},
        )

    config = GatewayConfig(workers=spec.workers, max_sessions=20000)
    if spec.workers > 1:
        sys.exit(workers.run(config, parts, ready_file=Path(spec.port_file)))
    run(config, parts, ready_file=Path(spec.port_file))


async def _serve(app: web.Application, port_file: str) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=8192)
    await site.start()
    draft = Path(port_file + ".draft")
    draft.write_text(json.dumps({"port": runner.addresses[0][1], "pid": os.getpid()}))
    draft.rename(port_file)
    await asyncio.Event().wait()


def main() -> None:
    """Run one server."""
    kind, path = sys.argv[1:]
    text = Path(path).read_bytes()
    kinds: dict[str, Any] = {"engine": EngineSpec, "relay": RelaySpec, "gateway": GatewaySpec}
    spec = msgspec.json.decode(text, type=kinds[kind])
    if kind == "gateway":
        gateway(spec)
    else:
        uvloop.run(_serve({"engine": engine, "relay": relay}[kind](spec), spec.port_file))


if __name__ == "__main__":
    main()
