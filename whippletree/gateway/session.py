"""One attempt in memory: its limits, its calls, the requests under way. Rebuilt from the store whenever it is not there.

Invariants (tests/gateway/test_gateway_session.py):
- a session that was rebuilt from the store goes on from the same ids as one that recorded the calls itself;
- an attempt that is sealed, not the rollout's last, or of a rollout that has ended takes no calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from whippletree.errors import RequestError, StoreError
from whippletree.gateway.dialects import Dialect
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.lineage import Fingerprint, Lineage, Node, fingerprints, tools_fingerprint
from whippletree.protocols import Store
from whippletree.types import Call, CallPayload, Message, ParsedMessage, Sampling

if TYPE_CHECKING:
    from whippletree.gateway.live import LiveCall


class Session:
    """What the gateway knows of one attempt."""

    def __init__(self, key: AttemptKey, sampling: Sampling) -> None:
        self.key = key
        self.sampling = sampling
        self.sealed = False
        self.lineage = Lineage()
        self.live: dict[str, LiveCall] = {}  # by digest
        self.latest: dict[str, Call] = {}  # by digest: the last recorded call of that request
        self.marks: set[asyncio.Future[None]] = set()  # deliveries being written
        self.turns = 0  # requests that were begun, for seeds
        self.next_index = 0
        self.preferred = -1  # the replica that has this attempt's prefix
        self.users = 0  # handlers that work with it

    @property
    def idle(self) -> bool:
        """Nothing is under way: it may be dropped from memory."""
        return not self.users and not self.live and not self.marks

    def check_open(self) -> None:
        """Raises RequestError (403) when the attempt takes no further calls."""
        if self.sealed:
            whose = f"attempt {self.key.attempt} of rollout {self.key.rollout_id!r}"
            raise RequestError(
                f"{whose} is sealed: it has ended", "stop; nothing is recorded any more", status=403, code="sealed"
            )

    def recorded(self, call: Call) -> None:
        """Keep a call's metadata in step with the store."""
        self.latest[call.digest] = call
        self.next_index = max(self.next_index, call.index + 1)

    def delivered(self, call: Call) -> None:
        """The harness has this call's whole reply."""
        call = msgspec.structs.replace(call, delivered=True)
        if self.latest[call.digest].call_id == call.call_id:
            self.latest[call.digest] = call
        if (node := self.lineage.nodes.get(call.call_id)) is not None:
            self.lineage.delivered(node)


def reply_message(message: ParsedMessage) -> Message:
    """A sampled turn as a message of history."""
    return Message(role="assistant", content=message.content, reasoning=message.reasoning, tool_calls=message.tool_calls)


def load_session(store: Store, dialects: Mapping[str, Dialect], key: AttemptKey) -> Session:
    """Read an attempt from the store (blocking). Raises RequestError (401) when the store does not know it."""
    try:
        rollout = store.rollout(key.rollout_id)
        attempts = store.attempts(key.rollout_id)
    except StoreError as error:
        raise _unknown(f"rollout {key.rollout_id!r} is not in this run's store") from error
    attempt = next((item for item in attempts if item.attempt == key.attempt), None)
    if attempt is None:
        raise _unknown(f"rollout {key.rollout_id!r} has no attempt {key.attempt}")
    session = Session(key, rollout.spec.sampling)
    session.sealed = attempt.sealed or rollout.terminal or any(item.attempt > key.attempt for item in attempts)
    if not session.sealed:
        _load_calls(session, store, dialects)
    return session


def _unknown(cause: str) -> RequestError:
    return RequestError(cause, "use a key of the run that this gateway serves", status=401, code="invalid_api_key")


def _load_calls(session: Session, store: Store, dialects: Mapping[str, Dialect]) -> None:
    calls = store.calls(session.key.rollout_id, session.key.attempt)
    session.turns = len(calls)
    for call in calls:
        session.recorded(call)
        if call.sampled_tokens and not call.error and call.dialect in dialects:
            _load_call(session.lineage, dialects[call.dialect], call, store.payload(call))


def _load_call(lineage: Lineage, dialect: Dialect, call: Call, payload: CallPayload) -> None:
    request = dialect.parse(payload.request_json)
    trim = dialect.trimmed(payload.request_json)
    base = lineage.nodes.get(trim.base)
    tools = base.tools if base is not None and trim.tools else tools_fingerprint(request.tools)
    start: Fingerprint = tools
    if base is not None:  # the stored messages start with the echo of the base's reply: on the normal form it is that reply
        start = base.after
    rest = request.messages[1:] if base is not None else request.messages
    prints = fingerprints(start, rest)
    reply = reply_message(dialect.read_reply(payload.reply_json))
    request_print = prints[-1] if prints else start
    node = Node(
        call=call,
        parent=lineage.nodes.get(call.parent_call_id),
        prompt_delta=np.asarray(payload.prompt_delta, dtype=np.int32),
        sampled=np.asarray(payload.sampled_ids, dtype=np.int32),
        tools=tools,
        request=request_print,
        after=fingerprints(request_print, [reply])[0],
        messages=trim.messages + len(request.messages),
        reply=reply,
    )
    lineage.add(node, request.messages, first=trim.messages)
