"""Ids of responses and of their items: each names the call that it belongs to. Pure.

A harness sends item ids back with its history, so items of two calls are never taken for one turn. It may also lose or rename
them; nothing else depends on them.
Invariants (tests/gateway/test_gateway_responses_parts.py):
- `call_of_response` undoes `response_id`, and refuses what it cannot have made;
- `call_of_item` undoes `item_id`; a foreign id names no call.
"""

from __future__ import annotations

import re

from whippletree.errors import RequestError

_RESPONSE = re.compile(r"resp_([0-9a-f]+)")
_ITEM = re.compile(r"[a-z]+_([0-9a-f]+)_\d+(r?)")


def response_id(call_id: str) -> str:
    """The id of a call's response: "c-5d1f" → "resp_5d1f"."""
    return "resp_" + call_id.removeprefix("c-")


def call_of_response(name: str) -> str:
    """The call that a response id names. Raises RequestError (404) for an id that is not ours."""
    match = _RESPONSE.fullmatch(name)
    if match is None:
        raise RequestError(
            f"previous_response_id: there is no response {name[:100]!r}",
            "use the id of a response of this attempt, or send the whole input",
            status=404,
            code="previous_response_not_found",
        )
    return f"c-{match[1]}"


def item_id(kind: str, call_id: str, place: int, *, raw: bool = False) -> str:
    """The id of an item: ("msg", "c-5d1f", 1) → "msg_5d1f_1". `raw` marks a custom call whose text is its raw arguments."""
    return f"{kind}_{call_id.removeprefix('c-')}_{place}{'r' if raw else ''}"


def call_of_item(name: str | None) -> str:
    """The call that an item id names, "" for a foreign one."""
    match = _ITEM.fullmatch(name or "")
    return f"c-{match[1]}" if match else ""


def is_raw(name: str | None) -> bool:
    """The item is a custom call whose text is its raw arguments."""
    match = _ITEM.fullmatch(name or "")
    return bool(match and match[2])
