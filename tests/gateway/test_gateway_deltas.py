"""Stored requests: what is left out comes back, and what is new is all that is stored."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import StoreError
from whippletree.gateway.deltas import pack, unpack
from whippletree.gateway.digest import fields_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
ELEMENTS = st.lists(st.sampled_from(["a", "b", {"role": "user"}, [1, 2], 7, None]), max_size=9)
BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "tools", "whippletree_base", "x"]), VALUES | ELEMENTS, max_size=5
)


def body(messages, **fields):
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def chained(bodies, base=lambda number: number - 1):
    """What is stored of bodies, each against the one that `base` names."""
    stored, skeletons = [], []
    for number, one in enumerate(bodies):
        against = base(number)
        packed, skeleton = pack(one, fields_of(one), skeletons[against] if against >= 0 else None, str(against))
        stored.append(packed)
        skeletons.append(skeleton)
    return stored


def restored(stored, number):
    return unpack(stored[number], lambda name: stored[int(name)])


@settings(max_examples=300)
@given(st.lists(st.tuples(BODIES, st.integers(0, 9), st.booleans()), min_size=1, max_size=6))
def test_every_request_comes_back_with_its_fields_in_their_order(steps):
    bodies = [json.dumps(one, separators=(",", ":") if tight else (", ", ": ")).encode() for one, _, tight in steps]
    stored = chained(bodies, lambda number: steps[number][1] % (number + 1) - 1)
    for number, one in enumerate(bodies):
        back = restored(stored, number)
        assert json.loads(back) == json.loads(one)
        assert list(json.loads(back)) == list(json.loads(one))


def test_the_elements_keep_their_own_spelling():
    odd = b'{"model":"m","messages":[{"role": "user",  "b":1.0, "a":"\\u00e9"},{"x":[ ]}]}'
    more = odd[:-2] + b', {"n": 1e2}]}'
    stored = chained([odd, more])
    back = msgspec.json.decode(restored(stored, 1), type=dict[str, msgspec.Raw])
    items = msgspec.json.decode(back["messages"], type=list[msgspec.Raw])
    assert [bytes(item) for item in items] == [b'{"role": "user",  "b":1.0, "a":"\\u00e9"}', b'{"x":[ ]}', b'{"n": 1e2}']


def test_a_request_stored_whole_is_the_bytes_that_came():
    text = b'{ "model" : "m",\n"messages": [1] }'
    assert pack(text, fields_of(text), None, "")[0] == text == unpack(text, lambda name: b"")


def test_a_changed_early_element_costs_only_itself():
    """A cache mark that moves from one message to the next, and a line of the system prompt that changes each time."""
    messages = [{"role": "user", "content": f"a longer message, number {number} " * 20} for number in range(40)]
    marked = [dict(item) for item in messages]
    marked[3]["cache_control"] = {"type": "ephemeral"}
    moved = [*[dict(item) for item in messages], {"role": "user", "content": "new"}]
    moved[39]["cache_control"] = {"type": "ephemeral"}
    one, two = body(marked, system="x" * 5000), body(moved, system="x" * 5000)
    stored = chained([one, two])
    assert len(stored[1]) < 2500 < len(two) // 10
    assert json.loads(restored(stored, 1)) == json.loads(two)


def test_elements_that_were_left_out_cost_nothing():
    messages = [{"role": "user", "content": f"message {number} " * 50} for number in range(40)]
    stored = chained([body(messages), body(messages[:2] + messages[20:])])
    assert len(stored[1]) < 200


def test_storage_is_linear_in_what_is_new():
    messages, bodies = [], []
    for turn in range(60):
        messages += [{"role": "assistant", "content": f"turn {turn} " * 60}, {"role": "tool", "content": f"out {turn} " * 60}]
        bodies.append(body(messages, tools=[{"name": "bash", "description": "x" * 4000}]))
    stored = chained(bodies)
    assert sum(map(len, stored)) < 1.2 * len(bodies[-1])
    assert json.loads(restored(stored, 59)) == json.loads(bodies[59])


def test_a_record_that_does_not_hang_together_is_an_error():
    stored = chained([body(["a", "b"]), body(["a", "b", "c"])])
    with pytest.raises(StoreError, match="behind the end"):
        unpack(stored[1], lambda name: body([]))
    stored = chained([body(["a"]), body(["a"], x=1)])
    with pytest.raises(StoreError, match="no field 'model'"):
        unpack(stored[1], lambda name: b'{"messages": ["a"]}')
