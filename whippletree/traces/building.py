"""From the calls of an attempt to their tree.

Each call's ids go into one tree of ids (traces/prefixes.py), starting where its recorded parent ends, so that building takes
time linear in the ids that are stored, however long the prompts are.

Invariants (tests/traces/test_traces_building.py):
- a call's parent is the earlier call whose prompt + sampled ids are the longest exact prefix of its prompt, and nothing else
  decides it; a call that no earlier one is a prefix of is a root; of calls that sampled the same ids after the same prompt, the
  recorded parent is it, or else the last delivered, or else the last;
- ids, logprobs, versions and lengths of every call are checked here, once: a record that contradicts itself is an
  AlignmentError that names the call; everything after this module takes alignment for granted;
- a call whose ids are not known, or not all of them, is no error: it is not trained, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from whippletree.errors import AlignmentError
from whippletree.protocols import Store
from whippletree.traces.config import TracesConfig
from whippletree.traces.exclusions import counting, exclusion
from whippletree.traces.prefixes import Place, longest_earlier, make_root
from whippletree.traces.roles import assign_roles
from whippletree.traces.tree import Exclusion, Node, Trace
from whippletree.types import Call, CallPayload, Float32, Int32, Rollout, RoutedExperts

DEFAULTS = TracesConfig()


def load_trace(store: Store, rollout: Rollout, config: TracesConfig = DEFAULTS) -> Trace:
    """The trace of a rollout's last attempt. Raises StoreError when a payload is gone, AlignmentError when one is wrong."""
    calls = store.calls(rollout.spec.rollout_id, rollout.attempt)
    return build_trace(calls, [store.payload(call) if call.payload is not None else None for call in calls], config)


def build_trace(calls: Sequence[Call], payloads: Sequence[CallPayload | None], config: TracesConfig = DEFAULTS) -> Trace:
    """Link calls into a tree. `payloads[i]` belongs to `calls[i]`; None where a call left none (it failed before sampling).

    Raises AlignmentError that names the call.
    """
    if len(calls) != len(payloads):
        raise AlignmentError(f"{len(calls)} calls but {len(payloads)} payloads", "pass one payload, or None, per call")
    nodes: dict[str, Node] = {}
    root = make_root()
    for call, payload in sorted(zip(calls, payloads, strict=True), key=lambda pair: pair[0].index):
        if call.call_id in nodes:
            raise AlignmentError(f"call {call.call_id} is there twice", "the store must give each call once")
        nodes[call.call_id] = _read(call, payload, nodes, root)
    return _judged(_linked(nodes), config)


def _read(call: Call, payload: CallPayload | None, nodes: Mapping[str, Node], root: Place) -> Node:
    """A node without its parent and part; everything checked, its ids put in the tree of ids."""
    none: Int32 = np.zeros(0, np.int32)
    no_logprobs: Float32 = np.zeros(0, np.float32)
    if payload is None:
        return Node(call=call, sampled_ids=none, logprobs=no_logprobs, versions=none, excluded="no payload")
    node = Node(
        call=call,
        sampled_ids=np.asarray(payload.sampled_ids, np.int32),
        logprobs=np.asarray(payload.logprobs, np.float32),
        versions=none,
        messages_json=payload.messages_json,
        reply_json=payload.reply_json,
        experts=payload.experts,
    )
    missing = _missing(call, payload)
    if missing:
        return msgspec.structs.replace(node, sampled_ids=none, logprobs=no_logprobs, excluded=missing)
    start = root
    if call.parent_call_id:
        parent = nodes.get(call.parent_call_id)
        if parent is None or parent.end is None:
            raise _misaligned(call, f"its parent {call.parent_call_id} is not among the earlier calls of this attempt with ids")
        start = parent.end
    prompt = start.extend(np.asarray(payload.prompt_delta, np.int32))
    sampled = len(node.sampled_ids)
    if prompt.depth != call.prompt_tokens:
        raise _misaligned(call, f"it was fed {call.prompt_tokens} prompt tokens but {prompt.depth} are recorded")
    if sampled > call.sampled_tokens:
        raise _misaligned(call, f"it sampled {call.sampled_tokens} tokens but {sampled} are recorded")
    if len(node.logprobs) not in (0, sampled):
        raise _misaligned(call, f"{sampled} sampled tokens have {len(node.logprobs)} logprobs")
    _check_experts(call, payload.experts, prompt.depth + sampled)
    return msgspec.structs.replace(node, prompt=prompt, end=prompt.extend(node.sampled_ids), versions=_versions(call, sampled))


