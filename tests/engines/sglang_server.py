"""A local HTTP server with SGLang's native routes, built from its published source: what it accepts, how it answers, and the
habits that matter to a client. It samples from the scripted engine's distribution. It is not SGLang.

Habits that are kept: a stream repeats the whole turn so far unless it is incremental; `ignore_eos` switches stop ids off too;
an abort ends every request whose id begins with the given one; errors of a stream come inside a reply of status 200; a prompt
that is too long is such an error; after a load the served name is the path; labels start as "default".
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from aiohttp import web

from whippletree.engines.scripted import ScriptedEngine
from whippletree.types import GenerateRequest, Sampling, WeightUpdate

LAYERS = 3


class SglangServer:
    """`incremental`: events carry only what is new; `spans`: replies tell weight versions by token; `experts`: per token."""

    def __init__(
        self,
        engine: ScriptedEngine,
        *,
        context: int,
        incremental: bool = False,
        spans: bool = True,
        experts: int = 0,
        newer_routes: bool = True,
    ) -> None:
        self.engine = engine
        self.context = context
        self.incremental = incremental
        self.spans = spans
        self.experts = experts
        self.newer_routes = newer_routes
        self.label = "default"
        self.served_name = "policy"
        self.running: dict[str, str] = {}
        self.asked: list[tuple[str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        route = getattr(self, f"on{request.path.replace('/', '_')}", None)
        if route is None or (request.path == "/model_info" and not self.newer_routes):
            return web.json_response({"detail": "Not Found"}, status=404)
        return await route(request, body)

    # --- generation ---

    async def on_generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        rid, ids, params = body["rid"], body["input_ids"], body["sampling_params"]
        problem = None
        if len(ids) >= self.context:
            problem = f"The input ({len(ids)} tokens) is longer than the model's context length ({self.context} tokens)."
        elif max(ids) >= self.engine.vocabulary:
            problem = "The input_ids contains values greater than the vocab size."
        if not body["stream"]:
            if problem is not None:
                return web.json_response({"error": {"message": problem}}, status=400)
            return web.json_response(await self.scores(rid, ids))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if problem is None:
            async for event in self.events(rid, ids, params, body):
                await response.write(b"data: " + _json(event) + b"\n\n")
        else:
            await response.write(b"data: " + _json({"error": {"message": problem}}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def scores(self, rid: str, ids: list[int]) -> dict[str, Any]:
        scores = [None, *await self.engine.score(ids)]
        entries = [[score, token, None] for score, token in zip(scores, ids, strict=True)]
        meta = {"id": rid, "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": len(ids), "completion_tokens": 0}
        return {"text": "", "output_ids": [], "meta_info": {**meta, "cached_tokens": 0, "input_token_logprobs": entries}}

    async def events(self, rid: str, ids: list[int], params: dict[str, Any], body: dict[str, Any]):
        stops = [] if params["ignore_eos"] else params.get("stop_token_ids", [])
        sampling = Sampling(
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=max(params["top_k"], 0),
            max_tokens=params["max_new_tokens"],
            seed=params.get("sampling_seed"),
        )
        asked = GenerateRequest(request_id=rid, prompt_ids=ids, sampling=sampling, stop_token_ids=stops)
        self.running[rid] = rid
        out: list[int] = []
        entries: list[list[Any]] = []
        spans: list[dict[str, Any]] = []
        told = 0
        try:
            async for chunk in self.engine.generate(asked):
                if chunk.token_ids and (not spans or spans[-1]["version"] != self.label):
                    spans.append({"version": self.label, "start": len(out), "end": len(out)})
                out += chunk.token_ids
                entries += [[lp, token, None] for token, lp in zip(chunk.token_ids, chunk.logprobs, strict=True)]
                if spans:
                    spans[-1]["end"] = len(out)
                first = told if self.incremental else 0
                told = len(out)
                meta: dict[str, Any] = {
                    "id": rid,
                    "finish_reason": _finish(chunk.finish_reason, out),
                    "prompt_tokens": len(ids),
                    "weight_version": self.label,
                    "completion_tokens": len(out),
                    "cached_tokens": chunk.cached_tokens,
                    "output_token_logprobs": entries[first:],
                }
                if self.spans:
                    meta["weight_versions"] = spans
                if chunk.finish_reason and body.get("return_routed_experts") and self.experts:
                    meta["routed_experts"] = self.routed(len(ids) + len(out) - 1)
                yield {"text": "?", "output_ids": out[first:], "meta_info": meta}
        finally:
            del self.running[rid]

    def routed(self, tokens: int) -> str:
        experts = np.arange(tokens * LAYERS * self.experts, dtype="<i4") % 64
        return base64.b64encode(experts.tobytes()).decode()

    async def on_abort_request(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        for rid in list(self.running):
            if rid.startswith(body["rid"]):
                await self.engine.abort(rid)
        return web.Response()

    # --- control ---

    async def on_pause_generation(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert body["mode"] == "retract"
        await self.engine.pause()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def on_continue_generation(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await self.engine.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def on_update_weights_from_disk(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert body["flush_cache"] is True
        if "broken" in body["model_path"]:
            reply = {"success": False, "message": "Failed to update weights: shape. Rolling back.", "num_paused_requests": 0}
            return web.json_response(reply, status=400)
        await self.engine.update_weights(WeightUpdate(directory=body["model_path"], policy_version=int(body["weight_version"])))
        self.label = body["weight_version"]
        self.served_name = body["model_path"]
        return web.json_response({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    # --- information ---

    async def on_model_info(self, request: web.Request, body: Any) -> web.StreamResponse:
        return web.json_response({"model_path": self.served_name, "is_generation": True, "weight_version": self.label})

    on_get_model_info = on_model_info

    async def on_v1_models(self, request: web.Request, body: Any) -> web.StreamResponse:
        card = {"id": self.served_name, "object": "model", "max_model_len": self.context}
        return web.json_response({"object": "list", "data": [card]})

    async def on_get_load(self, request: web.Request, body: Any) -> web.StreamResponse:
        running = (await self.engine.status()).running
        return web.json_response([{"dp_rank": 0, "num_reqs": running, "num_waiting_reqs": 0, "num_tokens": 0}])

    async def on_v1_chat_completions(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        text = '{"number": 7}' if "response_format" in body else "hello"
        for delta, reason in (({"role": "assistant", "content": ""}, None), ({"content": text}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            await response.write(b"data: " + _json({"id": "x", "choices": [choice]}) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _finish(reason: str | None, out: list[int]) -> dict[str, Any] | None:
    if reason is None:
        return None
    if reason == "stop":
        return {"type": "stop", "matched": out[-1]}
    return (
        {"type": "length", "length": len(out)} if reason == "length" else {"type": "abort", "message": "Abort before prefill"}
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
