"""Laying steps beside calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import AlignmentError
from whippletree.traces.alignment import align, key_of, normal_arguments, turns_of
from whippletree.traces.atif import VERSION, Agent, Metrics, Step, StepToolCall, Trajectory
from whippletree.types import ToolCall


def steps(*texts: str, **changes: Any) -> list[Step]:
    return [Step(step_id=n, source="agent", message=text, **changes) for n, text in enumerate(texts, start=1)]


def trajectory(made: list[Step]) -> Trajectory:
    return Trajectory(schema_version=VERSION, agent=Agent(name="a", version="1"), steps=made)


def calls(recorder: Any, *texts: str) -> Any:
    for text in texts:
        recorder.call([len(recorder.calls) + 1], [ord(letter) for letter in text] or [1])
        recorder.said(text)
    return recorder.trace().nodes


TEXTS = st.lists(st.sampled_from("abc"), max_size=7)


@given(said=TEXTS, captured=TEXTS)
def test_pairs_cross_nowhere_and_nothing_gets_lost(record: type[Any], said: list[str], captured: list[str]) -> None:
    nodes = calls(record(), *captured)
    turns = turns_of(trajectory(steps(*said)), "")
    found = align(turns, nodes)
    left, right = [turns.index(turn) for turn, _ in found.pairs], [nodes.index(node) for _, node in found.pairs]
    assert left == sorted(set(left))
    assert right == sorted(set(right))
    assert sorted([*left, *(turns.index(turn) for turn in found.turns)]) == list(range(len(said)))
    assert sorted([*right, *(nodes.index(node) for node in found.nodes)]) == list(range(len(captured)))
    if said == captured:
        assert not found.turns
        assert not found.nodes


def test_a_dropped_turn_does_not_shift_the_others(recorder: Any) -> None:
    """The harness dropped the second turn and rewrote the third: counts tell which is which."""
    nodes = calls(recorder, "look", "a malformed call", "tidy", "done")
    turns = turns_of(
        trajectory(
            [
                Step(step_id=1, source="agent", message="look"),
                Step(step_id=2, source="agent", message="TIDY", metrics=Metrics(completion_tokens=4)),
                Step(step_id=3, source="agent", message="done"),
            ]
        ),
        "",
    )
    found = align(turns, nodes)
    assert [(turn.step.step_id, node.call_id) for turn, node in found.pairs] == [(1, "c0"), (2, "c2"), (3, "c3")]
    assert [node.call_id for node in found.nodes] == ["c1"]


def test_a_gap_too_large_to_search_is_paired_by_place(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whippletree.traces.alignment.MOST_CELLS", 0)
    nodes = calls(recorder, "a", "b")
    found = align(turns_of(trajectory(steps("x", "y", "z")), ""), nodes)
    assert [(turn.step.message, node.call_id) for turn, node in found.pairs] == [("x", "c0"), ("y", "c1")]
    assert [turn.step.message for turn in found.turns] == ["z"]


def test_only_model_turns_count() -> None:
    made = [
        Step(step_id=1, source="user", message="u"),
        Step(step_id=2, source="agent", message="copied", is_copied_context=True),
        Step(step_id=3, source="agent", message="written by the harness", llm_call_count=0),
        Step(step_id=4, source="agent", message="sampled"),
        Step(step_id=5, source="agent", message="two calls", llm_call_count=2),
    ]
    turns = turns_of(trajectory(made), "sub")
    assert [(turn.step.step_id, turn.last, turn.trajectory) for turn in turns] == [
        (4, True, "sub"),
        (5, False, "sub"),
        (5, True, "sub"),
    ]


def test_turns_are_equal_on_a_normal_form(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.said(" hi \n", calls=(ToolCall(id="x", name="bash", arguments='{ "b":1,\n"a": [2] }'),))
    told = StepToolCall(tool_call_id="y", function_name="bash", arguments={"a": [2], "b": 1})
    (turn,) = turns_of(trajectory(steps("hi", tool_calls=[told])), "")
    assert turn.key == key_of(recorder.trace().nodes[0])
    assert normal_arguments("") == normal_arguments({}) == b"{}"
    assert normal_arguments(' {"a": ') == b'{"a":'


def test_a_reply_that_cannot_be_read_names_the_call(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.payloads[0] = msgspec.structs.replace(recorder.payloads[0], reply_json=b"{")
    with pytest.raises(AlignmentError, match="call c0: its reply cannot be read"):
        key_of(recorder.trace().nodes[0])
