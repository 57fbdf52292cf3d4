"""The mark that we put on reasoning, so that a harness that drops the text but sends the mark back loses nothing.

It names the call that sampled the reasoning; text and tokens stay in the store. Anthropic calls it `signature`, Responses
`encrypted_content`, Gemini `thoughtSignature`.

Invariants (tests/gateway/test_gateway_signatures.py): what `sign` made `read` reads back; a foreign mark reads as "".
"""

from __future__ import annotations

import base64
import binascii

PREFIX = b"whippletree:"


def sign(call_id: str) -> str:
    """The mark for the reasoning of a call: plain base64, as Gemini's clients demand."""
    return base64.b64encode(PREFIX + call_id.encode()).decode()


def read(mark: str) -> str:
    """The call that the mark names; "" for one that is not ours."""
    try:
        data = base64.b64decode(mark, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return data.removeprefix(PREFIX).decode("utf-8", "replace") if data.startswith(PREFIX) else ""
