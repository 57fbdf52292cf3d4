"""Compaction on request: the model writes a summary, which the harness keeps as one opaque item and sends back later. Pure.

A harness asks with a `compaction_trigger` item at the end of its input, or on a path of its own. The request then ends with
`REQUEST`, which is also how a reply to it is known. The summary travels inside the item, so that nothing needs to be looked up.
Invariants (tests/gateway/test_gateway_responses_parts.py): what `seal` made `unseal` reads back; foreign content reads as None.
"""

from __future__ import annotations

import base64
import binascii

from whippletree.types import ChatRequest, Message

_PREFIX = b"whippletree-summary:"

REQUEST = Message(
    role="user",
    content="The conversation gets too long and goes on from a summary. Write that summary now: what was asked, what was done "
    "and found out, what is left to do, and every name, path and value that will be needed. Answer with the summary alone.",
)
INTRODUCTION = "Summary of the conversation so far:\n\n"


def is_compaction(request: ChatRequest) -> bool:
    """The reply to this request is a summary of the conversation."""
    return bool(request.messages) and request.messages[-1] == REQUEST


def seal(summary: str) -> str:
    """The content of a compaction item."""
    return base64.b64encode(_PREFIX + summary.encode()).decode()


def unseal(content: str) -> str | None:
    """The summary inside a compaction item; None for one that is not ours."""
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data.removeprefix(_PREFIX).decode("utf-8", "replace") if data.startswith(_PREFIX) else None


def summary_message(summary: str) -> Message:
    """What the model sees of an earlier summary."""
    return Message(role="user", content=INTRODUCTION + summary)
