"""Which calls are trained, and the reasons of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces import TracesConfig, build_trace
from whippletree.traces.tree import Exclusion


@given(data=st.data())
def test_a_call_is_trained_or_has_one_of_the_known_reasons(grow: Callable[..., Any], data: st.DataObject) -> None:
    for node in grow(data).trace().nodes:
        assert node.excluded in get_args(Exclusion)
        assert node.trainable == (node.excluded == "")
        if node.trainable:
            assert node.delivered
            assert len(node.sampled_ids) == len(node.logprobs) == len(node.versions) == node.call.sampled_tokens > 0


def test_of_retries_the_continued_one_counts(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1], [3])
    recorder.call([1, 2, 4], [5], parent=0)
    assert [(n.parent, n.excluded) for n in recorder.trace().nodes] == [("", ""), ("", "superseded"), ("c0", "")]


def test_of_retries_that_nothing_continues_the_last_delivered_one_counts(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1], [3])
    recorder.call([1], [4], delivered=False, finish_reason="abort")
    assert [node.excluded for node in recorder.trace().nodes] == ["superseded", "", "undelivered"]


def test_a_retry_that_sampled_the_same_ids_is_no_second_parent(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1], [2])
    recorder.call([1, 2, 7], [5], parent=0)
    nodes = recorder.trace().nodes
    assert nodes[2].parent == "c0"
    assert [node.excluded for node in nodes] == ["", "superseded", ""]


def test_an_undelivered_call_that_a_later_prompt_continues_was_delivered(recorder: Any) -> None:
    recorder.call([1], [2], delivered=False)
    recorder.call([1, 2, 3], [4], delivered=False)
    assert [(n.delivered, n.excluded) for n in recorder.trace().nodes] == [(True, ""), (False, "undelivered")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish_reason": "error"}, "error"),
        ({"logprob_source": "none"}, "no logprobs"),
        ({"versions": ()}, "no policy version"),
        ({"delivered": False}, "undelivered"),
        ({"grade": "text"}, "no token ids"),
        ({"grade": "logprobs"}, "no token ids"),
        ({"sampled_tokens": 3}, "incomplete capture"),
        ({"constrained": True}, "constrained sampling"),
        ({"role": "side"}, "role side is not trained"),
    ],
)
def test_a_call_that_is_not_trainable_says_why(recorder: Any, changes: dict[str, Any], reason: str) -> None:
    recorder.call([1], [2], **changes)
    assert recorder.trace().nodes[0].excluded == reason


def test_logprobs_that_cannot_be_used_make_a_call_context(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.payloads[0].logprobs = np.array([np.nan], np.float32)
    assert recorder.trace().nodes[0].excluded == "non-finite logprobs"
    recorder.payloads[0].logprobs = np.zeros(0, np.float32)
    assert recorder.trace().nodes[0].excluded == "no logprobs"


def test_raw_logprobs_are_good_at_temperature_one_only(recorder: Any) -> None:
    call = recorder.call([1], [2], logprob_source="raw")
    assert recorder.trace().nodes[0].excluded == ""
    recorder.calls[0] = msgspec.structs.replace(call, sampling=msgspec.structs.replace(call.sampling, temperature=0.7))
    assert recorder.trace().nodes[0].excluded == "raw logprobs"


def test_the_credit_of_roles_is_a_setting(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([5], [6], role="side")
    recorder.call([7], [8], role="subagent", origin_call_id="c0", prefix_break="new_thread")
    recorder.call([1, 2, 9], [3], parent=0, role="compaction")

    def reasons(*roles: str) -> list[str]:
        config = msgspec.convert({"train_roles": roles}, TracesConfig)
        return [node.excluded for node in build_trace(recorder.calls, recorder.payloads, config).nodes]

    assert [node.excluded for node in recorder.trace().nodes] == ["", "role side is not trained", "", ""]
    assert reasons("main", "side") == ["", "", "role subagent is not trained", "role compaction is not trained"]
    assert reasons("side") == ["role main is not trained", "", *reasons("main", "side")[2:]]
