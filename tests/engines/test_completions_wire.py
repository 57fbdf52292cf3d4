"""Reading the wire of engines: events, turns, refusals, scores. Pure; replies are recordings of a real vLLM."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_parts import PROMPT, recording

from whippletree.engines import wire
from whippletree.engines.wire import EventReader, Piece, TurnReader, Usage, completion_piece, prompt_scores, refusal
from whippletree.errors import ContextOverflow, EngineError, EngineUnavailable
from whippletree.types import TokenChunk, VersionSpan

STREAM = recording("completion_stream").body.encode()


def events_of(data: bytes, cuts: list[int]) -> list[bytes]:
    reader = EventReader()
    bounds = [0, *sorted(cuts), len(data)]
    return [event for a, b in itertools.pairwise(bounds) for event in reader.feed(data[a:b])]


def chunks_of(pieces: list[Piece]) -> list[TokenChunk]:
    turn = TurnReader("engine", "r1", 3)
    chunks = [chunk for piece in pieces if (chunk := turn.feed(piece)) is not None]
    return [*chunks, turn.end()]


# --- events ---


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_events_do_not_depend_on_how_the_stream_was_split(cuts: list[int]) -> None:
    assert events_of(STREAM, cuts) == events_of(STREAM, [])


def test_events_of_single_bytes_are_the_events() -> None:
    events = events_of(STREAM, list(range(1, len(STREAM))))
    assert events == events_of(STREAM, [])
    assert events[-1] == b"[DONE]"
    assert len(events) == 8  # six tokens, the usage, the end


def test_comments_other_fields_and_carriage_returns_are_no_data() -> None:
    data = b": keep-alive\r\n\r\nevent: x\r\nid: 3\r\ndata: {\r\ndata:}\r\n\r\ndata: tail without end"
    assert events_of(data, []) == [b"{\n}"]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "EVENT_LIMIT_BYTES", 1000)
    reader = EventReader()
    with pytest.raises(EngineError, match="no end"):
        for _ in range(20):
            reader.feed(b"data: " + b"x" * 100)


# --- turns ---


def test_a_recorded_stream_becomes_aligned_chunks_with_one_end() -> None:
    chunks = chunks_of([completion_piece(event) for event in events_of(STREAM, [])[:-1]])
    assert sum(len(chunk.token_ids) for chunk in chunks) == 6
    assert all(len(chunk.token_ids) == len(chunk.logprobs) for chunk in chunks)
    assert [chunk.finish_reason for chunk in chunks] == [None] * 5 + ["length"]
    assert {chunk.policy_version for chunk in chunks} == {3}


def test_streamed_and_whole_replies_of_one_seed_are_the_same_turn() -> None:
    streamed = chunks_of([completion_piece(event) for event in events_of(STREAM, [])[:-1]])
    (whole,) = chunks_of([completion_piece(recording("completion_whole").body.encode())])
    assert whole.token_ids == [token for chunk in streamed for token in chunk.token_ids]
    assert whole.logprobs == pytest.approx([value for chunk in streamed for value in chunk.logprobs], abs=1e-5)
    assert whole.finish_reason == "length"


@pytest.mark.parametrize("name", ["completion_without_ids", "completion_without_logprobs", "completion_text_only"])
def test_a_turn_without_ids_or_logprobs_is_refused_with_its_request(name: str) -> None:
    pieces = [completion_piece(event) for event in events_of(recording(name).body.encode(), [])[:-1]]
    with pytest.raises(EngineError, match="request r1"):
        chunks_of(pieces)


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf"), -9999.0])
def test_a_logprob_that_is_no_number_is_refused(value: float | None) -> None:
    with pytest.raises(EngineError, match="sampled token 1"):
        chunks_of([Piece(token_ids=[4, 5], logprobs=[-1.0, value])])


def test_usage_that_counts_other_tokens_is_refused() -> None:
    last = Piece(token_ids=[4], logprobs=[-1.0], finish_reason="stop")
    assert chunks_of([last, Piece(usage=Usage(completion_tokens=1))])[0].finish_reason == "stop"
    with pytest.raises(EngineError, match="usage says 2"):
        chunks_of([last, Piece(usage=Usage(completion_tokens=2))])


def test_tokens_after_the_end_are_refused() -> None:
    with pytest.raises(EngineError, match="after the finish"):
        chunks_of([Piece(finish_reason="stop"), Piece(token_ids=[4], logprobs=[-1.0])])


def test_an_unknown_finish_reason_is_refused() -> None:
    with pytest.raises(EngineError, match="repetition"):
        chunks_of([Piece(finish_reason="repetition")])


def test_a_turn_without_end_is_unavailable() -> None:
    with pytest.raises(EngineUnavailable, match="after 1 tokens"):
        chunks_of([Piece(token_ids=[4], logprobs=[-1.0])])


def test_an_error_inside_the_stream_is_an_engine_error_unless_it_is_the_prompts_length() -> None:
    failed = completion_piece(b'{"error": {"message": "EngineCore died", "code": 500}}')
    with pytest.raises(EngineError, match="EngineCore died") as caught:
        chunks_of([failed])
    assert not isinstance(caught.value, EngineUnavailable)
    overflow = events_of(recording("generate_overflow").body.encode(), [])[0]
    with pytest.raises(ContextOverflow):
        chunks_of([completion_piece(overflow)])


def test_versions_of_the_server_win_over_the_clients() -> None:
    pieces = [
        Piece(token_ids=[4], logprobs=[-1.0]),
        Piece(token_ids=[5], logprobs=[-1.0], policy_version=8),
        Piece(finish_reason="length", versions=(VersionSpan(start=0, policy_version=7),)),
    ]
    chunks = chunks_of(pieces)
    assert [chunk.policy_version for chunk in chunks] == [3, 8, 8]
    assert chunks[-1].versions == (VersionSpan(start=0, policy_version=7),)


# --- refusals and scores ---


def test_refusals_are_typed_by_what_a_caller_can_do() -> None:
    overflow, unknown, failed = (recording(f) for f in ("completion_overflow", "completion_unknown_model", "rpc_failure"))
    assert type(refusal(overflow.status, overflow.body.encode(), "vllm")) is ContextOverflow
    assert type(refusal(unknown.status, unknown.body.encode(), "vllm")) is EngineError
    assert type(refusal(failed.status, failed.body.encode(), "vllm")) is EngineUnavailable
    assert type(refusal(429, b"slow down", "vllm")) is EngineUnavailable
    assert type(refusal(401, b'{"error": "Unauthorized"}', "vllm")) is EngineError
    assert "field required" in str(refusal(422, b'{"detail": [{"msg": "field required"}]}', "vllm"))
    assert "<html>" in str(refusal(502, b"<html>bad gateway</html>", "vllm"))


def test_scores_are_the_logprobs_of_the_prompts_own_tokens() -> None:
    body = recording("completion_scores").body.encode()
    scores = prompt_scores(body, PROMPT, "vllm")
    assert len(scores) == len(PROMPT) - 1
    columns = msgspec.json.decode(body)["choices"][0]["prompt_logprobs"]
    assert scores[4] == columns[5][str(PROMPT[5])]["logprob"]


def test_scores_that_do_not_line_up_with_the_prompt_are_refused() -> None:
    body = recording("completion_scores").body.encode()
    with pytest.raises(EngineError, match="21 prompt logprobs expected, 20"):
        prompt_scores(body, [*PROMPT, 5], "vllm")
    with pytest.raises(EngineError, match="no logprob for prompt token 300 at position 3"):
        prompt_scores(body, [*PROMPT[:3], 300, *PROMPT[4:]], "vllm")
    with pytest.raises(EngineError, match="none came"):
        prompt_scores(recording("completion_whole").body.encode(), PROMPT, "vllm")
