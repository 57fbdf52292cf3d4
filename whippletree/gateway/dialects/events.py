"""Bytes of server-sent events.

Invariants (tests/gateway/test_gateway_chat_stream.py):
- an event is one line that no client cuts in two: JSON has no raw line breaks, and the three characters at which Python's
  `str.splitlines` breaks although JSON allows them (U+0085, U+2028, U+2029) are written as escapes.
"""

from __future__ import annotations

_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def one_line(data: bytes) -> bytes:
    """JSON (UTF-8, without raw line breaks) so that clients that read lines of text do not break it."""
    for character, escape in _BREAKS:
        if character in data:
            data = data.replace(character, escape)
    return data


def event(data: bytes, end: bytes = b"\n\n") -> bytes:
    """`data: {...}` and the empty line that ends it."""
    return b"data: " + one_line(data) + end
