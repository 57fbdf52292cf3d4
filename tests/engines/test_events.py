"""Server-sent events out of bytes, however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_parts import recording

from whippletree.engines import events
from whippletree.engines.events import EventReader
from whippletree.errors import EngineError

STREAM = recording("completion_stream").body.encode()
FRAMINGS = {
    "lf": STREAM,
    "crlf": STREAM.replace(b"\n", b"\r\n"),
    "wide": STREAM.replace(b"data:", b": wait\n\nevent: x\ndata:").replace(b'"text":"', '"text":"杭州🦀'.encode()),
}


def events_of(data: bytes, cuts: list[int]) -> list[bytes]:
    reader = EventReader()
    bounds = [0, *sorted(cuts), len(data)]
    return [event for a, b in itertools.pairwise(bounds) for event in reader.feed(data[a:b])]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FRAMINGS)), st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_events_do_not_depend_on_how_the_stream_was_split(framing: str, cuts: list[int]) -> None:
    data = FRAMINGS[framing]
    assert events_of(data, cuts) == events_of(data, [])
    assert len(events_of(data, [])) == 8  # six tokens, the usage, the end


def test_events_of_single_bytes_are_the_events_for_lf_and_crlf() -> None:
    expected = events_of(STREAM, [])
    for framing in ("lf", "crlf"):
        assert events_of(FRAMINGS[framing], list(range(1, len(FRAMINGS[framing])))) == expected
    assert expected[-1] == b"[DONE]"


def test_comments_other_fields_and_carriage_returns_are_no_data() -> None:
    data = b": keep-alive\r\n\r\nevent: x\r\nid: 3\r\ndata: {\r\ndata:}\r\n\r\ndata: tail without end"
    assert events_of(data, []) == [b"{\n}"]


@pytest.mark.parametrize(("tail", "expected"), [(b'data: {"a": 1}', [b'{"a": 1}']), (b'data: {"a": ', []), (b"", [])])
def test_a_last_event_without_its_empty_line_counts_if_it_is_whole(tail: bytes, expected: list[bytes]) -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"b": 2}\n\n' + tail) == [b'{"b": 2}']
    assert reader.end() == expected


def test_text_of_no_event_is_kept_and_bounded() -> None:
    reader = EventReader()
    assert reader.feed(b"<html>\n<body>no engine here\n\n" + b"x" * 9000 + b"\n") == []
    assert reader.unframed().startswith(b"<html><body>no engine here")
    assert len(reader.unframed()) == events.UNFRAMED_BYTES


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_LIMIT_BYTES", 1000)
    reader = EventReader()
    with pytest.raises(EngineError, match="no end"):
        for _ in range(20):
            reader.feed(b"data: " + b"x" * 100)
