"""Linking calls by exact token prefix, against the plain comparison of every prompt with every earlier call."""

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


def naive_parent(made: Any, number: int) -> str:
    """The rule, word for word: the earlier call that is the longest exact prefix; of equals the recorded parent, else the last
    delivered one, else the last."""
    prompt = made.prompts[number]
    wholes = {n: made.prompts[n] + made.sampled[n] for n in range(number) if made.sampled[n]}
    fits = [n for n, whole in wholes.items() if prompt[: len(whole)] == whole]
    longest = max((len(wholes[n]) for n in fits), default=0)
    same = [n for n in fits if len(wholes[n]) == longest]
    recorded = [n for n in same if f"c{n}" == made.calls[number].parent_call_id]
    delivered = [n for n in same if made.calls[n].delivered]
    return f"c{(recorded or delivered or same)[-1]}" if same else ""


@given(data=st.data())
def test_a_parent_is_the_longest_earlier_prefix_and_nothing_else(grow: Callable[..., Any], data: st.DataObject) -> None:
    made = grow(data)
    for number, node in enumerate(made.trace().nodes):
        assert node.call_id == f"c{number}"
        assert node.prompt_ids.tolist() == made.prompts[number]
        assert node.full_ids.tolist() == made.prompts[number] + made.sampled[number]
        expected = naive_parent(made, number) if made.payloads[number] is not None else ""
        assert node.parent == expected


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


def test_a_recorded_parent_that_is_not_the_longest_is_not_the_parent(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.call([1, 2, 3, 4, 5], [6], parent=0)
    trace = recorder.trace()
    assert [node.parent for node in trace.nodes] == ["", "c0", "c1"]
    assert trace.new_ids(trace.node("c2")).tolist() == [5]


def test_a_call_recorded_after_an_empty_one_goes_on_from_the_nearest_that_sampled(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [], parent=0, versions=())
    recorder.call([1, 2, 3, 4], [], parent=1, versions=())
    recorder.call([1, 2], [3], versions=(VersionSpan(start=0, policy_version=1),))
    recorder.call([1, 2, 3, 4, 5], [6], parent=2)
    trace = recorder.trace()
    assert [node.parent for node in trace.nodes] == ["", "c0", "c0", "c0", "c3"]
    assert trace.new_ids(trace.node("c4")).tolist() == [4, 5]


def test_equal_turns_of_two_calls_are_told_apart_by_record_and_delivery(recorder: Any) -> None:
    recorder.call([1], [2], delivered=False)
    recorder.call([1], [2])
    recorder.call([1], [2], delivered=False)
    recorder.call([1, 2, 7], [5])
    recorder.call([1, 2, 8], [5], parent=0)
    assert [node.parent for node in recorder.trace().nodes] == ["", "", "", "c1", "c0"]


def test_a_conversation_is_a_chain_and_a_new_thread_a_root(recorder: Any) -> None:
    recorder.call([1, 2], [3])
    recorder.call([1, 2, 3, 4], [5], parent=0)
    recorder.call([9], [8], prefix_break="new_thread")
    assert [node.parent for node in recorder.trace().nodes] == ["", "c0", ""]
    assert [node.excluded for node in recorder.trace().nodes] == ["", "", ""]


def test_a_call_that_sampled_nothing_is_nobodys_parent(recorder: Any) -> None:
    recorder.call([1], [], finish_reason="abort", delivered=False, versions=())
    recorder.call([1], [2])
    nodes = recorder.trace().nodes
    assert (nodes[0].excluded, nodes[1].parent, nodes[1].excluded) == ("nothing sampled", "", "")


def test_a_policy_change_within_a_call_is_seen_per_token(recorder: Any) -> None:
    spans = (VersionSpan(start=0, policy_version=3), VersionSpan(start=2, policy_version=4))
    recorder.call([1], [2, 3, 4], versions=spans)
    assert recorder.trace().nodes[0].versions.tolist() == [3, 3, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_tokens": 5}, "fed 5 prompt tokens but 2 are recorded"),
        ({"sampled_tokens": 1}, "sampled 1 tokens but 2 are recorded"),
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


def test_a_call_cannot_go_on_from_one_without_ids(recorder: Any) -> None:
    recorder.failed()
    recorder.call([8, 9], [2, 3], parent_call_id="c0")
    with pytest.raises(AlignmentError, match=r"call c1 .*parent c0 is not among the earlier calls of this attempt with ids"):
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


def without_ids(made: Any, number: int, *, prompt: bool, sampled: bool) -> None:
    """Take ids out of a payload, as an engine that did not give them would have left it."""
    kept = made.payloads[number]
    made.payloads[number] = msgspec.structs.replace(
        kept,
        prompt_delta=kept.prompt_delta if prompt else kept.prompt_delta[:0],
        sampled_ids=kept.sampled_ids if sampled else kept.sampled_ids[:0],
        logprobs=kept.logprobs if sampled else kept.logprobs[:0],
    )


def test_a_call_of_an_engine_without_ids_stands_alone_and_says_so(recorder: Any) -> None:
    recorder.call([1, 2], [3], grade="text", logprob_source="none")
    without_ids(recorder, 0, prompt=False, sampled=False)
    recorder.call([1, 2, 3, 4], [5])
    first, second = recorder.trace().nodes
    assert (first.excluded, first.prompt, len(first.full_ids), first.delivered) == ("no token ids", None, 0, True)
    assert (second.parent, second.excluded) == ("", "")


def test_a_call_whose_prompt_ids_are_missing_stands_alone_and_says_so(recorder: Any) -> None:
    recorder.call([1, 2], [3])
    without_ids(recorder, 0, prompt=False, sampled=True)
    (node,) = recorder.trace().nodes
    assert (node.excluded, node.prompt) == ("prompt ids missing", None)


def test_a_call_with_fewer_ids_than_were_sampled_is_context(recorder: Any) -> None:
    recorder.call([1, 2], [3, 4], sampled_tokens=9)
    recorder.call([1, 2, 3, 4, 5], [6], parent=0)
    first, second = recorder.trace().nodes
    assert (first.excluded, second.parent, second.excluded) == ("incomplete capture", "c0", "")
