"""Arguments of calls that a dialect sends as values, as the text that models and chat templates write for them.

A template that puts arguments into the prompt as text must get the spelling that was sampled, or the recorded ids could not be
gone on from; most models write JSON as Python does: a space after each colon and comma, characters as they are.
Invariants (tests/gateway/test_gateway_arguments.py):
- JSON that is spelled so already stays as it is;
- the text has the same value, for every value that can be read.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


def spelled(value: Any) -> str:
    """A value as text."""
    return json.dumps(value, ensure_ascii=False)


def respelled(raw: bytes) -> str:
    """JSON as text in that spelling; numbers out of range and such stay as they were written."""
    try:
        return spelled(msgspec.json.decode(raw))
    except msgspec.MsgspecError:
        return msgspec.json.format(raw, indent=0).decode()
