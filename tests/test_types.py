"""whippletree/types and the records of protocols"""

from __future__ import annotations

import collections.abc
import enum
import re
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree import protocols
from whippletree import types as records
from whippletree.types import Call, CallTimes, Message, Rollout, RolloutSpec, Sampling, Struct, VersionSpan

STRUCTS = sorted(
    {
        found
        for module in (records, protocols)
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Struct) and found is not Struct
    },
    key=lambda kind: kind.__name__,
)
CODECS: list[tuple[Callable[[Any], bytes], Callable[..., Any]]] = [
    (msgspec.json.encode, msgspec.json.decode),
    (msgspec.msgpack.encode, msgspec.msgpack.decode),
]
numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(2**63), 2**63 - 1)
anything = st.recursive(
    st.none() | st.booleans() | whole | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
SIMPLE = {
    str: st.text(),
    int: whole,
    float: numbers,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    Any: anything,
    object: anything,
    type(None): st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(part) for part in arguments])
    if origin in (list, collections.abc.Sequence) or (origin is tuple and arguments[-1] is Ellipsis):
        made = st.lists(values_of(arguments[0]), max_size=3)
        return made.map(tuple) if origin is tuple else made
    if origin is tuple:
        return st.tuples(*(values_of(part) for part in arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


def test_all_records_are_found():
    assert len(STRUCTS) >= 30
    assert {"Call", "Rollout", "SandboxHandle", "StreamDelta"} <= {kind.__name__ for kind in STRUCTS}


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_record_round_trips_through_json_and_messagepack(kind: type[Struct], data: st.DataObject):
    value = data.draw(values_of(kind))
    for encode, decode in CODECS:
        assert decode(encode(value), type=kind) == value


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_record_ignores_fields_that_it_does_not_know(kind: type[Struct]):
    assert not kind.__struct_config__.forbid_unknown_fields


@settings(max_examples=30, deadline=None)
@given(values_of(Call), st.dictionaries(st.text(), anything, max_size=3))
def test_an_older_reader_accepts_a_newer_writers_record(call: Call, more: dict[str, Any]):
    for encode, decode in CODECS:
        newer = {f"new {name}": value for name, value in more.items()} | decode(encode(call))
        assert decode(encode(newer), type=Call) == call


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_every_record_is_immutable_and_shows_an_example(kind: type[Struct]):
    assert kind.__struct_config__.frozen
    assert kind.__doc__ is not None
    assert re.search(rf"Example: {kind.__name__}\(", kind.__doc__), "no worked example"


def test_defaults_stay_off_the_wire():
    assert msgspec.json.encode(Message(role="user", content="hi")) == b'{"role":"user","content":"hi"}'


def test_versions_of_a_call_come_from_its_spans():
    call = Call(
        call_id="c", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=1, sampled_tokens=2, finish_reason="stop",
        times=CallTimes(received=1.0), sampling=Sampling(),
    )  # fmt: skip
    assert (call.version_start, call.version_end) == (-1, -1)
    spans = (VersionSpan(start=0, policy_version=3), VersionSpan(start=1, policy_version=5))
    call = msgspec.structs.replace(call, versions=spans)
    assert (call.version_start, call.version_end) == (3, 5)


@pytest.mark.parametrize(("state", "terminal"), [("queuing", False), ("running", False), ("succeeded", True), ("failed", True)])
def test_a_rollout_is_terminal_once_its_state_cannot_change(state: Any, terminal: bool):
    spec = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
    assert Rollout(spec=spec, state=state, created=0.0, updated=0.0).terminal is terminal
