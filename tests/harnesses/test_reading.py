"""whippletree/harnesses/reading.py"""

from __future__ import annotations

import msgspec
import pytest

from whippletree.harnesses.reading import json_lines, record_ending, tool_call


class Line(msgspec.Struct):
    number: int


def test_lines_that_are_nothing_of_the_kind_change_no_other() -> None:
    text = 'starting\n{"number": 1}\n[2]\n{"number": "no"}\n  {"number": 3, "more": true}\n{"number": 4'
    assert [line.number for line in json_lines(text, Line)] == [1, 3]
    assert [line.number for line in json_lines(text.encode() + b"\n\xff\xfe\n", Line)] == [1, 3]


@pytest.mark.parametrize(
    ("written", "arguments", "kept"),
    [
        ('{"command": "ls"}', {"command": "ls"}, None),
        ({"command": "ls"}, {"command": "ls"}, None),
        ("", {}, None),
        ('{"command": ', {}, '{"command": '),
        ("[1]", {}, "[1]"),
        ("*** Begin Patch", {}, "*** Begin Patch"),
    ],
)
def test_arguments_are_kept_as_they_were_written(written: object, arguments: dict[str, object], kept: str | None) -> None:
    call = tool_call("c1", "bash", written)  # type: ignore[arg-type]
    assert (call.tool_call_id, call.function_name, call.arguments) == ("c1", "bash", arguments)
    assert (call.extra or {}).get("arguments") == kept


def test_a_record_is_found_by_its_end() -> None:
    assert record_ending({"/b/trajectory.json": b"2", "/a/trajectory.json": b"1", "/a/x": b"3"}, "/trajectory.json") == b"1"
    assert record_ending({"/a/x": b"3"}, "/trajectory.json") is None
