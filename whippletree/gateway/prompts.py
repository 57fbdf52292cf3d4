"""From a request to prompt ids: go on from recorded ids where the messages do, render anew where they do not. Pure.

    plan (what is known of the request) ─► compose (its ids: costly, safe on a thread) ─► settle (its place in the tree)

Invariants (tests/gateway/test_gateway_prompts.py):
- a request whose messages go on from a recorded call gets a prompt that starts with that call's prompt and sampled ids, or a
  cause why it does not;
- a request with the same tools and messages as a recorded call gets that call's cause;
- reasoning that a harness dropped, and whose mark it sent back, is in the prompt again.
"""

from __future__ import annotations

import msgspec
import numpy as np

from whippletree.gateway.leaves import Leaf, Prints, Recent
from whippletree.gateway.lineage import Break, Lineage, Node, tidied
from whippletree.protocols import Recorded, Renderer
from whippletree.types import ChatRequest, Int32, Message, PrefixBreak

NO_IDS: Int32 = np.zeros(0, np.int32)
NO_JSON = b"[]"


class Prompt(msgspec.Struct, kw_only=True):
    """The prompt of one request: its ids [P], the call whose ids it starts with, and why it starts with no more than that.

    `delta` [P'] are the ids after the parent's; `forced` of them, at the end, begin the turn and are no part of what the
    template writes. `base` is the call whose request and reply are the start of the messages. `text`: the exact bytes of the
    ids, `json` their JSON array. `origin`, `shares`: see lineage.Break. Without ids (an engine renders by itself) they are all
    empty.
    """

    ids: Int32
    delta: Int32
    text: bytes
    json: bytes
    parent: Node | None
    base: Node | None
    cause: PrefixBreak
    prints: Prints
    forced: int = 0
    origin: str = ""
    shares: str = ""


class Plan(msgspec.Struct, kw_only=True):
    """What is known of a request before its prompt is made. `new`: characters that no recorded call has."""

    request: ChatRequest
    prints: Prints
    base: Node | None
    same: Node | None
    new: int
    recorded: Recorded | None = None
    whole: Int32 = msgspec.field(default_factory=lambda: NO_IDS)
    json: bytes = NO_JSON


class Composed(msgspec.Struct, kw_only=True):
    """The ids [P] of a prompt, their text, and whether they start with the base's ids."""

    ids: Int32
    text: bytes
    json: bytes
    bridged: bool
    forced: int = 0


def restored(request: ChatRequest, lineage: Lineage) -> ChatRequest:
    """The request as it is matched and rendered: tidied, and with the reasoning whose mark came back without it."""
    messages = tidied(request.messages)
    if any(message.signature and not message.reasoning for message in messages):
        messages = tuple(_with_reasoning(message, lineage) for message in messages)
    return request if messages == request.messages else msgspec.structs.replace(request, messages=messages)


def _with_reasoning(message: Message, lineage: Lineage) -> Message:
    if message.role != "assistant" or message.reasoning or not message.signature:
        return message
    node = lineage.nodes.get(message.signature)
    return message if node is None else msgspec.structs.replace(message, reasoning=node.reply.reasoning)


def plan(lineage: Lineage, recent: Recent, request: ChatRequest, renderer: Renderer | None) -> Plan:
    """What the lineage has of a request. `renderer` None: no ids are wanted."""
    prints = recent.prints(request)
    base = lineage.find_base(prints.after)
    known = base.messages + 1 if base is not None else 0
    made = Plan(
        request=request,
        prints=prints,
        base=base,
        same=lineage.find_same(prints.after[-1]),
        new=sum(len(message.content) for message in request.messages[known:]),
    )
    if renderer is not None and base is not None and base.has_ids:
        leaf = recent.leaves.get(base.call.call_id)
        ids = leaf.ids if leaf is not None else lineage.ids(base)
        text = leaf.text if leaf is not None else renderer.to_bytes(ids.tolist())
        made.json = leaf.json if leaf is not None else msgspec.json.encode(ids.tolist())
        start = len(ids) - base.call.sampled_tokens
        made.recorded = Recorded(prompt=ids[:start], sampled=ids[start:], text=text, messages=known)
        made.whole = ids
    return made


def bridge(plan: Plan, renderer: Renderer) -> Composed | None:
    """The base's ids and what follows them; None where there is no base or its ids cannot be gone on from."""
    if plan.recorded is None:
        return None
    rest = renderer.bridge(plan.recorded, plan.request.messages, plan.request.tools)
    if rest is None:
        return None
    ids = np.concatenate([plan.whole, np.asarray(rest, dtype=np.int32)])
    return Composed(ids=ids, text=plan.recorded.text + renderer.to_bytes(rest), json=extended(plan.json, rest), bridged=True)


def render(plan: Plan, renderer: Renderer) -> Composed:
    """The whole prompt anew. Raises RequestError when the template refuses the messages."""
    ids = renderer.render(plan.request.messages, plan.request.tools)
    text, json = renderer.to_bytes(ids), msgspec.json.encode(ids)
    return Composed(ids=np.asarray(ids, dtype=np.int32), text=text, json=json, bridged=False)