def _check_experts(call: Call, experts: RoutedExperts | None, length: int) -> None:
    if experts is None:
        return
    tokens, layers, used = experts.shape
    if not 0 <= experts.start <= experts.start + tokens <= length or len(experts.data) != 2 * tokens * layers * used:
        raise _misaligned(
            call, f"routed experts of shape {experts.shape} from token {experts.start} on are recorded for {length} tokens"
        )


def _missing(call: Call, payload: CallPayload) -> Exclusion:
    """Why a call has no place among the others: the ids that it was fed are not known."""
    if call.grade != "tokens":
        return "no token ids"
    if call.parent_call_id or len(payload.prompt_delta) or not call.prompt_tokens:
        return ""
    return "prompt ids missing" if len(payload.sampled_ids) else "no token ids"


def _versions(call: Call, length: int) -> Int32:
    """Policy version of each sampled token, shape [length]; all -1 when the call has no spans."""
    versions = np.full(length, -1, np.int32)
    starts = [span.start for span in call.versions]
    if not starts or not length:
        return versions
    if starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= max(length, call.sampled_tokens):
        raise _misaligned(call, f"its policy versions start at {starts} of {length} tokens")
    for span in call.versions:
        versions[span.start :] = span.policy_version
    return versions


def _misaligned(call: Call, what: str) -> AlignmentError:
    return AlignmentError(
        f"call {call.call_id} (number {call.index} of rollout {call.rollout_id}, attempt {call.attempt}): {what}",
        "the record is damaged; leave the rollout out and report it",
    )


def _linked(nodes: dict[str, Node]) -> list[Node]:
    """The nodes with parents and children, by prefix alone."""
    ordered = list(nodes.values())
    ends = [node.end if len(node.sampled_ids) else None for node in ordered]
    places = longest_earlier([node.prompt for node in ordered], ends)
    last: dict[Place, Node] = {}
    delivered: dict[Place, Node] = {}
    parents: dict[str, str] = {}
    children: dict[str, list[str]] = {}
    for node, place, end in zip(ordered, places, ends, strict=True):
        if place is not None:
            recorded = nodes.get(node.call.parent_call_id)
            same = recorded is not None and recorded.end is place and len(recorded.sampled_ids) > 0
            parent = recorded if recorded is not None and same else delivered.get(place, last[place])
            parents[node.call_id] = parent.call_id
            children.setdefault(parent.call_id, []).append(node.call_id)
        if end is not None:
            last[end] = node
            if node.call.delivered:
                delivered[end] = node
    return [
        msgspec.structs.replace(node, parent=parents.get(node.call_id, ""), children=tuple(children.get(node.call_id, ())))
        for node in ordered
    ]


def _judged(nodes: Sequence[Node], config: TracesConfig) -> Trace:
    """The nodes with their parts, what was delivered, and what is trained."""
    parts = assign_roles([node.call for node in nodes], {node.call_id: node.parent for node in nodes})
    counts = counting(nodes)
    judged: dict[str, Node] = {}
    for node in nodes:
        part = parts[node.call_id]
        settled = msgspec.structs.replace(
            node,
            role=part.role,
            conversation=part.conversation,
            delivered=node.call.delivered or bool(node.children),
        )
        excluded = node.excluded or exclusion(settled, node.call_id in counts, config.train_roles)
        judged[node.call_id] = msgspec.structs.replace(settled, excluded=excluded)
    return Trace(by_id=judged)
