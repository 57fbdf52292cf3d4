"""Whose conversation a call belongs to: the main one, a sub-agent's, a compaction, or a side call. Pure.

A call that goes on from a recorded one has its role. For one that starts anew, the first of these that applies:

    its headers say it ─────────────────────────────────────────► as they say
    another program asks, or it has no tools and main has some ─► side
    it carries on messages of an earlier call, or a summary ────► that call's role
    its instruction is an argument of a sampled tool call ──────► sub-agent
    there is no main conversation yet, or one without tools ────► main
    tools and system prompt are those of main ──────────────────► main
    else: with tools ───────────────────────────────────────────► sub-agent, without ──► side

This is what can be known when the call comes; traces/roles.py has the last word, when all calls are there.
Invariants (tests/gateway/test_gateway_roles.py):
- the first conversation with tools is the main one, or the first of all where none has tools;
- unreadable headers are no hints, and never an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from whippletree.types import Role, Struct, ToolCall

SHORTEST_INSTRUCTION = 16  # characters; a shorter argument is found in too many messages
LONGEST_NAME = 64  # characters kept of a thread's or a client's name
COMPACTING = ("compact", "compaction", "summarize", "summary")
SIDE = ("title", "memory_consolidation", "prompt_suggestion", "side")


class Hints(Struct):
    """What a request's headers say of its conversation. `thread`: its name; `parent`: the one that started it ("" for none);
    `kind`: the harness's word for what it is; `client`: the program that asks.

    Example: Hints(thread="71ee13cb", kind="collab_spawn", client="codex_exec/0.171.0")
    """

    thread: str = ""
    parent: str = ""
    kind: str = ""
    client: str = ""


class _TurnMetadata(Struct):
    """The parts of Codex's x-codex-turn-metadata that are used. Example: _TurnMetadata(thread_id="01a2",
    request_kind="turn")"""

    thread_id: str = ""
    request_kind: str = ""


def hints_from(headers: Mapping[str, str]) -> Hints:
    """The hints of a request. `headers` may have names in any case; what cannot be read is left out."""
    found = {name.lower(): value.strip() for name, value in headers.items()}
    metadata = _metadata(found.get("x-codex-turn-metadata", ""))
    session = _first(
        found.get("x-claude-code-session-id"),
        found.get("thread-id"),
        metadata.thread_id,
        found.get("x-session-id"),
        found.get("x-litellm-session-id"),
        found.get("session-id"),
        found.get("session_id"),
    )
    agent = found.get("x-claude-code-agent-id", "")
    kind = _first(found.get("x-openai-subagent"), metadata.request_kind)
    parent = found.get("x-codex-parent-thread-id", "")
    return Hints(
        thread=_short(agent or session),
        parent=_short(session if agent else parent),
        kind=_short(kind),
        client=_short(found.get("user-agent", "").split(" ")[0]),
    )


def _metadata(text: str) -> _TurnMetadata:
    try:
        return msgspec.json.decode(text, type=_TurnMetadata) if text else _TurnMetadata()
    except (msgspec.DecodeError, UnicodeError):
        return _TurnMetadata()


def _first(*candidates: str | None) -> str:
    return next((text for text in candidates if text), "")


def _short(text: str) -> str:
    """Printable and bounded: it goes into records and pages."""
    return "".join(c for c in text if c.isprintable())[:LONGEST_NAME]


class Opening(Struct):
    """What the start of a conversation looks like. `tools`: whether any are offered; `look`: a digest of tools and system
    prompt.

    Example: Opening(tools=True, look=b"16 bytes")
    """

    tools: bool
    look: bytes = b""


def argument_texts(calls: Iterable[ToolCall]) -> tuple[str, ...]:
    """The string values in sampled arguments that could be another agent's instruction."""
    texts: list[str] = []
    for call in calls:
        try:
            values = [msgspec.json.decode(call.arguments)]
        except (msgspec.DecodeError, RecursionError):
            continue
        while values:
            value = values.pop()
            if isinstance(value, str):
                if len(value.strip()) >= SHORTEST_INSTRUCTION:
                    texts.append(value.strip())
            elif isinstance(value, dict):
                values += value.values()
            elif isinstance(value, list):
                values += value
    return tuple(texts)


def started_by(told: Sequence[str], arguments: Iterable[tuple[str, Sequence[str]]]) -> str:
    """The call whose sampled arguments hold one of these instructions; "" for none. `arguments`: (call id, its texts) pairs.

    Harnesses put reminders around an instruction (so it is looked for as whole lines), or send only a part of it.
    """
    wholes = [instruction.strip() for instruction in told]
    for call_id, texts in arguments:
        for text in texts:
            for whole in wholes:
                if _as_lines(text, whole) or (len(whole) >= SHORTEST_INSTRUCTION and whole in text):
                    return call_id
    return ""


def _as_lines(text: str, whole: str) -> bool:
    """Whether `text` stands in `whole` between the ends of lines or tags."""
    start = whole.find(text)
    if start < 0:
        return False
    end = start + len(text)
    return (start == 0 or whole[start - 1] in "\n>") and (end == len(whole) or whole[end] in "\n<")


class Threads:
    """What is known of the conversations of one attempt."""

    def __init__(self) -> None:
        self._main: Opening | None = None
        self._client = ""

    def begun(self, role: Role, opening: Opening, client: str) -> None:
        """A conversation was recorded."""
        if role == "main" and (self._main is None or (opening.tools and not self._main.tools)):
            self._main, self._client = opening, client

    def judge(self, opening: Opening, hints: Hints, *, inherited: Role | None, origin: str) -> Role:
        """The role of a conversation that starts anew.

        `inherited`: the role of the call whose messages or summary it carries on, if there is one; `origin`: the call that
        started it, as `started_by` says.
        """
        said = self._said(hints)
        if said is not None:
            return said
        main = self._main
        if main is not None and (self._foreign(hints.client) or (main.tools and not opening.tools)):
            return "side"
        if inherited in ("main", "subagent"):
            return inherited
        if origin:
            return "subagent"
        if main is None or (opening.tools and not main.tools):
            return "main"
        if opening.look == main.look:
            return "main"
        return "subagent" if opening.tools else "side"

    def _said(self, hints: Hints) -> Role | None:
        kind = hints.kind.lower()
        if kind in COMPACTING:
            return "compaction"
        if kind in SIDE:
            return "side"
        if hints.parent or kind.startswith(("collab", "subagent", "review", "thread_spawn")):
            return "subagent"
        return None

    def _foreign(self, client: str) -> bool:
        mine, other = _program(self._client), _program(client)
        return bool(mine) and bool(other) and mine != other


def _program(client: str) -> str:
    """A client's name without its version."""
    return client.partition("/")[0].lower()
