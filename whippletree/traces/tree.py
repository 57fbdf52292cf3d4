"""The calls of one attempt as a tree, linked by exact token prefix (made by traces/building.py).

    call A: prompt ──► sampled
    call B: [prompt of A][sampled of A][new] ──► sampled          child of A
    call C: the prompt of B again ──► sampled                     sibling of B: a retry

Invariants (tests/traces/test_traces_tree.py):
- every parent stands before its children, and both name each other;
- a path ends with a call that is trained, and every trained call is on one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from whippletree.traces.prefixes import Place
from whippletree.types import Call, Float32, Int32, Role, RoutedExperts

Exclusion = Literal[
    "",
    "no payload",
    "no token ids",
    "prompt ids missing",
    "incomplete capture",
    "error",
    "nothing sampled",
    "undelivered",
    "superseded",
    "no logprobs",
    "non-finite logprobs",
    "raw logprobs",
    "constrained sampling",
    "no policy version",
    "role main is not trained",
    "role subagent is not trained",
    "role compaction is not trained",
    "role side is not trained",
]


class Node(msgspec.Struct, kw_only=True, frozen=True, eq=False):
    """One call in its place. Shapes: sampled_ids [S], logprobs [S], versions [S] (policy version per token).

    `prompt` and `end` are where its prompt and its sampled ids end in the tree of all ids; both are None for a call without
    them, which stands alone. `parent` and `children` are call ids ("" and () where there are none). `role` and
    `conversation`, the first call of its conversation, are those of traces/roles.py. `excluded` says why it is not trained
    ("" when it is). `delivered`: the harness had the whole reply, by its record or because a later prompt continues it.
    `messages_json` and `reply_json` are those of its payload, and so is `experts`.
    """

    call: Call
    sampled_ids: Int32
    logprobs: Float32
    versions: Int32
    prompt: Place | None = None
    end: Place | None = None
    messages_json: bytes = b"[]"
    reply_json: bytes = b""
    experts: RoutedExperts | None = None
    role: Role = "main"
    conversation: str = ""
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
    def prompt_length(self) -> int:
        """Ids in its prompt, P; 0 where they are not known."""
        return 0 if self.prompt is None else self.prompt.depth

    @property
    def prompt_ids(self) -> Int32:
        """Prompt ids, shape [P]; put together anew at each use."""
        return self.sampled_ids[:0] if self.prompt is None else self.prompt.ids()

    @property
    def full_ids(self) -> Int32:
        """Prompt and sampled ids, shape [P + S]; put together anew at each use."""
        return self.sampled_ids if self.end is None else self.end.ids()


class Trace(msgspec.Struct, frozen=True, eq=False):
    """The calls of one attempt by id, in order of their index. Every parent stands before its children."""

    by_id: dict[str, Node] = {}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The calls, by index."""
        return tuple(self.by_id.values())

    def node(self, call_id: str) -> Node:
        """The node of a call. Raises KeyError when it is not of this trace."""
        return self.by_id[call_id]

    def new_ids(self, node: Node) -> Int32:
        """The ids of a call's prompt that follow its parent's prompt and reply; the whole prompt of a root."""
        if node.prompt is None:
            return node.prompt_ids
        return node.prompt.ids(after=self.by_id[node.parent].end if node.parent else None)

    def paths(self) -> list[tuple[Node, ...]]:
        """Root-to-leaf paths worth training, by index of the leaf; untrainable calls at the end of a path are left off."""
        kept: set[str] = set()
        for node in reversed(self.nodes):
            if node.trainable or any(child in kept for child in node.children):
                kept.add(node.call_id)
        leaves = [n for n in self.nodes if n.call_id in kept and not any(child in kept for child in n.children)]
        return [tuple(self._ancestry(leaf))[::-1] for leaf in leaves]

    def _ancestry(self, node: Node) -> Iterable[Node]:
        yield node
        while node.parent:
            node = self.by_id[node.parent]
            yield node
