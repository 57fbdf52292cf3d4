"""Which calls may be trained, and why the others may not. Pure.

Invariants (tests/traces/test_traces_exclusions.py):
- a call that is not trained has exactly one reason, the first that applies;
- of calls with the same prompt, those that were continued count, or else the last delivered, or else the last; the others are
  superseded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from whippletree.traces.prefixes import Place
from whippletree.traces.tree import Exclusion, Node
from whippletree.types import Role

ROLES: dict[Role, Exclusion] = {
    "main": "role main is not trained",
    "subagent": "role subagent is not trained",
    "compaction": "role compaction is not trained",
    "side": "role side is not trained",
}


def counting(nodes: Iterable[Node]) -> set[str]:
    """Ids of the calls that count among those with the same prompt."""
    alike: dict[Place, list[Node]] = {}
    for node in nodes:
        if node.prompt is not None:
            alike.setdefault(node.prompt, []).append(node)
    return {node.call_id for group in alike.values() for node in _counting(group)}


def _counting(group: list[Node]) -> list[Node]:
    continued = [node for node in group if node.children]
    delivered = [node for node in group if node.call.delivered]
    return continued or delivered[-1:] or group[-1:]


def exclusion(node: Node, counts: bool, train_roles: Collection[Role]) -> Exclusion:
    """Why a call with ids is not trained; "" when it is. `counts`: it is not superseded. Role and delivery are settled."""
    call = node.call
    checks: tuple[tuple[bool, Exclusion], ...] = (
        (call.finish_reason == "error", "error"),
        (len(node.sampled_ids) == 0 and call.sampled_tokens == 0, "nothing sampled"),
        (len(node.sampled_ids) < call.sampled_tokens, "incomplete capture"),
        (not node.delivered, "undelivered"),
        (not counts, "superseded"),
        (len(node.logprobs) == 0 or call.logprob_source == "none", "no logprobs"),
        (not bool(np.isfinite(node.logprobs).all()), "non-finite logprobs"),
        (call.logprob_source == "raw" and call.sampling.temperature != 1.0, "raw logprobs"),
        (call.constrained, "constrained sampling"),
        (bool((node.versions < 0).any()), "no policy version"),
        (node.role not in train_roles, ROLES[node.role]),
    )
    return next((reason for applies, reason in checks if applies), "")
