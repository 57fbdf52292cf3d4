"""What is kept in memory of the last calls of each conversation, so that the next request costs no more than what is new in it.

A leaf has the whole ids and text of a call, and the messages of its request with their fingerprints. It can be made again from
the lineage, so that leaves are dropped, longest unused first, where all of them take more than `limit` bytes; the leaf that a
call went on from is dropped for the new one. Pure.
Invariants (tests/gateway/test_gateway_leaves.py):
- the bytes of the leaves that are kept stay within the limit;
- fingerprints by way of a leaf are those that are made from the messages alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from whippletree.gateway.lineage import Fingerprint, chained, form, tools_fingerprint
from whippletree.types import ChatRequest, Int32, Message, ToolSpec

OVERHEAD = 2048  # bytes of a leaf beside its text, about
RECENT = 24  # leaves of one attempt that a new request is compared with


class Prints(msgspec.Struct, frozen=True):
    """Fingerprints of one request: of its tools, the form of each message, and the running hash after each message."""

    tools: Fingerprint
    forms: list[Fingerprint]
    after: list[Fingerprint]


class Leaf(msgspec.Struct, frozen=True):
    """One call. `ids`: int32 [P + S], prompt and sampled; `text`: their exact bytes; `json`: the ids as a JSON array. All three
    are empty where the ids are not known."""

    ids: Int32
    text: bytes
    json: bytes
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    prints: Prints

    @property
    def size(self) -> int:
        """Bytes, about: the messages' text is about that of the prompt."""
        return OVERHEAD + self.ids.nbytes + len(self.json) + 2 * len(self.text)


class Leaves:
    """The leaves of every attempt of one process, within one limit in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[str, Leaf] = OrderedDict()

    def get(self, call_id: str) -> Leaf | None:
        """The leaf of a call, if it is kept."""
        leaf = self._kept.get(call_id)
        if leaf is not None:
            self._kept.move_to_end(call_id)
        return leaf

    def put(self, call_id: str, leaf: Leaf) -> None:
        """Keep a leaf; others go where it does not fit."""
        self.drop(call_id)
        self._kept[call_id] = leaf
        self.size += leaf.size
        while self.size > self.limit:
            _, old = self._kept.popitem(last=False)
            self.size -= old.size

    def drop(self, call_id: str) -> None:
        """Forget a leaf; no-op where it is not kept."""
        leaf = self._kept.pop(call_id, None)
        if leaf is not None:
            self.size -= leaf.size


class Recent:
    """The last calls of one attempt that may have leaves, the newest last."""

    def __init__(self, leaves: Leaves) -> None:
        self.leaves = leaves
        self._ids: deque[str] = deque(maxlen=RECENT)

    def add(self, call_id: str, leaf: Leaf, base: str) -> None:
        """A call was recorded that went on from the call `base` ("" for none)."""
        self.leaves.put(call_id, leaf)
        if base in self._ids:
            self._ids.remove(base)
            self.leaves.drop(base)
        if len(self._ids) == RECENT:
            self.leaves.drop(self._ids[0])
        self._ids.append(call_id)

    def clear(self) -> None:
        """The attempt is dropped from memory."""
        for call_id in self._ids:
            self.leaves.drop(call_id)
        self._ids.clear()

    def prints(self, request: ChatRequest) -> Prints:
        """The fingerprints of a request; those of messages that a leaf has are taken from it."""
        best: Leaf | None = None
        shared = -1
        for call_id in reversed(self._ids):
            leaf = self.leaves.get(call_id)
            if leaf is None or leaf.tools != request.tools:
                continue
            count = _shared(leaf.messages, request.messages)
            if count > shared:
                best, shared = leaf, count
            if count == len(leaf.messages):
                break
        return _prints(request, best, max(shared, 0))


def _shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages two requests have in common from their start."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _prints(request: ChatRequest, leaf: Leaf | None, shared: int) -> Prints:
    if leaf is None:
        tools = tools_fingerprint(request.tools)
        forms = [form(message) for message in request.messages]
        return Prints(tools, forms, chained(tools, forms))
    known = leaf.prints
    fresh = [form(message) for message in request.messages[shared:]]
    start = known.after[shared - 1] if shared else known.tools
    return Prints(known.tools, known.forms[:shared] + fresh, known.after[:shared] + chained(start, fresh))
