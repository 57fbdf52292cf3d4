"""whippletree/loop/sft/examples.py: what counts as the same example, and a balanced choice."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whippletree.loop.sft.examples import (
    ChatExample,
    Origin,
    TokenExample,
    balanced,
    chat_example,
    chat_key,
    to_message,
    to_tool,
    token_key,
    unique,
)
from whippletree.types import Message, ToolCall, ToolSpec

ORIGIN = Origin(run="r", rollout_id="a", source="s", task_id="t", harness="h", reward=1.0, tokens=5)
BASH = ToolSpec(name="bash", description="run", parameters={"type": "object", "properties": {"command": {"type": "string"}}})
sizes = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), max_size=30)


def line(*ids: str, command: str = "ls", call_id: str = "c", tools: tuple[ToolSpec, ...] = (BASH,)) -> ChatExample:
    """A conversation in which each tool call has one of these ids."""
    messages = [Message(role="user", content="go")]
    for name in ids:
        messages.append(Message(role="assistant", tool_calls=(ToolCall(id=name, name="bash", arguments=command),)))
        messages.append(Message(role="tool", content="out", tool_call_id=name))
    return chat_example(ORIGIN, call_id, messages, Message(role="assistant", content="done", reasoning="hm"), tools)


def test_a_line_says_which_message_is_learned_and_holds_all_that_is_shown():
    found = line("x", "y")
    assert found.target == len(found.messages) - 1 == 5
    assert [to_message(message).role for message in found.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    reply = to_message(found.messages[found.target])
    assert reply == Message(role="assistant", content="done", reasoning="hm")
    assert to_message(found.messages[1]).tool_calls == (ToolCall(id="x", name="bash", arguments="ls"),)
    assert to_message(found.messages[2]).tool_call_id == "x"
    assert [to_tool(tool) for tool in found.tools] == [BASH]
    assert msgspec.json.decode(msgspec.json.encode(found), type=ChatExample) == found


def test_ids_of_tool_calls_do_not_tell_examples_apart_but_words_do():
    assert chat_key(line("x", "y")) == chat_key(line("p", "q", call_id="other"))
    different = [line("x", "x"), line("x"), line("x", "y", command="ls "), line("x", "y", tools=())]
    assert len({chat_key(one) for one in [line("x", "y"), *different]}) == 5


def tokens(ids: list[int], trained: list[bool], name: str = "s") -> TokenExample:
    return TokenExample(origin=ORIGIN, sample_id=name, input_ids=np.array(ids, np.int32), trained=np.array(trained, np.bool_))


def test_rows_are_the_same_with_the_same_ids_and_marks():
    one = tokens([1, 2, 3], [False, True, True])
    assert token_key(one) == token_key(tokens([1, 2, 3], [False, True, True], name="other"))
    assert token_key(one) != token_key(tokens([1, 2, 3], [False, False, True]))
    assert token_key(one) != token_key(tokens([1, 2, 4], [False, True, True]))


@given(st.lists(st.integers(0, 5)))
def test_the_first_of_each_kind_is_kept_in_order(values):
    kept, left = unique(values, lambda value: value)
    assert kept == list(dict.fromkeys(values))
    assert sorted(kept + left) == sorted(values)


@given(sizes, st.booleans(), st.integers(0, 60), st.integers(0, 3))
def test_no_harness_has_more_than_its_limit_and_what_fits_is_not_left_out(found, even, limit, seed):
    kept = balanced(found, even=even, limit=limit, seed=seed)
    assert kept == balanced(found, even=even, limit=limit, seed=seed)
    totals: dict[str, int] = defaultdict(int)
    chosen: dict[str, int] = defaultdict(int)
    for (harness, size), mark in zip(found, kept, strict=True):
        totals[harness] += size
        chosen[harness] += size * mark
    if not even and not limit:
        assert all(kept)
    for harness, total in totals.items():
        bound = min([min(totals.values()) if even else total, *([limit] if limit else [])])
        assert chosen[harness] <= bound
        left = [size for (name, size), mark in zip(found, kept, strict=True) if name == harness and not mark]
        assert all(chosen[harness] + size > bound for size in left)
