"""Grading chat endpoints by what they send."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from aiohttp import web
from chat_server import Upstream, hosted, says, sse
from vllm_parts import serving

from whippletree.engines.config import HostedConfig
from whippletree.engines.hosted import HostedEngine
from whippletree.errors import EngineUnavailable
from whippletree.types import EngineReport

LOGITS = [2.0, 1.0, 0.0, 0.5]


class TokenUpstream:
    """A chat endpoint that gives prompt ids, ids and logprobs of a tiny distribution; raw, processed or of something else."""

    def __init__(self, mode: str, *, tools: bool = True, schema: bool = True) -> None:
        self.mode, self.tools, self.schema = mode, tools, schema

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "tools" in body and not self.tools:
            return web.json_response({"error": {"message": "tools are not enabled"}}, status=400)
        if "response_format" in body:
            text = '{"number": 7}' if self.schema else "a number? seven"
            return web.Response(body=sse(says("stop", content=text)), content_type="text/event-stream")
        temperature = body["temperature"]
        weights = [math.exp(logit / temperature) for logit in LOGITS]
        token = random.Random(body.get("seed")).choices(range(4), weights)[0]
        divisor = {"raw": 1.0, "processed": temperature, "neither": 0.5 + token * temperature / 3}[self.mode]
        logprob = LOGITS[token] / divisor - math.log(sum(math.exp(logit / divisor) for logit in LOGITS))
        head = {"prompt_token_ids": [5, 6], "choices": [{"delta": {"role": "assistant"}}]}
        choice = {"delta": {"content": "x"}, "token_ids": [token], "logprobs": {"content": [{"logprob": logprob}]}}
        return web.Response(
            body=sse(head, {"choices": [{**choice, "finish_reason": "stop"}]}), content_type="text/event-stream"
        )


async def report_of(handler: Any, **settings: Any) -> EngineReport:
    async with serving(handler) as url:
        engine = HostedEngine(HostedConfig(base_url=f"{url}/v1", model="m", context=99, **settings))
        try:
            return await engine.probe()
        finally:
            await engine.close()


@pytest.mark.parametrize(
    ("mode", "grade", "logprobs"),
    [("raw", "tokens", "raw"), ("processed", "tokens", "processed"), ("neither", "logprobs", "none")],
)
async def test_an_endpoint_with_ids_is_graded_by_what_its_logprobs_are(mode: str, grade: str, logprobs: str) -> None:
    report = await report_of(TokenUpstream(mode).handle, logprobs=True)
    assert (report.grade, report.logprobs, report.context_length) == (grade, logprobs, 99)


async def test_logprobs_without_ids_are_logprobs_and_nothing_at_all_is_text() -> None:
    logprobs = {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [{"logprob": -0.5}]}, "finish_reason": "stop"}]}
    assert (await report_of(Upstream(sse(logprobs)).handle, logprobs=True)).grade == "logprobs"
    report = await report_of(Upstream(sse(says("stop", content="x"))).handle)
    assert (report.grade, report.logprobs, report.tool_calls, report.structured) == ("text", "none", True, False)


async def test_features_count_only_when_they_were_seen() -> None:
    both = await report_of(TokenUpstream("raw").handle, logprobs=True)
    neither = await report_of(TokenUpstream("raw", tools=False, schema=False).handle, logprobs=True)
    assert (both.tool_calls, both.structured) == (True, True)
    assert (neither.tool_calls, neither.structured) == (False, False)


async def test_an_endpoint_that_refuses_has_no_grade_and_one_that_is_away_raises() -> None:
    refusal = json.dumps({"error": {"message": "no such model"}}).encode()
    report = await report_of(Upstream(refusal, status=404, content_type="application/json").handle)
    assert report.grade == "none"
    assert "no such model" in report.detail
    async with hosted(Upstream(refusal, status=503, content_type="application/json")) as engine:
        with pytest.raises(EngineUnavailable):
            await engine.probe()
