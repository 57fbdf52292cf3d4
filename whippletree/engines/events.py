"""Server-sent events out of a byte stream. No I/O.

Invariants (tests/engines/test_events.py):
- the events of a byte stream do not depend on how the stream was split, nor on LF or CRLF;
- text that belongs to no event is kept, so that an error page under the wrong content type can be told;
- joined events, split at their commas as JSON does, are the events.
"""

from __future__ import annotations

import msgspec

from whippletree.errors import EngineError

EVENT_LIMIT_BYTES = 64 * 1024 * 1024
UNFRAMED_BYTES = 4096
DONE = b"[DONE]"
BETWEEN = b"\n\ndata: "
LAST = b"data: " + DONE + b"\n\n"
FIELDS = (b":", b"event:", b"id:", b"retry:", b"event", b"id", b"retry")


class EventReader:
    """Splits a byte stream into the data of its server-sent events. Comments and other fields are skipped.

    `joins`: for events that are JSON and are decoded as one array. Several of them may come joined by commas, as one: hundreds
    of small events are then never cut apart. The end mark [DONE] always comes by itself.
    """

    def __init__(self, *, joins: bool = False) -> None:
        self._joins = joins
        self._pending = bytearray()
        self._searched = 0
        self._data: list[bytes] = []
        self._unframed = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events that these further bytes complete, in order. Raises EngineError on an event without end."""
        if not self._pending and not self._data and data.endswith(b"\n\n") and b"\r" not in data:
            if self._joins and (whole := _joined(data)) is not None:
                return whole
            parts = data[:-2].split(b"\n\n")  # the usual case: whole events of one line each
            if all(part.startswith(b"data: ") and b"\n" not in part for part in parts):
                return [part[6:] for part in parts]
        self._pending += data
        events: list[bytes] = []
        start = 0
        while (end := self._pending.find(b"\n", max(start, self._searched))) >= 0:
            line = bytes(self._pending[start:end]).removesuffix(b"\r")
            start = self._searched = end + 1
            self._line(line, events)
        del self._pending[:start]
        self._searched = len(self._pending)
        if self._searched + sum(map(len, self._data)) > EVENT_LIMIT_BYTES:
            raise EngineError(f"a stream event has no end after {EVENT_LIMIT_BYTES} bytes", "check that the URL is an engine's")
        return events

    def end(self) -> list[bytes]:
        """The last event where the stream ended without the empty line after it; one that is cut (no JSON) is dropped."""
        events: list[bytes] = []
        self._line(bytes(self._pending).removesuffix(b"\r"), events)
        self._line(b"", events)
        self._pending.clear()
        try:
            msgspec.json.decode(events[-1] if events else b"")
        except msgspec.DecodeError:
            return []
        return events

    def unframed(self) -> bytes:
        """Text that belonged to no event, cut at 4 KiB."""
        return bytes(self._unframed)

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data = []
        elif line and not line.startswith(FIELDS):
            self._unframed += line[: UNFRAMED_BYTES - len(self._unframed)]


def _joined(data: bytes) -> list[bytes] | None:
    """Whole events of one line each, joined by commas, then the end mark if it is there; None where they are not that plain."""
    events = data.removesuffix(LAST)
    done = [DONE] if len(events) < len(data) else []
    if not events:
        return done
    between = events.count(BETWEEN)
    if not events.startswith(b"data: ") or events.count(b"\n") != 2 * (between + 1):
        return None
    return [events[6:-2].replace(BETWEEN, b","), *done]
