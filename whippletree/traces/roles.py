"""What each call is for, judged with the whole attempt in view, and which conversation it belongs to. Pure.

    main:        m1 ──► m2 ──► m3 (asks for a summary) ┄┄► m4 (begins with the summary) ──► m5
    sub-agent:          └┄► s1 ──► s2                       m3 has the role compaction: m4 names it as where it came from

The gateway's word on a call is from before its successors were known. A call comes "after" another when its prompt goes on from
it, or its messages do, or it begins with its summary, or (for lack of these) the harness names both as one thread.

Invariants (tests/traces/test_traces_roles.py):
- a call that the first call after a compaction names as its origin is a compaction, whatever it was taken for;
- what comes after a sub-agent's call is a sub-agent's, and of the same conversation, until another sub-agent is started;
- a call taken for a side call that a main call comes after is main;
- a conversation without tools, taken for the main one because it came first, is a side call where a later one has tools;
- a call's role is recorded or follows from other calls of the attempt, never from its place in the order alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whippletree.types import Call, Role, Struct


class Part(Struct):
    """What a call is for. `conversation` is the id of the conversation's first call.

    Example: Part(role="subagent", conversation="c-4")
    """

    role: Role
    conversation: str


def assign_roles(calls: Sequence[Call], parents: Mapping[str, str]) -> dict[str, Part]:
    """The part of each call. `calls` are of one attempt, by index; `parents` are the tree's ("" or missing for a root)."""
    before = _predecessors(calls, parents)
    summaries = {_summary_of(call) for call in calls} - {""}
    lanes: dict[str, Role] = {}
    heads: dict[str, str] = {}
    for call in calls:
        earlier = before[call.call_id]
        lane = _lane(call, lanes.get(earlier, "main"), summaries)
        starts = not earlier or lanes[earlier] != lane or _starts_subagent(call)
        lanes[call.call_id] = lane
        heads[call.call_id] = call.call_id if starts else heads[earlier]
    for call in reversed(calls):
        earlier = before[call.call_id]
        if earlier and lanes[call.call_id] == "main" and lanes[earlier] == "side":
            lanes[earlier] = "main"
    _demote(calls, lanes, heads, summaries)
    compactions = summaries | {call.call_id for call in calls if call.role == "compaction"}
    return {
        name: Part(role="compaction" if name in compactions else lane, conversation=heads[name]) for name, lane in lanes.items()
    }


def _demote(calls: Sequence[Call], lanes: dict[str, Role], heads: Mapping[str, str], summaries: set[str]) -> None:
    """A title, say, is asked for before the work begins: without tools, in a conversation of its own."""
    tools: dict[str, int] = {}
    for call in calls:
        if lanes[call.call_id] == "main":
            head = heads[call.call_id]
            tools[head] = max(tools.get(head, 0), call.tools)
    if not any(tools.values()):
        return
    for call in calls:
        if lanes[call.call_id] == "main" and not tools[heads[call.call_id]] and call.call_id not in summaries:
            lanes[call.call_id] = "side"


def _predecessors(calls: Sequence[Call], parents: Mapping[str, str]) -> dict[str, str]:
    """The call that each call comes after ("" where none is known); it is always an earlier one."""
    before: dict[str, str] = {}
    threads: dict[tuple[str, bool], str] = {}  # by name and by whether tools are offered: a title shares the name only
    for call in calls:
        thread = (call.thread, call.tools > 0)
        named = (
            parents.get(call.call_id, ""),
            call.base_call_id,
            _summary_of(call),
            "" if call.role == "side" or _starts_subagent(call) else threads.get(thread, ""),
        )
        before[call.call_id] = next((name for name in named if name in before), "")
        if call.thread and call.role != "side":
            threads.setdefault(thread, call.call_id)
    return before


def _summary_of(call: Call) -> str:
    """The call whose reply is the summary that this one begins with, or that stands behind the turns it goes on from; or ""."""
    behind_kept_turns = call.base_call_id not in ("", call.origin_call_id)
    return call.origin_call_id if call.prefix_break == "compaction" or behind_kept_turns else ""


def _starts_subagent(call: Call) -> bool:
    """Whether the call is a sub-agent's first: it names the call that started it."""
    if not call.origin_call_id or _summary_of(call):
        return False
    return call.role == "subagent" or (call.role == "main" and call.prefix_break == "new_thread")


def _lane(call: Call, earlier: Role, summaries: set[str]) -> Role:
    """Main, sub-agent or side: the line of work that a call is of. `earlier` is that of the call before it."""
    if call.role == "subagent" or _starts_subagent(call):
        return "subagent"
    if call.role == "side" and call.call_id not in summaries:
        return "side"
    return "subagent" if earlier == "subagent" else "main"
