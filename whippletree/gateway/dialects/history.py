"""Calls and their results in a conversation whose harness left out ids: both get one that stays the same on every later turn.

Invariants (tests/gateway/test_gateway_history.py):
- an id that was sent is kept; one that is missing is made from the call's place in the conversation;
- a result belongs to the call with its id, else to the last turn's first open call of its name, else to its first open one;
- no call gets two results.
"""

from __future__ import annotations

from whippletree.types import ToolCall


class CallIds:
    """The calls of one conversation, read from its start."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[ToolCall] = []

    def turn(self) -> None:
        """An assistant's turn begins: earlier calls without a result stay without one."""
        self._open = []

    def call(self, call: ToolCall) -> ToolCall:
        """The call with an id."""
        if not call.id:
            call = ToolCall(id=f"call_{self._count}", name=call.name, arguments=call.arguments)
        self._count += 1
        self._open.append(call)
        return call

    def result(self, call_id: str, name: str) -> str:
        """The id of the call that a result belongs to."""
        same_id = (call for call in self._open if call_id and call.id == call_id)
        same_name = (call for call in self._open if name and call.name == name)
        found = next(same_id, None)
        if found is None:
            found = next(same_name, None) or (self._open[0] if self._open and not call_id else None)
        if found is None:
            return call_id or f"result_{self._count}"
        self._open.remove(found)
        return found.id
