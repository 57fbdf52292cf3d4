"""What a recorded call was sent and what it said, read from the texts of its payload."""

from __future__ import annotations

import msgspec

from whippletree.errors import AlignmentError
from whippletree.types import Message, ParsedMessage


def read_messages(call_id: str, messages_json: bytes) -> tuple[Message, ...]:
    """What is new in a call's request. Raises AlignmentError when it cannot be read."""
    try:
        return msgspec.json.decode(messages_json, type=tuple[Message, ...])
    except msgspec.DecodeError as error:
        raise AlignmentError(f"call {call_id}: its messages cannot be read: {error}", "the record is damaged") from error


def read_reply(call_id: str, reply_json: bytes) -> ParsedMessage:
    """The turn that a call sampled; an empty one where none is recorded. Raises AlignmentError when it cannot be read."""
    try:
        return msgspec.json.decode(reply_json, type=ParsedMessage) if reply_json else ParsedMessage()
    except msgspec.DecodeError as error:
        raise AlignmentError(f"call {call_id}: its reply cannot be read: {error}", "the record is damaged") from error
