"""Linking calls by exact token prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import AlignmentError
from whippletree.traces import build_trace
from whippletree.types import VersionSpan


@given(data=st.data())
def test_a_parent_is_the_longest_earlier_prefix_and_nothing_else(grow: Callable[..., Any], data: st.DataObject) -> None:
    made = grow(data)
    for number, node in enumerate(made.trace().nodes):
        fits = [
            (len(made.prompts[n]) + len(made.sampled[n]), f"c{n}")
            for n in range(number)
            if made.sampled[n]
            and made.prompts[number][: len(made.prompts[n]) + len(made.sampled[n])] == made.prompts[n] + made.sampled[n]
        ]
        assert node.call_id == f"c{number}"
        assert node.prompt_ids.tolist() == made.prompts[number]
        longest = max((length for length, _ in fits), default=0)
        assert (node.parent in [call_id for length, call_id in fits if length == longest]) if fits else node.parent == ""


@given(data=st.data())
def test_children_and_parents_agree_and_every_call_is_on_record(grow: Callable[..., Any], data: st.DataObject) -> None:
    trace = grow(data).trace()
    for node in trace.nodes:
        assert [child.call_id for child in trace.nodes if child.parent == node.call_id] == list(node.children)
        assert node.delivered == (node.call.delivered or bool(node.children))


@given(data=st.data())
def test_the_recorded_parent_changes_storage_only(grow: Callable[..., Any], data: st.DataObject) -> None:
    """A gateway that did not bridge stores whole prompts; the tree is the same but for which of two equal calls is a parent."""
    made = grow(data)
    plain = type(made)()
    for call, payload, prompt, sampled in zip(made.calls, made.payloads, made.prompts, made.sampled, strict=True):
        if payload is None:
            plain.failed()
        else:
            plain.call(prompt, sampled, delivered=call.delivered)
    for one, other in zip(made.trace().nodes, plain.trace().nodes, strict=True):
        assert one.prompt_ids.tolist() == other.prompt_ids.tolist()
        parents = [made.trace().node(node.parent).full_ids.tolist() if node.parent else [] for node in (one, other)]
        assert parents[0] == parents[1]


def test_a_conversation_is_a_chain_and_a_new_thread_a_root(recorder: Any) -> None:
    recorder.call([1, 2], [3])
    recorder.call([1, 2, 3, 4], [5], parent=0)
    recorder.call([9], [8], prefix_break="new_thread")
    assert [node.parent for node in recorder.trace().nodes] == ["", "c0", ""]
    assert [node.excluded for node in recorder.trace().nodes] == ["", "", ""]


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


def test_a_call_that_sampled_nothing_is_nobodys_parent(recorder: Any) -> None:
    recorder.call([1], [], finish_reason="abort", delivered=False, versions=())
    recorder.call([1], [2])
    nodes = recorder.trace().nodes
    assert (nodes[0].excluded, nodes[1].parent, nodes[1].excluded) == ("nothing sampled", "", "")


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


def test_a_policy_change_within_a_call_is_seen_per_token(recorder: Any) -> None:
    spans = (VersionSpan(start=0, policy_version=3), VersionSpan(start=2, policy_version=4))
    recorder.call([1], [2, 3, 4], versions=spans)
    assert recorder.trace().nodes[0].versions.tolist() == [3, 3, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_tokens": 5}, "fed 5 prompt tokens but 2 are recorded"),
        ({"sampled_tokens": 5}, "sampled 5 tokens but 2 are recorded"),
        ({"parent_call_id": "c7"}, "parent c7 is not among the earlier calls"),
        ({"versions": (VersionSpan(start=1, policy_version=3),)}, r"versions start at \[1\] of 2 tokens"),
        ({"versions": (VersionSpan(start=0, policy_version=3), VersionSpan(start=2, policy_version=4))}, r"\[0, 2\] of 2"),
    ],
)
def test_a_record_that_contradicts_itself_is_an_error_that_names_the_call(
    recorder: Any, changes: dict[str, Any], words: str
) -> None:
    recorder.call([1], [2])
    recorder.call([8, 9], [2, 3], **changes)
    with pytest.raises(AlignmentError, match=rf"call c1 \(number 1 of rollout r, attempt 1\).*{words}"):
        recorder.trace()


def test_logprobs_of_another_length_name_the_call(recorder: Any) -> None:
    recorder.call([1], [2, 3])
    recorder.payloads[0].logprobs = np.zeros(1, np.float32)
    with pytest.raises(AlignmentError, match=r"call c0 .*2 sampled tokens have 1 logprobs"):
        recorder.trace()


def test_calls_and_payloads_must_pair_up(recorder: Any) -> None:
    recorder.call([1], [2])
    with pytest.raises(AlignmentError, match="1 calls but 0 payloads"):
        build_trace(recorder.calls, [])
    with pytest.raises(AlignmentError, match="c0 is there twice"):
        build_trace(recorder.calls * 2, recorder.payloads * 2)


def test_calls_are_taken_by_index_whatever_their_order(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    trace = build_trace(recorder.calls[::-1], recorder.payloads[::-1])
    assert [node.call_id for node in trace.nodes] == ["c0", "c1"]
    assert trace.node("c1").parent == "c0"
