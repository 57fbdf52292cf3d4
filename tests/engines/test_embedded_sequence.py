"""Chunks hold every sampled token once and never mix policy versions."""

from __future__ import annotations

from engine_parts import make_sequence
from hypothesis import given
from hypothesis import strategies as st

from whippletree.types import TokenChunk


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=1, max_size=30))
def test_chunks_joined_are_the_answer_and_each_has_one_version(steps: list[tuple[int, bool]]) -> None:
    sequence = make_sequence("r", [9, 9], max_tokens=len(steps))
    version = 0
    expected: list[tuple[int, int]] = []
    chunks: list[TokenChunk] = []
    for token, (bump, take) in enumerate(steps):
        version += bump
        sequence.add(token + 100, -float(token), version, context=1000)
        expected.append((token + 100, version))
        if take:
            chunks += sequence.take(version)
    chunks += [] if chunks and chunks[-1].finish_reason else sequence.take(version)
    got = [(token, chunk.policy_version) for chunk in chunks for token in chunk.token_ids]
    assert got == expected
    assert [logprob for chunk in chunks for logprob in chunk.logprobs] == [-float(token) for token in range(len(steps))]
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_stop_beats_length_and_the_context_is_a_length() -> None:
    stopped = make_sequence("a", [1], stop=[7], max_tokens=1)
    stopped.add(7, 0.0, 0, context=10)
    assert (stopped.finish_reason, stopped.stop_token) == ("stop", 7)
    full = make_sequence("b", [1, 2], max_tokens=50)
    full.add(3, 0.0, 0, context=3)
    assert full.finish_reason == "length"


def test_an_end_without_new_tokens_is_an_empty_chunk() -> None:
    sequence = make_sequence("r", [1])
    sequence.finish_reason = "abort"
    assert sequence.take(4) == [TokenChunk(token_ids=[], logprobs=[], policy_version=4, finish_reason="abort")]
