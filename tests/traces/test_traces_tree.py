"""The tree as a structure: parents, children, paths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from hypothesis import given
from hypothesis import strategies as st


@given(data=st.data())
def test_children_and_parents_agree_and_every_call_is_on_record(grow: Callable[..., Any], data: st.DataObject) -> None:
    trace = grow(data).trace()
    places = {node.call_id: place for place, node in enumerate(trace.nodes)}
    for node in trace.nodes:
        assert [child.call_id for child in trace.nodes if child.parent == node.call_id] == list(node.children)
        assert node.delivered == (node.call.delivered or bool(node.children))
        assert not node.parent or places[node.parent] < places[node.call_id]


@given(data=st.data())
def test_paths_end_with_a_trained_call_and_hold_them_all(grow: Callable[..., Any], data: st.DataObject) -> None:
    trace = grow(data).trace()
    paths = trace.paths()
    assert all(path[-1].trainable for path in paths)
    assert {n.call_id for path in paths for n in path if n.trainable} == {n.call_id for n in trace.nodes if n.trainable}
    for path in paths:
        assert [node.parent for node in path] == ["", *(node.call_id for node in path[:-1])]


@given(data=st.data())
def test_new_ids_and_replies_along_a_path_are_its_ids(grow: Callable[..., Any], data: st.DataObject) -> None:
    trace = grow(data).trace()
    for path in trace.paths():
        pieces = [ids for node in path for ids in (trace.new_ids(node).tolist(), node.sampled_ids.tolist())]
        assert list(chain.from_iterable(pieces)) == path[-1].full_ids.tolist()
