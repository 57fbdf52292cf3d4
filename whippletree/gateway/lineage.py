"""The calls of one attempt as a tree, and which of them a new request goes on from. Pure; nothing here knows HTTP or the store.

Messages are compared on a normal form, because harnesses send our replies back changed: content stripped, arguments written
anew, reasoning left out, ids renamed. A request is named by the fingerprint of its tools and messages, a running hash, so that
"the request goes on from call c" is one lookup: its fingerprint after some prefix is c's request and reply.

Invariants (tests/gateway/test_gateway_lineage.py):
- `find_base` returns a call whose request and reply are, on the normal form, the longest possible prefix of the new messages;
- `find_parent` returns the call whose prompt and sampled ids are the longest exact prefix of the new prompt;
- ids are kept once: memory grows with the tokens of the tree, not with the sum of the prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from whippletree.types import Call, Int32, Message, PrefixBreak, ToolSpec

Fingerprint = bytes


class Node(msgspec.Struct, kw_only=True, eq=False):
    """One recorded call in memory.

    `prompt_delta` and `sampled` are int32 [P'] and [S]; the prompt is the parent's prompt and sampled ids, then the delta.
    `request` and `after` are the fingerprints before and after the reply; `messages` counts the request's messages.
    """

    call: Call
    parent: Node | None
    prompt_delta: Int32
    sampled: Int32
    tools: Fingerprint
    request: Fingerprint
    after: Fingerprint
    messages: int
    reply: Message
    children: list[Node] = []


def normal_form(message: Message) -> bytes:
    """What two messages must have in common to count as the same one."""
    calls = [(call.name, _canonical(call.arguments)) for call in message.tool_calls]
    content = message.content.strip() if message.role == "assistant" else message.content
    return msgspec.json.encode((message.role, content, calls))


def _canonical(arguments: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(arguments), order="sorted"))
    except msgspec.DecodeError:
        return arguments.strip()


def tools_fingerprint(tools: Sequence[ToolSpec]) -> Fingerprint:
    """The start of every fingerprint of a request with these tools."""
    return hashlib.blake2b(msgspec.json.encode(tools, order="sorted"), digest_size=16).digest()


def fingerprints(start: Fingerprint, messages: Sequence[Message]) -> list[Fingerprint]:
    """The running hash after each message; index k is after messages[k]."""
    prints = []
    for message in messages:
        start = hashlib.blake2b(normal_form(message), digest_size=16, key=start).digest()
        prints.append(start)
    return prints


class Lineage:
    """The recorded calls of one attempt."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._roots: list[Node] = []
        self._after: dict[Fingerprint, Node] = {}
        self._requests: dict[Fingerprint, Node] = {}
        self._seen: set[tuple[int, bytes]] = set()

    def add(self, node: Node, messages: Sequence[Message], first: int = 0) -> None:
        """Add a recorded call. `messages` are those of its request from place `first` on (earlier ones are known already)."""
        self.nodes[node.call.call_id] = node
        (self._roots if node.parent is None else node.parent.children).append(node)
        self._requests[node.request] = node
        known = self._after.get(node.after)
        if known is None or node.call.delivered or not known.call.delivered:
            self._after[node.after] = node
        for place, message in enumerate((*messages, node.reply), start=first):
            if message.role != "system":
                self._seen.add((place, normal_form(message)))

    def delivered(self, node: Node) -> None:
        """The harness has this call's whole reply: among calls with the same reply it is the one that is gone on from."""
        node.call = msgspec.structs.replace(node.call, delivered=True)
        self._after[node.after] = node

    def find_base(self, prints: Sequence[Fingerprint]) -> Node | None:
        """The call that a request with these fingerprints goes on from."""
        for fingerprint in reversed(prints):
            node = self._after.get(fingerprint)
            if node is not None:
                return node
        return None

    def find_same(self, request: Fingerprint) -> Node | None:
        """The latest call with the same tools and messages."""
        return self._requests.get(request)

    def cause(self, messages: Sequence[Message]) -> PrefixBreak:
        """Why a request that goes on from no call starts a new prefix."""
        if not self.nodes:
            return "first"
        shared = any(
            message.role != "system" and (place, normal_form(message)) in self._seen for place, message in enumerate(messages)
        )
        return "harness_edit" if shared else "new_thread"

    def ids(self, node: Node) -> Int32:
        """Prompt and sampled ids of a call, int32 [P + S]."""
        pieces = []
        step: Node | None = node
        while step is not None:
            pieces += [step.sampled, step.prompt_delta]
            step = step.parent
        return np.concatenate(pieces[::-1])

    def find_parent(self, prompt: Int32) -> Node | None:
        """The call whose prompt and sampled ids are the longest exact prefix of `prompt` (int32 [P])."""
        best: Node | None = None
        best_rank = (0, False, -1)
        stack = [(root, 0) for root in self._roots]
        while stack:
            node, start = stack.pop()
            end = _end(node, prompt, start)
            if end is None:
                continue
            stack += [(child, end) for child in node.children]
            rank = (end, node.call.delivered, node.call.index)
            if rank > best_rank:
                best, best_rank = node, rank
        return best


def _end(node: Node, prompt: Int32, place: int) -> int | None:
    """Where in `prompt` the node's ids end, when they continue it at `place`."""
    middle = place + len(node.prompt_delta)
    end = middle + len(node.sampled)
    fits = np.array_equal(prompt[place:middle], node.prompt_delta) and np.array_equal(prompt[middle:end], node.sampled)
    return end if fits else None
