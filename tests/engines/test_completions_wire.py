"""Reading the wire of engines: turns, refusals, scores. Pure; replies are recordings of a real vLLM."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_parts import PROMPT, recording

from whippletree.engines.events import EventReader
from whippletree.engines.turn import TurnReader
from whippletree.engines.wire import Piece, Usage, completion_piece, completion_pieces, prompt_scores, refusal
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


# --- turns ---


def test_a_recorded_stream_becomes_aligned_chunks_with_one_end() -> None:
    chunks = chunks_of([completion_piece(event) for event in events_of(STREAM, [])[:-1]])
    assert sum(len(chunk.token_ids) for chunk in chunks) == 6
    assert all(len(chunk.token_ids) == len(chunk.logprobs) for chunk in chunks)
    assert [chunk.finish_reason for chunk in chunks] == [None] * 5 + ["length"]
    assert {chunk.policy_version for chunk in chunks} == {3}


def token(token_ids: list[int], logprobs: list[float], **fields: object) -> bytes:
    """One event as a server sends it."""
    choice = {"text": "", "token_ids": token_ids, "logprobs": {"token_logprobs": logprobs}, **fields}
    return msgspec.json.encode({"choices": [choice]})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=12), st.booleans())
def test_a_read_gives_the_same_turn_as_its_events_one_by_one(sizes: list[tuple[int, int]], usage: bool) -> None:
    events = [token([5] * size, [-0.5] * size, policy_version=version) for size, version in sizes]
    events.append(token([2], [-0.1], finish_reason="stop", policy_version=1))
    total = sum(size for size, _ in sizes) + 1
    if usage:
        events.append(msgspec.json.encode({"choices": [], "usage": {"completion_tokens": total}}))
    joined, single = completion_pieces(events), [completion_piece(event) for event in events]
    assert len(joined) <= len(single)
    for pieces in (joined, single):
        turn = TurnReader("engine", "r1", 0)
        chunks = [*turn.feed_all(pieces), turn.end()]
        labelled = [(i, c.policy_version) for c in chunks for i in c.token_ids]
        assert labelled == [(5, version) for size, version in sizes for _ in range(size)] + [(2, 1)]
        assert len([value for c in chunks for value in c.logprobs]) == total


def test_events_that_make_up_for_each_other_are_not_joined() -> None:
    turn = TurnReader("engine", "r1", 0)
    with pytest.raises(EngineError, match="2 token ids came with 1 logprobs"):
        turn.feed_all(completion_pieces([token([5], [-0.1]), token([6, 7], [-0.1]), token([8], [-0.1, -0.2])]))


def test_pieces_of_one_version_become_one_chunk_and_others_stay_apart() -> None:
    turn = TurnReader("engine", "r1", 3)
    pieces = [Piece(token_ids=[5 + i], logprobs=[-float(i)], policy_version=i // 3) for i in range(7)]
    chunks = turn.feed_all([*pieces, Piece(token_ids=[2], logprobs=[-9.0], finish_reason="stop")])
    assert [(chunk.token_ids, chunk.policy_version) for chunk in chunks] == [([5, 6, 7], 0), ([8, 9, 10], 1), ([11], 2)]
    assert [value for chunk in chunks for value in chunk.logprobs] == [-float(i) for i in range(7)]
    assert turn.end().token_ids == [2]


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
