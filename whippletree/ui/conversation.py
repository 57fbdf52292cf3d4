"""The messages of one attempt, each shown once, in the order of its calls.

The gateway stores of a request only what its base call does not have already, so the messages of an attempt are those of its
calls one after the other: what is new in a request, then the reply.

Invariants (tests/ui/test_conversation.py):
- a message that several requests carry is shown once, with the call that brought it;
- a call whose payload was released, or whose JSON cannot be read, leaves a note and hides no other call;
- `printable` lets no control character or text-direction mark through, so what a model wrote cannot drive a terminal or a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from whippletree.errors import StoreError
from whippletree.protocols import Store
from whippletree.types import Call, CallPayload, Message, ParsedMessage


@dataclass(frozen=True)
class Turn:
    """One message. `role` is the message's, or "note" for a remark of ours; `note` says which call it belongs to."""

    role: str
    text: str
    note: str = ""


def printable(text: str) -> str:
    """Text with every character that is not plainly visible shown as an escape; spaces, newlines and tabs are kept."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def conversation(store: Store, calls: Sequence[Call]) -> list[Turn]:
    """The turns of these calls of one attempt, as they are on record."""
    turns: list[Turn] = []
    for call in calls:
        try:
            turns += _turns(call, store.payload(call))
        except (StoreError, msgspec.DecodeError) as error:
            turns.append(Turn("note", printable(f"call {call.index} cannot be shown: {error}")))
    return turns


def _turns(call: Call, payload: CallPayload) -> list[Turn]:
    messages = msgspec.json.decode(payload.messages_json, type=tuple[Message, ...])
    note: list[Turn] = []
    if not call.base_call_id and call.index:
        cause = call.prefix_break.replace("_", " ") or "no earlier call has its messages"
        note = [Turn("note", f"call {call.index} starts anew: {cause}")]
    return [
        *note,
        *(_sent(message) for message in messages),
        _said(call, msgspec.json.decode(payload.reply_json, type=ParsedMessage)),
    ]


def _sent(message: Message) -> Turn:
    return Turn(message.role, _text(message), message.name)


def _said(call: Call, message: ParsedMessage) -> Turn:
    found = [f"call {call.index}", f"policy version {call.version_end}"]
    if call.version_start != call.version_end:
        found[1] = f"policy versions {call.version_start} to {call.version_end}"
    if call.finish_reason not in ("stop", "tool_calls"):
        found.append(f"ended by {call.finish_reason}")
    if call.error:
        found.append(call.error)
    if not call.delivered:
        found.append("not delivered")
    return Turn("assistant", _text(message), printable(", ".join(found)))


def _text(message: Message | ParsedMessage) -> str:
    parts = [f"({message.reasoning})"] if message.reasoning else []
    parts += [message.content] if message.content else []
    parts += [f"{call.name} {call.arguments}" for call in message.tool_calls]
    return printable("\n".join(parts))
