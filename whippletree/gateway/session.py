"""One attempt in memory: its limits, its calls, the requests under way. Rebuilt from the store whenever it is not there.

Invariants (tests/gateway/test_gateway_session.py):
- a session that was rebuilt from the store goes on from the same ids as one that recorded the calls itself;
- an attempt that is sealed, not the rollout's last, or of a rollout that has ended takes no calls;
- reading it takes time in proportion to what is stored, and no dialect.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from whippletree.errors import RequestError, StoreError
from whippletree.gateway.deltas import Skeleton
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.leaves import Leaves, Recent
from whippletree.gateway.lineage import Lineage, Node, form, make_node
from whippletree.gateway.roles import Opening, Threads
from whippletree.protocols import Store
from whippletree.types import Call, CallPayload, Message, Sampling

if TYPE_CHECKING:
    from whippletree.gateway.live import LiveCall

SKELETONS = 64  # requests of one attempt that the next one's body is compared with


class Session:
    """What the gateway knows of one attempt."""

    def __init__(self, key: AttemptKey, sampling: Sampling, leaves: Leaves, lease_seconds: float = 0.0) -> None:
        """`lease_seconds`: the attempt's lease, which its calls renew; 0 where it has none."""
        self.key = key
        self.sampling = sampling
        self.sealed = False
        self.lineage = Lineage()
        self.recent = Recent(leaves)
        self.threads = Threads()
        self.live: dict[str, LiveCall] = {}  # by digest
        self.latest: dict[str, Call] = {}  # by digest: the last recorded call of that request
        self.marks: set[asyncio.Future[None]] = set()  # deliveries being written
        self.turns = 0  # requests that were begun, for seeds
        self.next_index = 0
        self.preferred = -1  # the replica that has this attempt's prefix
        self.unanswered = ""  # why the call that ended last got no answer; "" where it got one
        self.users = 0  # handlers that work with it
        self.used = time.monotonic()  # when it was last asked for
        self.lease_seconds = lease_seconds
        self.renewed = -math.inf  # when its lease began, as far as this process knows
        self._skeletons: OrderedDict[str, Skeleton] = OrderedDict()  # by call id

    @property
    def idle(self) -> bool:
        """Nothing is under way: it may be dropped from memory."""
        return not self.users and not self.live and not self.marks

    @property
    def renewal_due(self) -> bool:
        """Whether it has given a sign of life that its lease does not know of. Not at each call: an eighth of a lease late."""
        since = time.monotonic() - self.renewed
        return self.lease_seconds > 0 and since >= self.lease_seconds / 8 and (bool(self.live) or self.used > self.renewed)

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
        if (node := self.lineage.nodes.get(call.call_id)) is not None:
            self.lineage.delivered(node)
        if self.latest[call.digest].call_id == call.call_id:
            self.latest[call.digest] = node.call if node is not None else msgspec.structs.replace(call, delivered=True)

    def skeleton(self, base: Node | None) -> tuple[str, Skeleton | None]:
        """The request that a new one's body is compared with: that of its base, else the last one; ("", None) for none."""
        call_id = base.call.call_id if base is not None else ""
        if call_id not in self._skeletons:
            call_id = next(reversed(self._skeletons), "")
        return (call_id, self._skeletons[call_id]) if call_id else ("", None)

    def keep_skeleton(self, call_id: str, skeleton: Skeleton) -> None:
        """Remember a recorded request."""
        self._skeletons[call_id] = skeleton
        while len(self._skeletons) > SKELETONS:
            self._skeletons.popitem(last=False)

    def dropped(self) -> None:
        """The session leaves memory."""
        self.recent.clear()


def load_session(store: Store, key: AttemptKey, leaves: Leaves) -> Session:
    """Read an attempt from the store (blocking). Raises RequestError (401) when the store does not know it."""
    try:
        rollout = store.rollout(key.rollout_id)
        attempts = store.attempts(key.rollout_id)
    except StoreError as error:
        raise _unknown(f"rollout {key.rollout_id!r} is not in this run's store") from error
    attempt = next((item for item in attempts if item.attempt == key.attempt), None)
    if attempt is None:
        raise _unknown(f"rollout {key.rollout_id!r} has no attempt {key.attempt}")
    session = Session(key, rollout.spec.sampling, leaves, attempt.lease_seconds)
    session.sealed = attempt.sealed or rollout.terminal or any(item.attempt > key.attempt for item in attempts)
    if not session.sealed:
        _load_calls(session, store)
    return session


def _unknown(cause: str) -> RequestError:
    return RequestError(cause, "use a key of the run that this gateway serves", status=401, code="invalid_api_key")


def _load_calls(session: Session, store: Store) -> None:
    calls = store.calls(session.key.rollout_id, session.key.attempt)
    session.turns = len(calls)
    for call in calls:
        session.recorded(call)
        if call.payload is not None and not call.error:
            _load_call(session, call, store.payload(call))


def _load_call(session: Session, call: Call, payload: CallPayload) -> None:
    lineage = session.lineage
    base = lineage.nodes.get(call.base_call_id)
    first = base.messages + 1 if base is not None else 0
    node = make_node(call, payload, lineage.nodes.get(call.parent_call_id))
    messages = msgspec.json.decode(payload.messages_json, type=tuple[Message, ...])
    lineage.add(node, [form(message) for message in messages], first)
    if node.links.look:
        session.threads.begun(call.role, Opening(tools=node.links.offered > 0, look=node.links.look), call.client)
