"""The calls of one attempt as a tree, linked by exact token prefix.

    call A: prompt ──► sampled
    call B: [prompt of A][sampled of A][new] ──► sampled          child of A
    call C: the prompt of B again ──► sampled                     sibling of B: a retry

Invariants (tests/traces/test_traces_tree.py):
- a call's parent is the earlier call whose prompt + sampled ids are the longest exact prefix of its prompt, and nothing else
  decides it; a call that no earlier one is a prefix of is a root;
- ids, logprobs, versions and lengths of every call are checked here, once: a record that contradicts itself is an
  AlignmentError that names the call; everything after this module takes alignment for granted;
- of calls with the same prompt, those that were continued count, or else the last; the others are superseded;
- a call that is not trainable says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from whippletree.errors import AlignmentError
from whippletree.protocols import Store
from whippletree.types import Call, CallPayload, Float32, Int32, Rollout

Exclusion = Literal[
    "",
    "no payload",
    "nothing sampled",
    "error",
    "undelivered",
    "superseded",
    "no logprobs",
    "non-finite logprobs",
    "raw logprobs",
    "no policy version",
]


class Node(msgspec.Struct, kw_only=True, frozen=True):
    """One call in its place. Shapes: prompt_ids [P], sampled_ids [S], logprobs [S], versions [S] (policy version per token).

    `parent` and `children` are call ids ("" and () where there are none). `excluded` says why it is not trained ("" when it
    is). `delivered`: the harness had the whole reply, by its record or because a later prompt continues it.
    """

    call: Call
    prompt_ids: Int32
    sampled_ids: Int32
    logprobs: Float32
    versions: Int32
    parent: str = ""
    children: tuple[str, ...] = ()
    delivered: bool = False
    excluded: Exclusion = ""

    @property
    def call_id(self) -> str:
        """Id of the call."""
        return self.call.call_id

    @property
    def trainable(self) -> bool:
        """True when its sampled tokens may be trained."""
        return self.excluded == ""

    @property
    def full_ids(self) -> Int32:
        """Prompt and sampled ids, shape [P + S]."""
        return np.concatenate([self.prompt_ids, self.sampled_ids])


class Trace(msgspec.Struct, kw_only=True, frozen=True):
    """The calls of one attempt, by index. Every parent stands before its children."""

    nodes: tuple[Node, ...] = ()

    def node(self, call_id: str) -> Node:
        """The node of a call. Raises KeyError when it is not of this trace."""
        return self._by_id()[call_id]

    def _by_id(self) -> dict[str, Node]:
        return {node.call_id: node for node in self.nodes}

    def paths(self) -> list[tuple[Node, ...]]:
        """Root-to-leaf paths worth training, by index of the leaf; untrainable calls at the end of a path are left off."""
        nodes = self._by_id()
        kept: set[str] = set()
        for node in reversed(self.nodes):
            if node.trainable or any(child in kept for child in node.children):
                kept.add(node.call_id)
        leaves = [n for n in self.nodes if n.call_id in kept and not any(child in kept for child in n.children)]
        return [tuple(reversed(list(_ancestry(leaf, nodes)))) for leaf in leaves]


def _ancestry(node: Node, nodes: dict[str, Node]) -> Iterable[Node]:
    yield node
    while node.parent:
        node = nodes[node.parent]
        yield node


def load_trace(store: Store, rollout: Rollout) -> Trace:
    """The trace of a rollout's last attempt. Raises StoreError when a payload is gone, AlignmentError when one is wrong."""
    calls = store.calls(rollout.spec.rollout_id, rollout.attempt)
    return build_trace(calls, [store.payload(call) if call.payload is not None else None for call in calls])


def build_trace(calls: Sequence[Call], payloads: Sequence[CallPayload | None]) -> Trace:
    """Link calls into a tree. `payloads[i]` belongs to `calls[i]`; None where a call left none (it failed before sampling).

    Raises AlignmentError that names the call.
    """
    if len(calls) != len(payloads):
        raise AlignmentError(f"{len(calls)} calls but {len(payloads)} payloads", "pass one payload, or None, per call")
    nodes: dict[str, Node] = {}
    for call, payload in sorted(zip(calls, payloads, strict=True), key=lambda pair: pair[0].index):
        if call.call_id in nodes:
            raise AlignmentError(f"call {call.call_id} is there twice", "the store must give each call once")
        nodes[call.call_id] = _read(call, payload, nodes)
    _link(nodes)
    _judge(nodes)
    return Trace(nodes=tuple(nodes.values()))


