"""Samples: every delivered token trained once, under the prompt that was fed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces import build_samples
from whippletree.types import RolloutSpec


@given(data=st.data())
def test_each_trainable_token_is_trained_exactly_once_under_its_prompt(
    grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject
) -> None:
    made = grow(data)
    trace = made.trace()
    seen: Counter[tuple[str, int]] = Counter()
    for sample in build_samples(trace, spec):
        covered = np.zeros(len(sample.token_ids), np.bool_)
        for call_id in sample.call_ids:
            number = int(call_id[1:])
            prompt, sampled = made.prompts[number], made.sampled[number]
            assert sample.token_ids[: len(prompt) + len(sampled)].tolist() == prompt + sampled
            for place in range(len(sampled)):
                covered[len(prompt) + place] = True
                if sample.trained[len(prompt) + place]:
                    seen[call_id, place] += 1
        assert not (sample.trained & ~covered).any()
    expected = {(node.call_id, place) for node in trace.nodes if node.trainable for place in range(len(node.sampled_ids))}
    assert set(seen) == expected
    assert set(seen.values()) <= {1}


@given(data=st.data())
def test_only_delivered_sampled_tokens_are_trained(grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject) -> None:
    """Judged from the record alone: a call is delivered by its flag, or because a later prompt contains its reply."""
    made = grow(data)
    trained = sum(int(sample.trained.sum()) for sample in build_samples(made.trace(), spec))
    delivered = 0
    for number, call in enumerate(made.calls):
        whole = made.prompts[number] + made.sampled[number]
        continued = any(made.prompts[later][: len(whole)] == whole for later in range(number + 1, len(made.calls)))
        delivered += len(made.sampled[number]) if call.delivered or continued else 0
    assert trained <= delivered


@given(data=st.data())
def test_columns_line_up_with_the_record(grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject) -> None:
    made = grow(data)
    for sample in build_samples(made.trace(), spec):
        length = len(sample.token_ids)
        assert len(sample.trained) == len(sample.logprobs) == len(sample.versions) == length
        assert (sample.token_ids.dtype, sample.trained.dtype) == (np.int32, np.bool_)
        assert (sample.logprobs.dtype, sample.versions.dtype) == (np.float32, np.int32)
        assert ((sample.versions >= 0) == sample.trained).all()
        expected = np.zeros(length, np.float32)
        for call_id in sample.call_ids:
            number = int(call_id[1:])
            start = len(made.prompts[number])
            expected[start : start + len(made.sampled[number])] = made.payloads[number].logprobs
        assert (sample.logprobs == expected).all()
        assert (sample.logprobs[sample.trained] < 0).all()


@given(data=st.data())
def test_no_sample_is_without_a_trained_token_and_ids_are_unique(
    grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject
) -> None:
    samples = build_samples(grow(data).trace(), spec)
    assert all(sample.trained.any() for sample in samples)
    assert len({sample.sample_id for sample in samples}) == len(samples)


def test_a_conversation_is_one_sample(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1, 2], [3, 4])
    recorder.call([1, 2, 3, 4, 5], [6], parent=0)
    (sample,) = build_samples(recorder.trace(), spec)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert sample.trained.tolist() == [False, False, True, True, False, True]
    assert sample.versions.tolist() == [-1, -1, 0, 0, -1, 1]
    assert (sample.rollout_id, sample.group_id, sample.sample_id) == ("r", "g", "r.1")
    assert sample.call_ids == ("c0", "c1")


def test_a_shared_prefix_is_trained_in_the_first_path_only(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.call([1, 2, 9], [8], parent=0)
    first, second = build_samples(recorder.trace(), spec)
    assert first.trained.tolist() == [False, True, False, True]
    assert second.trained.tolist() == [False, False, False, True]
    assert second.token_ids.tolist() == [1, 2, 9, 8]


def test_an_undelivered_end_is_left_off(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0, delivered=False, finish_reason="abort")
    recorder.call([1, 2, 5], [6], parent=0)
    (sample,) = build_samples(recorder.trace(), spec)
    assert sample.token_ids.tolist() == [1, 2, 5, 6]


def test_a_call_without_logprobs_is_context_for_the_next(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2], logprob_source="none")
    recorder.call([1, 2, 3], [4], parent=0)
    (sample,) = build_samples(recorder.trace(), spec)
    assert sample.trained.tolist() == [False, False, False, True]


def test_a_rollout_without_trainable_calls_has_no_sample(recorder: Any, spec: RolloutSpec) -> None:
    assert build_samples(recorder.trace(), spec) == []
    recorder.failed()
    recorder.call([1], [2], delivered=False)
    assert build_samples(recorder.trace(), spec) == []
