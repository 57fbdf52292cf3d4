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
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from whippletree.gateway.roles import argument_texts, started_by
from whippletree.types import Call, CallPayload, Int32, Message, ParsedMessage, PrefixBreak, Struct, ToolSpec

Fingerprint = bytes
WIDTH = 4  # bytes of an id
SHORTEST_SUMMARY = 40  # characters; a shorter reply is found in too many messages
SUMMARY_MARKS = re.compile(r"(?=<(summary|state_snapshot)>(.*?)</\1>)", re.DOTALL)


class Links(Struct):
    """How a call is found again: the fingerprints of its tools, of its request and of request and reply; `asked`: the form of
    the request's last message, `said` that of the reply; `look`: what its conversation looks like (roles.Opening), set where it
    starts anew.

    Example: Links(tools=b"16 bytes", request=b"16 bytes", after=b"16 bytes", asked=b"16 bytes", offered=12)
    """

    tools: Fingerprint
    request: Fingerprint
    after: Fingerprint
    asked: Fingerprint = b""
    said: Fingerprint = b""
    look: bytes = b""
    offered: int = 0


class Node(msgspec.Struct, kw_only=True, eq=False):
    """One recorded call in memory.

    `tail`: the ids of prompt_delta and sampled, int32 little-endian, `delta` of them the prompt's; the prompt is the parent's
    prompt and sampled ids, then the delta. `messages` counts the request's messages. `continued`: a request went on from it.
    """

    call: Call
    parent: Node | None
    tail: bytes
    delta: int
    links: Links
    messages: int
    reply: Message
    children: list[Node] = []
    continued: bool = False
    _texts: tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """What its sampled arguments say that could be another agent's instruction."""
        if self._texts is None:
            self._texts = argument_texts(self.reply.tool_calls)
        return self._texts

    @property
    def length(self) -> int:
        """Prompt and sampled tokens."""
        return self.call.prompt_tokens + self.call.sampled_tokens

    @property
    def has_ids(self) -> bool:
        """Whether its ids are known: not so below grade "tokens"."""
        return self.call.grade == "tokens"


def make_node(
    call: Call, payload: CallPayload, parent: Node | None, links: Links | None = None, reply: Message | None = None
) -> Node:
    """A recorded call as the lineage keeps it. `links`, `reply`: what the payload has of them, where it is at hand already."""
    prompt = np.ascontiguousarray(payload.prompt_delta, dtype="<i4")
    sampled = np.ascontiguousarray(payload.sampled_ids, dtype="<i4")
    return Node(
        call=call,
        parent=parent,
        tail=prompt.tobytes() + sampled.tobytes(),
        delta=len(prompt),
        links=links or msgspec.msgpack.decode(payload.lineage, type=Links),
        messages=call.messages,
        reply=reply or reply_message(msgspec.json.decode(payload.reply_json, type=ParsedMessage)),
    )


def reply_message(message: ParsedMessage) -> Message:
    """A sampled turn as a message of history."""
    return Message(role="assistant", content=message.content, reasoning=message.reasoning, tool_calls=message.tool_calls)


def normal_form(message: Message) -> bytes:
    """What two messages must have in common to count as the same one."""
    calls = [(call.name, _canonical(call.arguments)) for call in message.tool_calls]
    content = message.content.strip() if message.role == "assistant" else message.content
    media = [item.digest for item in message.media]
    return msgspec.json.encode((message.role, content, calls, media))


def _canonical(arguments: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(arguments), order="sorted"))
    except (msgspec.DecodeError, RecursionError):
        return arguments.strip()


def form(message: Message) -> Fingerprint:
    """The digest of a message's normal form."""
    return hashlib.blake2b(normal_form(message), digest_size=16).digest()


def tools_fingerprint(tools: Sequence[ToolSpec]) -> Fingerprint:
    """The start of every fingerprint of a request with these tools."""
    return hashlib.blake2b(msgspec.json.encode(tools, order="sorted"), digest_size=16).digest()


def chained(start: Fingerprint, forms: Sequence[Fingerprint]) -> list[Fingerprint]:
    """The running hash after each form; index k is after forms[k]."""
    prints = []
    for one in forms:
        start = hashlib.blake2b(one, digest_size=16, key=start).digest()
        prints.append(start)
    return prints


def fingerprints(start: Fingerprint, messages: Sequence[Message]) -> list[Fingerprint]:
    """The running hash after each message; index k is after messages[k]."""
    return chained(start, [form(message) for message in messages])


