"""Tool calls put together from fragments, however servers send them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.engines.chat_calls import CallAssembler
from whippletree.engines.chat_wire import CallIn
from whippletree.protocols import StreamDelta
from whippletree.types import ToolCall


def joined(deltas: list[StreamDelta]) -> list[ToolCall]:
    """Calls as a consumer of the deltas sees them; each head comes once, before its arguments."""
    calls: list[ToolCall] = []
    for delta in deltas:
        if delta.tool_name or delta.tool_id:
            assert delta.tool_index == len(calls)
            calls.append(ToolCall(id=delta.tool_id, name=delta.tool_name, arguments=delta.arguments))
        elif delta.tool_index >= 0:
            call = calls[delta.tool_index]
            calls[delta.tool_index] = msgspec.structs.replace(call, arguments=call.arguments + delta.arguments)
    return calls


def fragment(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> CallIn:
    function = {"name": name, "arguments": arguments}
    return msgspec.convert({"index": index, "id": id, "function": function}, CallIn)


def assembled(*fragments: CallIn, request_id: str = "r1") -> list[ToolCall]:
    calls = CallAssembler(request_id)
    return joined([delta for one in fragments for delta in calls.feed(one)] + calls.settle())


NAMES = st.sampled_from(["bash", "read", "write"])
CALLS = st.lists(st.tuples(NAMES, st.lists(st.text("{}ab", min_size=1, max_size=4), max_size=4)), min_size=1, max_size=4)
HABITS = ("well-behaved", "no ids", "no index", "id once", "index once", "repeats name", "all at once")


@settings(max_examples=200, deadline=None)
@given(CALLS, st.sampled_from(HABITS))
def test_calls_come_out_as_they_were_made_whatever_the_server_leaves_out(made: list[tuple[str, list[str]]], habit: str) -> None:
    fragments: list[CallIn] = []
    for place, (name, pieces) in enumerate(made):
        index = None if habit == "no index" else place
        given_id = None if habit == "no ids" else f"c{place}"
        if habit == "all at once":
            fragments.append(fragment(index, given_id, name, "".join(pieces)))
            continue
        fragments.append(fragment(index, given_id, name, ""))
        later_id = given_id if habit in ("well-behaved", "no index") else None
        later_index = None if habit in ("index once", "no index") else index
        later_name = name if habit == "repeats name" else ("" if habit == "id once" else None)
        fragments += [fragment(later_index, later_id, later_name, piece) for piece in pieces]
    calls = assembled(*fragments)
    assert [(call.name, call.arguments) for call in calls] == [(name, "".join(pieces)) for name, pieces in made]
    assert len({call.id for call in calls}) == len(made)
    if habit != "no ids":
        assert [call.id for call in calls] == [f"c{place}" for place in range(len(made))]


def test_one_index_for_every_call_does_not_merge_them() -> None:
    calls = assembled(fragment(0, "a", "bash", "{1}"), fragment(0, "b", "bash", "{2}"))
    assert [(call.id, call.arguments) for call in calls] == [("a", "{1}"), ("b", "{2}")]


def test_one_id_for_two_calls_is_made_unique() -> None:
    calls = assembled(fragment(0, "call_1", "bash", "{1}"), fragment(1, "call_1", "bash", "{2}"))
    assert [call.arguments for call in calls] == ["{1}", "{2}"]
    assert calls[0].id == "call_1" != calls[1].id


def test_arguments_under_another_index_than_the_head_go_to_the_open_call() -> None:
    calls = assembled(fragment(0, "a", "bash", ""), fragment(1, None, None, "{}"))
    assert [(call.id, call.name, call.arguments) for call in calls] == [("a", "bash", "{}")]


def test_interleaved_calls_keep_their_own_arguments() -> None:
    parts = [fragment(0, "a", "x", "{"), fragment(1, "b", "y", "["), fragment(0, None, None, "}"), fragment(1, None, None, "]")]
    assert [call.arguments for call in assembled(*parts)] == ["{}", "[]"]


def test_a_name_in_pieces_is_joined_before_the_arguments_and_never_after() -> None:
    parts = [fragment(0, "a", "ba"), fragment(0, None, "sh"), fragment(0, None, None, "{"), fragment(0, None, "bash", "}")]
    assert assembled(*parts) == [ToolCall(id="a", name="bash", arguments="{}")]


def test_made_ids_are_unique_to_the_request_and_the_same_again() -> None:
    first, again, other = (
        assembled(fragment(0, None, "bash", "{}"), fragment(1, "", "bash", "{}"), request_id=name)
        for name in ("r1", "r1", "r2")
    )
    assert first == again
    assert len({call.id for call in first + other}) == 4


def test_arguments_sent_as_an_object_become_text() -> None:
    assert assembled(fragment(0, "a", "bash", {"command": "ls"}))[0].arguments == '{"command":"ls"}'


@pytest.mark.parametrize("arguments", ['{"a": 1}', ""])
def test_a_call_without_a_name_becomes_content(arguments: str) -> None:
    calls = CallAssembler("r1")
    deltas = calls.feed(fragment(0, "a", None, arguments)) + calls.settle() + calls.feed(fragment(0, "a", None, "!"))
    assert "".join(delta.content for delta in deltas) == f"{arguments}!"
    assert joined(deltas) == []
