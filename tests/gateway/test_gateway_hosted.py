"""A hosted chat API behind the gateway: harnesses are answered, nothing is trainable."""

from __future__ import annotations

import json
from typing import Any

from chat_server import Upstream, hosted, says, sse

CALL = {"index": 0, "id": "c1", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
USAGE = {"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": 5}}
ANSWER = sse(says(reasoning_content="hm"), says(content="I look"), says(tool_calls=[CALL]), says("tool_calls"), USAGE)
GO = [{"role": "user", "content": "go"}]


def probed(answer: bytes) -> list[bytes]:
    """The probe's three requests come first."""
    return [sse(says("stop", content="hello"))] * 3 + [answer]


async def test_a_call_is_answered_and_recorded_below_tokens(make_world: Any) -> None:
    upstream = Upstream(probed(ANSWER))
    async with hosted(upstream) as engine, make_world(engines=[engine]) as world:
        status, reply = await world.chat(GO)
        (call,) = world.calls()
    message = reply["choices"][0]["message"]
    assert (status, message["content"], message["reasoning_content"]) == (200, "I look", "hm")
    assert [(one["id"], one["function"]["name"]) for one in message["tool_calls"]] == [("c1", "bash")]
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (31, 5)
    assert (call.grade, call.logprob_source, call.sampled_tokens, call.replica) == ("text", "none", 5, "hosted")
    assert upstream.asked[3]["messages"] == GO
    assert upstream.asked[3]["tools"][0]["type"] == "function"


async def test_an_error_of_the_api_reaches_the_harness_with_its_text(make_world: Any) -> None:
    upstream = Upstream(probed(sse({"error": {"code": "1210", "message": "bad parameter"}})))
    async with hosted(upstream) as engine, make_world(engines=[engine]) as world:
        status, reply = await world.chat(GO)
        calls = world.calls()
    assert status >= 500
    assert "bad parameter" in json.dumps(reply)
    assert all(call.error for call in calls)


async def test_a_busy_api_is_asked_again_when_it_wants_to_be(make_world: Any) -> None:
    busy = sse({"error": {"code": 429, "message": "slow down"}})
    upstream = Upstream([*probed(busy), busy, sse(says("stop", content="at last"))])
    async with hosted(upstream) as engine, make_world(engines=[engine]) as world:
        status, reply = await world.chat(GO)
    assert (status, reply["choices"][0]["message"]["content"]) == (200, "at last")
    assert len(upstream.asked) == 6