def _read(call: Call, payload: CallPayload | None, nodes: dict[str, Node]) -> Node:
    """A node without its place: the whole prompt put together, everything checked."""
    if payload is None:
        none: Int32 = np.zeros(0, np.int32)
        return Node(
            call=call,
            prompt_ids=none,
            sampled_ids=none,
            logprobs=np.zeros(0, np.float32),
            versions=none,
            excluded="no payload",
        )
    prompt = np.asarray(payload.prompt_delta, np.int32)
    if call.parent_call_id:
        parent = nodes.get(call.parent_call_id)
        if parent is None or parent.excluded == "no payload":
            raise _misaligned(call, f"its parent {call.parent_call_id} is not among the earlier calls of this attempt")
        prompt = np.concatenate([parent.prompt_ids, parent.sampled_ids, prompt])
    sampled = np.asarray(payload.sampled_ids, np.int32)
    logprobs = np.asarray(payload.logprobs, np.float32)
    if len(prompt) != call.prompt_tokens:
        raise _misaligned(call, f"it was fed {call.prompt_tokens} prompt tokens but {len(prompt)} are recorded")
    if len(sampled) != call.sampled_tokens:
        raise _misaligned(call, f"it sampled {call.sampled_tokens} tokens but {len(sampled)} are recorded")
    if len(logprobs) not in (0, len(sampled)):
        raise _misaligned(call, f"{len(sampled)} sampled tokens have {len(logprobs)} logprobs")
    return Node(call=call, prompt_ids=prompt, sampled_ids=sampled, logprobs=logprobs, versions=_versions(call, len(sampled)))


def _versions(call: Call, length: int) -> Int32:
    """Policy version of each sampled token, shape [length]; all -1 when the call has no spans."""
    versions = np.full(length, -1, np.int32)
    starts = [span.start for span in call.versions]
    if not starts or not length:
        return versions
    if starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= length:
        raise _misaligned(call, f"its policy versions start at {starts} of {length} tokens")
    for span in call.versions:
        versions[span.start :] = span.policy_version
    return versions


def _misaligned(call: Call, what: str) -> AlignmentError:
    return AlignmentError(
        f"call {call.call_id} (number {call.index} of rollout {call.rollout_id}, attempt {call.attempt}): {what}",
        "the record is damaged; leave the rollout out and report it",
    )


def _link(nodes: dict[str, Node]) -> None:
    """Give each node its parent and children, by prefix alone."""
    children: dict[str, list[str]] = {call_id: [] for call_id in nodes}
    earlier: list[tuple[bytes, Node]] = []
    for call_id, node in nodes.items():
        prompt = node.prompt_ids.tobytes()
        fits = [(whole, other) for whole, other in earlier if prompt.startswith(whole)]
        if fits:
            longest = max(len(whole) for whole, _ in fits)
            parent = _choose([other for whole, other in fits if len(whole) == longest], node.call)
            nodes[call_id] = msgspec.structs.replace(node, parent=parent.call_id)
            children[parent.call_id].append(call_id)
        if len(node.sampled_ids):
            earlier.append((node.full_ids.tobytes(), node))
    for call_id, found in children.items():
        nodes[call_id] = msgspec.structs.replace(nodes[call_id], children=tuple(found))


def _choose(same: list[Node], call: Call) -> Node:
    """Of calls that sampled the same ids after the same prompt: the recorded parent, else the last delivered, else the last."""
    recorded = [node for node in same if node.call_id == call.parent_call_id]
    delivered = [node for node in same if node.call.delivered]
    return (recorded or delivered or same)[-1]


def _judge(nodes: dict[str, Node]) -> None:
    """Decide for each node whether it was delivered and may be trained."""
    alike: dict[bytes, list[Node]] = {}
    for node in nodes.values():
        if node.excluded != "no payload":
            alike.setdefault(node.prompt_ids.tobytes(), []).append(node)
    counting = {node.call_id for group in alike.values() for node in _counting(group)}
    for call_id, node in nodes.items():
        delivered = node.call.delivered or bool(node.children)
        excluded = node.excluded or _exclusion(node, delivered, call_id in counting)
        nodes[call_id] = msgspec.structs.replace(node, delivered=delivered, excluded=excluded)


def _counting(group: list[Node]) -> list[Node]:
    """Of calls with one prompt: those continued; else the last delivered one; else the last."""
    continued = [node for node in group if node.children]
    delivered = [node for node in group if node.call.delivered]
    return continued or delivered[-1:] or group[-1:]


def _exclusion(node: Node, delivered: bool, counts: bool) -> Exclusion:
    call = node.call
    checks: tuple[tuple[bool, Exclusion], ...] = (
        (call.finish_reason == "error", "error"),
        (len(node.sampled_ids) == 0, "nothing sampled"),
        (not delivered, "undelivered"),
        (not counts, "superseded"),
        (len(node.logprobs) == 0 or call.logprob_source == "none", "no logprobs"),
        (not bool(np.isfinite(node.logprobs).all()), "non-finite logprobs"),
        (call.logprob_source == "raw" and call.sampling.temperature != 1.0, "raw logprobs"),
        (bool((node.versions < 0).any()), "no policy version"),
    )
    return next((reason for applies, reason in checks if applies), "")
