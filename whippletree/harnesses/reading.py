"""Reading what a harness left: logs of JSON lines that may be cut off, and tool calls as models wrote them. Pure.

Invariants (tests/harnesses/test_reading.py): a line that is no JSON of the wanted kind is passed over, and so changes no other;
arguments that are no JSON object are kept as they were written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from whippletree.traces.atif import StepToolCall

T = TypeVar("T")
_OVERFLOW = re.compile(r"maximum context length|prompt is too long|maximum number of tokens", re.IGNORECASE)  # of any dialect
TIMED_OUT = 124  # exit code of a process that was ended at its time limit


def tool_call(call_id: str, name: str, arguments: str | Mapping[str, Any]) -> StepToolCall:
    """A tool call as the record has it; arguments that are no JSON object are kept as they were written."""
    if not isinstance(arguments, str):
        return StepToolCall(tool_call_id=call_id, function_name=name, arguments=dict(arguments))
    try:
        read = msgspec.json.decode(arguments.strip() or "{}")
    except msgspec.DecodeError:
        read = None
    if isinstance(read, dict):
        return StepToolCall(tool_call_id=call_id, function_name=name, arguments=read)
    return StepToolCall(tool_call_id=call_id, function_name=name, arguments={}, extra={"arguments": arguments})


def json_lines(data: bytes | str, kind: type[T]) -> Iterator[T]:
    """The lines of a log that are JSON of this kind; others (a cut last line, plain text between them) are passed over."""
    decoder = msgspec.json.Decoder(kind, strict=False)
    for line in data.splitlines():
        if line.lstrip()[:1] in (b"{", "{"):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError:
                continue


def overflowed(message: str) -> bool:
    """Whether an error is the gateway's word for a prompt that does not fit, as a harness repeats it."""
    return _OVERFLOW.search(message) is not None


def record_ending(records: Mapping[str, bytes], suffix: str) -> bytes | None:
    """The first record whose path ends so."""
    return next((records[path] for path in sorted(records) if path.endswith(suffix)), None)
