"""From a request to prompt ids: go on from recorded ids where the messages do, render anew where they do not. Pure.

Invariants (tests/gateway/test_gateway_prompts.py):
- a request whose messages go on from a recorded call gets a prompt that starts with that call's prompt and sampled ids, or a
  cause why it does not;
- a request with the same tools and messages as a recorded call gets that call's cause.
"""

from __future__ import annotations

import msgspec
import numpy as np

from whippletree.gateway.lineage import Fingerprint, Lineage, Node, fingerprints, tools_fingerprint
from whippletree.protocols import Renderer
from whippletree.types import ChatRequest, Int32, PrefixBreak


class Prompt(msgspec.Struct, kw_only=True):
    """The prompt of one request: its ids [P], the call whose ids it starts with, and why it starts with no more than that.

    `base` is the call whose request and reply are the start of the messages; `request` their fingerprint.
    """

    ids: list[int]
    delta: Int32
    parent: Node | None
    base: Node | None
    cause: PrefixBreak
    tools: Fingerprint
    request: Fingerprint


def prepare(lineage: Lineage, renderer: Renderer, request: ChatRequest) -> Prompt:
    """Raises RequestError when the template refuses the messages."""
    tools = tools_fingerprint(request.tools)
    prints = fingerprints(tools, request.messages)
    base = lineage.find_base(prints)
    same = lineage.find_same(prints[-1])
    ids, parent = None, base
    if base is not None:
        ids = renderer.bridge(lineage.ids(base).tolist(), request.messages, request.tools)
    if ids is None:
        ids = renderer.render(request.messages, request.tools)
        parent = lineage.find_parent(np.asarray(ids, dtype=np.int32))
        if same is not None:
            cause = same.call.prefix_break
        elif base is None:
            cause = "" if parent is not None else lineage.cause(request.messages)
        else:
            cause = _break(lineage, renderer, base, ids, request)
    else:
        cause = ""
    known = 0 if parent is None else _length(parent)
    delta = np.asarray(ids[known:], dtype=np.int32)
    return Prompt(ids=ids, delta=delta, parent=parent, base=base, cause=cause, tools=tools, request=prints[-1])


def _break(lineage: Lineage, renderer: Renderer, base: Node, ids: list[int], request: ChatRequest) -> PrefixBreak:
    """Why the ids of `base` are not the start of a prompt whose messages start with it."""
    recorded = renderer.decode(lineage.ids(base).tolist())
    if renderer.decode(ids).startswith(recorded):
        return "retokenisation"
    echoed = request.messages[base.messages]
    sent = base.reply
    unchanged = (echoed.content, echoed.reasoning) == (sent.content, sent.reasoning) and (
        [(call.name, call.arguments) for call in echoed.tool_calls] == [(call.name, call.arguments) for call in sent.tool_calls]
    )
    return "template" if unchanged else "harness_edit"


def _length(node: Node) -> int:
    return node.call.prompt_tokens + node.call.sampled_tokens
