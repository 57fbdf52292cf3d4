"""Roles with the whole attempt in view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces.roles import Part, assign_roles


def parts(recorder: Any) -> list[tuple[str, str]]:
    return [(node.role, node.conversation) for node in recorder.trace().nodes]


def test_a_conversation_is_main_also_across_a_broken_prefix(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.call([1, 9, 3], [5], base_call_id="c1", prefix_break="template")
    assert parts(recorder) == [("main", "c0")] * 3


def test_the_call_that_a_compaction_comes_from_is_a_compaction(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 30], [31], role="side", parent=0)  # "summarise": taken for a side call when it came
    recorder.call([7, 31], [8], prefix_break="compaction", origin_call_id="c1")
    recorder.call([7, 31, 8, 9], [10], parent=2)
    assert parts(recorder) == [("main", "c0"), ("compaction", "c0"), ("main", "c0"), ("main", "c0")]
    assert [node.excluded for node in recorder.trace().nodes] == [""] * 4


def test_a_compaction_with_a_prompt_of_its_own_is_one_too(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([40, 2], [31], role="side", prefix_break="new_thread")
    recorder.call([7, 31], [8], prefix_break="compaction", origin_call_id="c1")
    assert [role for role, _ in parts(recorder)] == ["main", "compaction", "main"]


def test_a_compaction_that_keeps_early_turns_is_one_too(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.call([1, 2, 3, 4, 5], [31], role="side", parent=1)  # "summarise"
    recorder.call([1, 2, 31], [8], parent=0, base_call_id="c0", origin_call_id="c2")
    recorder.call([1, 2, 31, 8, 9], [10], parent=3)
    assert parts(recorder) == [("main", "c0"), ("main", "c0"), ("compaction", "c0"), ("main", "c0"), ("main", "c0")]


def test_a_subagent_that_compacts_and_keeps_early_turns_stays_one(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([10], [11], role="subagent", origin_call_id="c0", prefix_break="new_thread")
    recorder.call([10, 11, 12], [31], role="subagent", parent=1)
    recorder.call([10, 11, 31], [8], role="subagent", parent=1, base_call_id="c1", origin_call_id="c2")
    assert parts(recorder)[1:] == [("subagent", "c1"), ("compaction", "c1"), ("subagent", "c1")]


def test_interleaved_subagents_keep_to_themselves(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([10], [11], role="subagent", origin_call_id="c0", prefix_break="new_thread")
    recorder.call([20], [21], origin_call_id="c0", prefix_break="new_thread")
    recorder.call([10, 11, 12], [13], parent=1)
    recorder.call([20, 99], [23], base_call_id="c2", prefix_break="harness_edit")
    recorder.call([1, 2, 3], [4], parent=0)
    assert parts(recorder) == [
        ("main", "c0"),
        ("subagent", "c1"),
        ("subagent", "c2"),
        ("subagent", "c1"),
        ("subagent", "c2"),
        ("main", "c0"),
    ]


def test_a_title_that_was_asked_for_first_is_a_side_call_once_the_work_begins(recorder: Any) -> None:
    recorder.call([1], [2], thread="t")
    recorder.call([10], [11], thread="t", tools=4, prefix_break="new_thread")
    recorder.call([10, 11, 12], [13], thread="t", tools=4, parent=1)
    assert parts(recorder) == [("side", "c0"), ("main", "c1"), ("main", "c1")]
    assert [node.excluded for node in recorder.trace().nodes] == ["role side is not trained", "", ""]


def test_without_tools_anywhere_the_first_conversation_is_main(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0)
    assert parts(recorder) == [("main", "c0")] * 2


def test_a_side_call_stays_one_whatever_it_seems_to_come_from(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([10], [11], role="side", origin_call_id="c0", prefix_break="new_thread")
    recorder.call([1, 7], [8], base_call_id="c0", origin_call_id="c0", prefix_break="harness_edit")
    assert parts(recorder) == [("main", "c0"), ("side", "c1"), ("main", "c0")]


def test_a_subagent_that_begins_with_the_main_conversation_is_apart_from_it(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([1, 2, 3], [4], parent=0, role="subagent", origin_call_id="c0")
    recorder.call([1, 2, 3, 4, 5], [6], parent=1)
    recorder.call([1, 2, 8], [9], parent=0)
    assert parts(recorder) == [("main", "c0"), ("subagent", "c1"), ("subagent", "c1"), ("main", "c0")]


def test_a_subagent_that_is_compacted_goes_on_as_a_subagent(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.call([10], [11], role="subagent", origin_call_id="c0", prefix_break="new_thread")
    recorder.call([10, 11, 12], [13], parent=1)
    recorder.call([50, 13], [51], prefix_break="compaction", origin_call_id="c2")
    assert parts(recorder)[2:] == [("compaction", "c1"), ("subagent", "c1")]


def test_a_threads_name_helps_where_nothing_else_does(recorder: Any) -> None:
    recorder.call([1], [2], thread="t")
    recorder.call([10], [11], role="subagent", origin_call_id="c0", thread="agent-7", prefix_break="new_thread")
    recorder.call([5], [6], role="side", thread="t", prefix_break="new_thread")
    recorder.call([77], [78], thread="agent-7", prefix_break="harness_edit")
    recorder.call([88], [89], thread="t", prefix_break="harness_edit")
    assert parts(recorder) == [("main", "c0"), ("subagent", "c1"), ("side", "c2"), ("subagent", "c1"), ("main", "c0")]


def test_what_was_taken_for_a_side_call_is_main_when_the_conversation_goes_on_from_it(recorder: Any) -> None:
    recorder.call([1], [2], role="side")
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.call([7], [8], role="side", prefix_break="new_thread")
    assert [role for role, _ in parts(recorder)] == ["main", "main", "side"]


@given(data=st.data())
def test_without_evidence_every_role_is_the_recorded_one(grow: Callable[..., Any], data: st.DataObject) -> None:
    made = grow(data)
    parents = {node.call_id: node.parent for node in made.trace().nodes}
    found = assign_roles(made.calls, parents)
    assert {part.role for part in found.values()} <= {"main"}
    assert all(found[part.conversation].conversation == part.conversation for part in found.values())
    assert assign_roles([], {}) == {}
    assert all(isinstance(part, Part) for part in found.values())
