"""Turns of chat endpoints that give ids, and the ends of turns. Pure."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.engines.chat_reader import ChatReader
from whippletree.engines.chat_wire import ChatEvent
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.protocols import ChatChunk, StreamDelta

IDS = [20, 21, 22, 2]
LOGPROBS = [-0.1, -0.2, -0.3, -0.01]


def event(fields: dict[str, Any]) -> ChatEvent:
    return msgspec.convert(fields, ChatEvent)


def piece(ids: list[int] | None, logprobs: list[float] | None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    content = None if logprobs is None else {"content": [{"token": "t", "logprob": value} for value in logprobs]}
    return {"choices": [{"index": 0, "delta": delta, "token_ids": ids, "logprobs": content, "finish_reason": finish}]}


HEAD = {"prompt_token_ids": [5, 6, 7], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
TAIL = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}


def read(*events: dict[str, Any]) -> list[ChatChunk]:
    reader = ChatReader("engine", "c-1")
    chunks = [chunk for one in events if (chunk := reader.feed([event(one)])) is not None]
    return [*chunks, reader.end(done=True)]


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(1, 3)), st.sets(st.integers(1, 6)))
def test_ids_come_once_with_the_prompt_first_however_they_are_cut_and_read(cuts: set[int], reads: set[int]) -> None:
    bounds = [0, *sorted(cuts), 4]
    events = [HEAD]
    for start, end in itertools.pairwise(bounds):
        finish = "stop" if end == 4 else None
        events.append(piece(IDS[start:end], LOGPROBS[start:end], finish=finish, content="text that is ours to parse"))
    events.append(TAIL)
    reader = ChatReader("engine", "c-1")
    parts = [0, *sorted(r for r in reads if r < len(events)), len(events)]
    chunks = [reader.feed([event(one) for one in events[a:b]]) for a, b in itertools.pairwise(parts)]
    found = [chunk for chunk in [*chunks, reader.end(done=True)] if chunk is not None]
    assert [token for chunk in found for token in chunk.token_ids] == IDS
    assert [value for chunk in found for value in chunk.logprobs] == LOGPROBS
    assert [chunk.prompt_ids for chunk in found if chunk.token_ids] == [[5, 6, 7]] + [[]] * (len(found) - 2)
    assert not any(chunk.deltas for chunk in found)
    assert (found[-1].prompt_tokens, found[-1].sampled_tokens, found[-1].finish_reason) == (3, 4, "stop")


@pytest.mark.parametrize("missing", ["prompt ids", "ids", "logprobs"])
def test_a_turn_without_one_of_the_columns_is_told_in_text(missing: str) -> None:
    head = {**HEAD, "prompt_token_ids": None} if missing == "prompt ids" else HEAD
    ids = None if missing == "ids" else [20]
    logprobs = None if missing == "logprobs" else [-0.1]
    chunks = read(head, piece(ids, logprobs, content="hi"), piece(None, None, finish="stop"))
    assert [chunk.deltas for chunk in chunks] == [(StreamDelta(content="hi"),), ()]
    assert not any(chunk.token_ids or chunk.logprobs or chunk.prompt_ids for chunk in chunks)


@pytest.mark.parametrize("values", [[], [-0.1, -0.2], [math.nan], [-math.inf], [-9999.0]])
def test_ids_without_one_finite_logprob_each_are_an_error_once_the_turn_has_ids(values: list[float]) -> None:
    with pytest.raises(EngineError, match=r"c-1: (1 token ids came with|logprob)"):
        read(HEAD, piece([20], [-0.1]), piece([21], values))


def test_counts_come_from_usage_wherever_it_is_and_from_the_ids_without_it() -> None:
    assert read(HEAD, piece(IDS, LOGPROBS, finish="length"))[-1].sampled_tokens == 4
    with_usage = {**piece(IDS, LOGPROBS, finish="length"), "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    assert read(HEAD, with_usage)[-1].sampled_tokens == 4


def test_an_answer_that_no_usage_counts_counts_its_pieces() -> None:
    text = [piece(None, None, content="a"), piece(None, None, content="b"), piece(None, None, finish="stop")]
    assert read(*text)[-1].sampled_tokens == 2
    assert read(*text, TAIL)[-1].sampled_tokens == 4


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("max_tokens", "length"), ("end_turn", "stop"), ("content_filter", "stop"), ("cancelled", "abort"), ("length", "length")],
)
def test_finish_words_of_other_servers_have_their_meaning(word: str, meaning: str) -> None:
    assert read(piece(None, None, content="a"), piece(None, None, finish=word))[-1].finish_reason == meaning


def test_a_turn_that_was_cut_is_unavailable_and_an_aborted_one_has_an_end() -> None:
    reader = ChatReader("engine", "c-1")
    reader.feed([event(HEAD), event(piece([20], [-0.1]))])
    with pytest.raises(EngineUnavailable, match="without a finish reason"):
        reader.end(done=False)
    assert (reader.aborted().finish_reason, reader.aborted().sampled_tokens) == ("abort", 1)


def test_neighbouring_pieces_of_one_read_are_joined_and_heads_stay_apart() -> None:
    reader = ChatReader("engine", "c-1")
    calls = [{"index": 0, "id": "c1", "function": {"name": "bash", "arguments": part}} for part in ("{", "}")]
    events = [piece(None, None, reasoning="h"), piece(None, None, reasoning="m"), piece(None, None, content="o")]
    events += [piece(None, None, content="k"), *(piece(None, None, tool_calls=[call]) for call in calls)]
    chunk = reader.feed([event(one) for one in events])
    assert chunk is not None
    assert chunk.deltas == (
        StreamDelta(reasoning="hm"),
        StreamDelta(content="ok"),
        StreamDelta(tool_index=0, tool_id="c1", tool_name="bash"),
        StreamDelta(tool_index=0, arguments="{}"),
    )
