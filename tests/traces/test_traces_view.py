"""A rollout as the API gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces import RolloutView, build_samples, rollout_view
from whippletree.types import Rollout, RolloutSpec


def view(made: Any, spec: RolloutSpec) -> RolloutView:
    trace = made.trace()
    rollout = Rollout(spec=spec, state="running", created=1.0, updated=2.0, attempt=1)
    return rollout_view(rollout, trace, build_samples(trace, spec))


@given(data=st.data())
def test_every_call_is_trained_in_one_sample_or_says_why_not(
    grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject
) -> None:
    made = grow(data)
    found = view(made, spec)
    assert [call.call for call in found.calls] == made.calls
    samples = {sample.sample_id: sample for sample in found.samples}
    for call in found.calls:
        assert (call.trained_in == "") == (call.excluded != "")
        assert all(call.call.call_id in samples[name].call_ids for name in call.samples)
        if call.trained_in:
            start, count = call.call.prompt_tokens, call.call.sampled_tokens
            assert all(samples[call.trained_in].trained[start : start + count])


def test_a_view_tells_tree_roles_breaks_and_samples(story: Any, spec: RolloutSpec) -> None:
    found = view(story, spec)
    assert [(call.role, call.parent) for call in found.calls[3:6]] == [("main", "c1"), ("subagent", ""), ("main", "c3")]
    assert found.calls[1].children == ("c2", "c3")
    assert found.breaks == {"first": ("c0",), "new_thread": ("c1", "c4"), "compaction": ("c7",)}
    assert [sample.call_ids for sample in found.samples] == [("c4",), ("c1", "c3", "c6"), ("c7",)]
    assert found.samples[0].trained == [False, True]
    assert found.funnel.roles == {"side": 1, "main": 5, "subagent": 1, "compaction": 1}


def test_a_view_survives_json_with_numbers_that_json_has_not(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.payloads[0].logprobs = np.array([-np.inf], np.float32)
    recorder.call([1, 2, 3], [4], parent=0)
    found = view(recorder, spec)
    assert found.samples[0].logprobs[1] is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=RolloutView) == found
