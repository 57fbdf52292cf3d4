"""What is kept in memory of each conversation's last call."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.gateway.leaves import Leaf, Leaves, Prints, Recent
from whippletree.gateway.lineage import chained, form, tools_fingerprint
from whippletree.types import ChatRequest, Message, ToolSpec

TEXTS = ("a", "b", "c")
TOOLS = (ToolSpec(name="bash", parameters={"type": "object"}),)


def request(texts, tools=TOOLS):
    roles = ("user", "assistant")
    messages = tuple(Message(role=roles[place % 2], content=text) for place, text in enumerate(texts))
    return ChatRequest(model="m", messages=messages, tools=tools)


def fresh(asked):
    tools = tools_fingerprint(asked.tools)
    forms = [form(message) for message in asked.messages]
    return Prints(tools, forms, chained(tools, forms))


def leaf(asked, size=10):
    ids = np.zeros(size, np.int32)
    return Leaf(ids=ids, text=b"x" * size, json=b"[]", tools=asked.tools, messages=asked.messages, prints=fresh(asked))


def same(one, other):
    return (one.tools, one.forms, one.after) == (other.tools, other.forms, other.after)


@settings(max_examples=200)
@given(
    st.lists(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6), max_size=8),
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=8),
    st.booleans(),
)
def test_fingerprints_by_way_of_a_leaf_are_those_of_the_messages(recorded, asked, tools):
    recent = Recent(Leaves(10**9))
    for number, texts in enumerate(recorded):
        recent.add(str(number), leaf(request(texts)), "")
    made = request(asked, TOOLS if tools else ())
    assert same(recent.prints(made), fresh(made))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4000)), max_size=30))
def test_the_leaves_stay_within_their_limit(steps):
    leaves = Leaves(20_000)
    for name, size in steps:
        leaves.put(str(name), leaf(request(["a"]), size))
        kept = [leaves.get(str(number)) for number in range(6)]
        assert leaves.size == sum(one.size for one in kept if one is not None) <= 20_000


def test_a_conversation_keeps_the_leaf_of_its_last_call():
    leaves = Leaves(10**9)
    recent = Recent(leaves)
    recent.add("one", leaf(request(["a"])), "")
    recent.add("two", leaf(request(["a", "b", "c"])), "one")
    recent.add("other", leaf(request(["b"])), "")
    assert leaves.get("one") is None
    assert None not in (leaves.get("two"), leaves.get("other"))
    recent.clear()
    assert leaves.size == 0


def test_many_conversations_of_one_attempt_are_bounded():
    leaves = Leaves(10**9)
    recent = Recent(leaves)
    for number in range(200):
        recent.add(str(number), leaf(request(["a"])), "")
    kept = [number for number in range(200) if leaves.get(str(number)) is not None]
    assert len(kept) < 30
    assert kept[-1] == 199
