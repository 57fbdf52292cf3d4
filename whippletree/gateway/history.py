"""The messages of a recorded call, put together from the store.

    call ──base_call_id──► call ──► … ──► call that starts anew        its messages, its reply, the next one's new messages, …

Invariants (tests/gateway/test_gateway_history.py):
- `conversation` gives the messages that the call's prompt was made from (an echoed turn as it was sampled), however many
  calls they were brought by;
- `stored_request` gives the harness's own request, field for field; `offered_tools` the tools that it offered.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from whippletree.errors import RequestError, StoreError
from whippletree.gateway.deltas import unpack
from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.lineage import reply_message
from whippletree.protocols import Store
from whippletree.types import Call, CallPayload, Message, ParsedMessage, ToolSpec


def conversation(store: Store, call: Call) -> tuple[Message, ...]:
    """The messages of a call's request. Blocks. Raises StoreError when a payload is gone."""
    calls = _of_attempt(store, call)
    path = [call]
    while path[-1].base_call_id:
        path.append(_named(calls, path[-1].base_call_id))
    messages: list[Message] = []
    for step in reversed(path):
        payload = store.payload(step)
        messages += msgspec.json.decode(payload.messages_json, type=tuple[Message, ...])
        if step is not call:
            messages.append(reply_message(msgspec.json.decode(payload.reply_json, type=ParsedMessage)))
    return tuple(messages)


def stored_request(store: Store, call: Call) -> bytes:
    """The harness's own request, as JSON. Blocks. Raises StoreError when a payload is gone."""
    calls = _of_attempt(store, call)
    return unpack(store.payload(call).request_json, lambda call_id: store.payload(_named(calls, call_id)).request_json)


def offered_tools(call: Call, payloads: Mapping[str, CallPayload]) -> tuple[ToolSpec, ...]:
    """The tools that a call's request offered, as the model saw them. `payloads`: those of its attempt, by call id.

    Raises StoreError where the record does not have them.
    """
    try:
        body = unpack(payloads[call.call_id].request_json, lambda call_id: payloads[call_id].request_json)
        return DIALECTS[call.dialect].parse(body, Target()).tools
    except (KeyError, RequestError, msgspec.DecodeError) as error:
        raise StoreError(f"the request of call {call.call_id} cannot be read: {error}", "the record is damaged") from error


def _of_attempt(store: Store, call: Call) -> dict[str, Call]:
    return {item.call_id: item for item in store.calls(call.rollout_id, call.attempt)}


def _named(calls: dict[str, Call], call_id: str) -> Call:
    if call_id not in calls:
        raise StoreError(f"call {call_id} is not among the calls of its attempt", "the record is damaged")
    return calls[call_id]
