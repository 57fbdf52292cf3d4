"""Counts in the usage of a reply: those of the record, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from readers import read_stream, read_whole

from whippletree.gateway.dialects import ReplyHead
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, ChatRequest, Message, ParsedMessage, Sampling

CALL = Call(
    call_id="c-1",
    rollout_id="r",
    attempt=1,
    index=0,
    digest="d",
    prompt_tokens=100,
    sampled_tokens=30,
    finish_reason="stop",
    times=CallTimes(received=1.0),
    sampling=Sampling(),
    cached_tokens=64,
    reasoning_tokens=12,
)
MESSAGE = ParsedMessage(content="done", reasoning="why", reasoning_tokens=12)
ASKED = ChatRequest(model="policy", messages=(Message(role="user", content="hi"),), stream=True, include_usage=True)
WHERE = {
    "chat": lambda usage: usage["completion_tokens_details"]["reasoning_tokens"],
    "responses": lambda usage: usage["output_tokens_details"]["reasoning_tokens"],
    "gemini": lambda usage: usage["thoughtsTokenCount"],
}


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_the_counts_add_up_whole_and_streamed(name: str):
    dialect = DIALECTS[name]
    head = ReplyHead(call_id="c-1", model="policy", created=1, prompt_tokens=100)
    whole = read_whole(name, dialect.reply(head, CALL, MESSAGE))
    assert whole.counts == (100, 64, 30)
    asked = ReplyHead(call_id="c-1", model="policy", created=1, prompt_tokens=100, request=ASKED)
    writer = dialect.stream(asked)
    stream = writer.delta(StreamDelta(reasoning="why")) + writer.delta(StreamDelta(content="done"))
    assert read_stream(name, stream + writer.end(CALL, MESSAGE)).counts == (100, 64, 30)


def test_thinking_is_counted_apart_where_the_dialect_has_a_place_for_it():
    head = ReplyHead(call_id="c-1", model="policy", created=1, prompt_tokens=100)
    for name, where in WHERE.items():
        reply: dict[str, Any] = json.loads(DIALECTS[name].reply(head, CALL, MESSAGE))
        usage = reply.get("usage") or reply["usageMetadata"]
        assert where(usage) == 12