def tidied(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages as they are matched and rendered: results of one tool call that follow one another are one result."""
    tidy: list[Message] = []
    for message in messages:
        last = tidy[-1] if tidy else None
        if (
            last is not None
            and message.role == last.role == "tool"
            and len(message.tool_call_id) > 0
            and (message.tool_call_id == last.tool_call_id)
        ):
            content = "\n".join(text for text in (last.content, message.content) if text)
            both = last.media + message.media
            failed = last.is_error or message.is_error
            tidy[-1] = msgspec.structs.replace(last, content=content, media=both, is_error=failed)
        else:
            tidy.append(message)
    return tuple(tidy)


class Break(Struct):
    """Why a request that goes on from no call starts a new prefix. `origin`: the call whose reply is the summary, or that
    started this conversation, or ""; `shares`: the call whose messages it carries on, or "".

    Example: Break(cause="compaction", origin="c-5d1f", shares="c-5d1f")
    """

    cause: PrefixBreak
    origin: str = ""
    shares: str = ""


class Lineage:
    """The recorded calls of one attempt."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._roots: list[Node] = []
        self._after: dict[Fingerprint, Node] = {}
        self._requests: dict[Fingerprint, Node] = {}
        self._seen: dict[Fingerprint, str] = {}  # digest of place and form → the last call that had it there

    def add(self, node: Node, forms: Sequence[Fingerprint], first: int = 0) -> None:
        """Add a recorded call. `forms` are those of its request's messages from place `first` on (earlier ones are known)."""
        self.nodes[node.call.call_id] = node
        if node.has_ids:
            (self._roots if node.parent is None else node.parent.children).append(node)
        if (base := self.nodes.get(node.call.base_call_id)) is not None:
            base.continued = True
        self._requests[node.links.request] = node
        known = self._after.get(node.links.after)
        if known is None or node.call.delivered or not known.call.delivered:
            self._after[node.links.after] = node
        for place, one in enumerate((*forms, node.links.said or form(node.reply)), start=first):
            self._seen[_placed(place, one)] = node.call.call_id

    def delivered(self, node: Node) -> None:
        """The harness has this call's whole reply: among calls with the same reply it is the one that is gone on from."""
        node.call = msgspec.structs.replace(node.call, delivered=True)
        self._after[node.links.after] = node

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

    def break_of(
        self, messages: Sequence[Message], forms: Sequence[Fingerprint], thread: str = "", *, tools: bool = True
    ) -> Break:
        """Why a request that goes on from no call starts a new prefix. `thread`: the harness's name of its conversation, or
        "". `tools`: whether it offers any; a request without, under a system prompt that was never seen, carries on no work: it
        quotes a reply for another end (a commit message)."""
        if not self.nodes:
            return Break(cause="first")
        shares = [self._shares(place, forms[place], thread) for place in range(len(forms))]
        starter = self._starter(messages, shares)
        if starter:
            return Break(cause="new_thread", origin=starter)
        unlike = not tools and messages[0].role == "system" and not shares[0]
        summary = self._summary(messages[:1] if unlike else messages, set(forms))
        if summary is not None:
            return Break(cause="compaction", origin=summary.call.call_id, shares=summary.call.call_id)
        for place in reversed(range(len(forms))):
            if messages[place].role != "system" and shares[place]:
                return Break(cause="harness_edit", shares=shares[place])
        return Break(cause="new_thread")

    def _shares(self, place: int, one: Fingerprint, thread: str) -> str:
        """The last call of this conversation that had the message at the same place; "" for none."""
        call_id = self._seen.get(_placed(place, one), "")
        other = self.nodes[call_id].call.thread if call_id else ""
        return "" if thread and other and thread != other else call_id

    def _starter(self, messages: Sequence[Message], shares: Sequence[str]) -> str:
        """The call that asked for this conversation by a tool call: one of its arguments is the instruction."""
        told = []
        for message, shared in zip(messages, shares, strict=True):
            if message.role in ("assistant", "tool"):
                break
            if message.role == "user" and not shared:
                told.append(message.content)
        return started_by(told, ((node.call.call_id, node.texts) for node in reversed(self.nodes.values())))

    def summary_after(self, base: Node, messages: Sequence[Message], forms: Sequence[Fingerprint]) -> str:
        """The call whose reply stands behind `base` for the turns that a request leaves out which goes on from it; "" for none.

        So do harnesses that keep their first turns when they shorten their history: another request went on from there before.
        """
        summary = self._summary(messages[base.messages + 1 :], set(forms)) if base.continued else None
        return "" if summary is None else summary.call.call_id

    def _summary(self, messages: Sequence[Message], answered: set[Fingerprint]) -> Node | None:
        """The call whose reply stands at the start of these messages for what was left out. `answered`: forms of the request.

        It is a reply that nothing went on from. It stands, whole or as what it has between marks, in a system or user message
        before the first turn, or is itself the first turn, of another request than the one that it answered.
        """
        early: list[str] = []
        turn: Message | None = None
        for message in messages:
            if message.role == "assistant":
                turn = message
                break
            if message.role in ("system", "user"):
                early.append(message.content)
        for node in reversed(self.nodes.values()):
            text = node.reply.content.strip()
            if node.continued or len(text) < SHORTEST_SUMMARY:
                continue
            if any(told in content for told in _told(text) for content in early):
                return node
            if turn is not None and turn.content.strip() == text and node.links.asked not in answered:
                return node
        return None

    def ids(self, node: Node) -> Int32:
        """Prompt and sampled ids of a call, int32 [P + S]."""
        tails = []
        step: Node | None = node
        while step is not None:
            tails.append(step.tail)
            step = step.parent
        return np.frombuffer(b"".join(reversed(tails)), dtype=np.int32)

    def prompt(self, node: Node) -> Int32:
        """Prompt ids of a call, int32 [P]."""
        ids = self.ids(node)
        return ids[: len(ids) - node.call.sampled_tokens]

    def find_parent(self, prompt: Int32) -> Node | None:
        """The call whose prompt and sampled ids are the longest exact prefix of `prompt` (int32 [P])."""
        whole = np.ascontiguousarray(prompt, dtype="<i4").tobytes()
        best: Node | None = None
        best_rank = (0, False, -1)
        stack = [(root, 0) for root in self._roots]
        while stack:
            node, start = stack.pop()
            if not whole.startswith(node.tail, start):
                continue
            end = start + len(node.tail)
            stack += [(child, end) for child in node.children]
            rank = (end, node.call.delivered, node.call.index)
            if rank > best_rank:
                best, best_rank = node, rank
        return best


def _told(text: str) -> list[str]:
    """A reply, and what of it harnesses keep that ask for thoughts before the summary and leave them out."""
    inner = [match[2].strip() for match in SUMMARY_MARKS.finditer(text)]
    return [text, *(one for one in inner if len(one) >= SHORTEST_SUMMARY)]


def _placed(place: int, one: Fingerprint) -> Fingerprint:
    return place.to_bytes(4, "little") + one
