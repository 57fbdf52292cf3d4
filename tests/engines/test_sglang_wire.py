"""Reading SGLang's replies: cumulative, incremental and mixed streams, and what does not add up."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.engines.sglang_wire import SglangTurn, input_scores
from whippletree.engines.turn import TurnReader
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.types import TokenChunk, VersionSpan

IDS = [11, 12, 13, 14, 15, 16, 2]
LOGPROBS = [-0.5 * (place + 1) for place in range(7)]
SPANS = [{"version": "3", "start": 0, "end": 4}, {"version": "4", "start": 4, "end": 7}]


def event(end: int, ids_from: int, entries_from: int, **meta: Any) -> bytes:
    """The event after `end` tokens, whose columns begin at the given places."""
    entries = [[lp, token, None] for token, lp in list(zip(IDS, LOGPROBS, strict=True))[entries_from:end]]
    info = {"id": "r", "prompt_tokens": 20, "completion_tokens": end, "cached_tokens": 5, "weight_version": "3", **meta}
    finish = {"type": "stop", "matched": 2} if end == len(IDS) else None
    return json.dumps(
        {
            "text": "x",
            "output_ids": IDS[ids_from:end],
            "meta_info": {"finish_reason": finish, "output_token_logprobs": entries, **info},
        }
    ).encode()


def turn_of(events: list[bytes], **settings: Any) -> list[TokenChunk]:
    read, turn = SglangTurn(**settings), TurnReader("sglang", "r", 0)
    return [*turn.feed_all(read(one) for one in events), turn.end()]


@settings(max_examples=80, deadline=None)
@given(st.sets(st.integers(1, 6)), st.sampled_from(["cumulative", "incremental", "ids incremental only"]))
def test_the_turn_is_the_same_however_it_is_told(cuts: set[int], form: str) -> None:
    ends = [*sorted(cuts), 7]
    starts = [0, *ends[:-1]]
    events = [
        event(end, 0 if form == "cumulative" else start, start if form == "incremental" else 0)
        for start, end in zip(starts, ends, strict=True)
    ]
    chunks = turn_of(events)
    assert [token for chunk in chunks for token in chunk.token_ids] == IDS
    assert [value for chunk in chunks for value in chunk.logprobs] == LOGPROBS
    assert (chunks[-1].finish_reason, chunks[-1].cached_tokens) == ("stop", 5)


def test_version_spans_are_read_and_a_label_that_is_no_version_is_refused() -> None:
    assert turn_of([event(7, 0, 0, weight_versions=SPANS)])[-1].versions == (
        VersionSpan(start=0, policy_version=3),
        VersionSpan(start=4, policy_version=4),
    )
    assert turn_of([event(7, 0, 0, weight_version="default")])[-1].policy_version == 0
    with pytest.raises(EngineError, match=r"sglang .* 'step-9'"):
        turn_of([event(7, 0, 0, weight_version="step-9")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"output_token_logprobs": [[-0.1, 11, None]]},  # one entry, seven tokens
        {"output_token_logprobs": [[-0.1, token + 1, None] for token in IDS]},  # of other tokens
    ],
)
def test_columns_that_do_not_line_up_are_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"entries came|other tokens"):
        turn_of([event(7, 0, 0, **wrong)])


def test_a_turn_without_logprobs_is_refused_and_one_without_an_end_is_unavailable() -> None:
    with pytest.raises(EngineError, match="7 token ids came with 0 logprobs"):
        turn_of([event(7, 0, 0, output_token_logprobs=None)])
    with pytest.raises(EngineUnavailable, match="after 3 tokens"):
        turn_of([event(3, 0, 0)])


def test_an_abort_with_a_status_is_an_error_and_one_without_is_an_end() -> None:
    with pytest.raises(EngineError, match="too long"):
        turn_of([event(3, 0, 0, finish_reason={"type": "abort", "message": "too long", "status_code": 400})])
    assert turn_of([event(3, 0, 0, finish_reason={"type": "abort", "message": "bye"})])[-1].finish_reason == "abort"


def test_routed_experts_have_the_shape_of_the_sequence_or_are_refused() -> None:
    rows = np.arange(26 * 2 * 4, dtype="<i4") % 60
    text = base64.b64encode(rows.tobytes()).decode()
    experts = turn_of([event(7, 0, 0, routed_experts=text)], experts_per_token=4)[-1].experts
    assert experts is not None
    assert experts.shape == (26, 2, 4)
    assert np.frombuffer(experts.data, "<i2").tolist() == rows.tolist()
    assert turn_of([event(7, 0, 0, routed_experts=text)])[-1].experts is None
    with pytest.raises(EngineError, match="num_experts_per_tok"):
        turn_of([event(7, 0, 0, routed_experts=text)], experts_per_token=3)
    with pytest.raises(EngineError, match="num_experts_per_tok"):
        turn_of([event(7, 0, 0, routed_experts="!")], experts_per_token=4)


def test_scores_are_of_the_asked_ids_or_an_error() -> None:
    def reply(entries: list[list[Any]]) -> bytes:
        return json.dumps({"meta_info": {"input_token_logprobs": entries}}).encode()

    assert input_scores(reply([[None, 5, None], [-1.0, 6, None], [-2.0, 7, None]]), [5, 6, 7]) == [-1.0, -2.0]
    for entries in ([[None, 5, None], [-1.0, 6, None]], [[None, 5, None], [-1.0, 6, None], [-2.0, 8, None]]):
        with pytest.raises(EngineError, match="3 prompt logprobs expected"):
            input_scores(reply(entries), [5, 6, 7])
    with pytest.raises(EngineError, match="no logprob for prompt token 1"):
        input_scores(reply([[None, 5, None], [None, 6, None]]), [5, 6])
    with pytest.raises(msgspec.DecodeError):
        input_scores(b"<html>", [5, 6])