def force(composed: Composed, ids: list[int], renderer: Renderer) -> Composed:
    """The prompt with the ids that begin a forced turn."""
    whole = np.concatenate([composed.ids, np.asarray(ids, dtype=np.int32)])
    text = composed.text + renderer.to_bytes(ids)
    return msgspec.structs.replace(composed, ids=whole, text=text, json=extended(composed.json, ids), forced=len(ids))


def extended(json: bytes, ids: list[int]) -> bytes:
    """A JSON array of numbers, with more of them at its end."""
    more = msgspec.json.encode(ids)
    return json[:-1] + (b"," if len(json) > len(NO_JSON) and ids else b"") + more[1:]


def settle(lineage: Lineage, plan: Plan, composed: Composed, thread: str) -> Prompt:
    """The prompt's place in the tree as it is now, and why it is a new prefix. `thread`: the harness's name of the
    conversation."""
    parent = plan.base if composed.bridged else lineage.find_parent(composed.ids)
    found = _goes_on(lineage, plan) if composed.bridged else _break(lineage, plan, composed, parent, thread)
    known = 0 if parent is None else parent.length
    return Prompt(
        ids=composed.ids,
        delta=composed.ids[known:],
        text=composed.text,
        json=composed.json,
        parent=parent,
        base=plan.base,
        cause=found.cause,
        prints=plan.prints,
        forced=composed.forced,
        origin=found.origin,
        shares=found.shares,
    )


def _break(lineage: Lineage, plan: Plan, composed: Composed, parent: Node | None, thread: str) -> Break:
    if plan.base is not None:
        return msgspec.structs.replace(_goes_on(lineage, plan), cause=_changed(plan, plan.base, composed))
    if plan.same is None and parent is not None:
        return Break(cause="")
    return _start(lineage, plan, thread)


def _goes_on(lineage: Lineage, plan: Plan) -> Break:
    """No new prefix where a request goes on from its base; behind it may stand a summary of other turns."""
    if plan.base is None:
        return Break(cause="")
    return Break(cause="", origin=lineage.summary_after(plan.base, plan.request.messages, plan.prints.forms))


def _start(lineage: Lineage, plan: Plan, thread: str) -> Break:
    """Why a request that goes on from no call is the start of a prefix."""
    if plan.same is None:
        return lineage.break_of(plan.request.messages, plan.prints.forms, thread, tools=bool(plan.request.tools))
    call = plan.same.call
    return Break(cause=call.prefix_break, origin=call.origin_call_id, shares=call.call_id)


def _changed(plan: Plan, base: Node, composed: Composed) -> PrefixBreak:
    """Why the ids of the base are not the start of a prompt whose messages start with it."""
    if plan.recorded is not None and composed.text.startswith(plan.recorded.text):
        return "retokenisation"
    echoed, sent = plan.request.messages[base.messages], base.reply
    unchanged = (echoed.content, echoed.reasoning) == (sent.content, sent.reasoning) and (
        [(call.name, call.arguments) for call in echoed.tool_calls] == [(call.name, call.arguments) for call in sent.tool_calls]
    )
    return "template" if unchanged else "harness_edit"


def unrendered(lineage: Lineage, plan: Plan, thread: str) -> Prompt:
    """The place of a request whose prompt an engine makes: no ids, a cause only where its messages go on from no call."""
    found = _goes_on(lineage, plan) if plan.base is not None else _start(lineage, plan, thread)
    return Prompt(
        ids=NO_IDS,
        delta=NO_IDS,
        text=b"",
        json=NO_JSON,
        parent=None,
        base=plan.base,
        cause=found.cause,
        prints=plan.prints,
        origin=found.origin,
        shares=found.shares,
    )


def told(lineage: Lineage, prompt: Prompt, ids: Int32, text: bytes) -> Prompt:
    """The prompt as the engine says that it made it. `ids`: int32 [P]."""
    parent = lineage.find_parent(ids)
    cause = prompt.cause
    if prompt.base is not None and parent is not prompt.base:
        cause = "engine"
    elif parent is not None:
        cause = ""
    known = 0 if parent is None else parent.length
    json = msgspec.json.encode(ids.tolist())
    return msgspec.structs.replace(prompt, ids=ids, delta=ids[known:], text=text, json=json, parent=parent, cause=cause)


def blank(prompt: Prompt) -> Prompt:
    """The prompt of a turn whose engine told no ids."""
    return msgspec.structs.replace(prompt, ids=NO_IDS, delta=NO_IDS, text=b"", json=NO_JSON, parent=None)


def leaf_of(prompt: Prompt, request: ChatRequest, sampled: list[int], text: bytes) -> Leaf:
    """What is kept of a call. `text`: the bytes of the sampled ids."""
    ids = np.concatenate([prompt.ids, np.asarray(sampled, dtype=np.int32)])
    return Leaf(
        ids=ids,
        text=prompt.text + text,
        json=extended(prompt.json, sampled),
        tools=request.tools,
        messages=request.messages,
        prints=prompt.prints,
    )
