"""Tool calls put together from the fragments that chat endpoints stream. Pure.

Servers leave out ids or indices, repeat the name with every fragment, or use one index for the head of a call and another for
its arguments. A fragment belongs, in this order, to: the call with its id; the call with its index, unless it looks like the
head of another one; a new call, if it has a name; the last call.

Invariants (tests/engines/test_chat_calls.py, tests/cases/test_cases_engines.py):
- calls are never merged because an id or index is missing, and arguments are never lost;
- the id of a call is set once, before anything of it is told, and is unique in its turn;
- a name that comes in pieces is joined only while its call has no arguments; repetitions change nothing.
"""

from __future__ import annotations

import hashlib

import msgspec

from whippletree.engines.chat_wire import CallIn, arguments_of
from whippletree.protocols import StreamDelta


class OpenCall(msgspec.Struct, kw_only=True):
    """A call as far as it has come. `upstream_id`: the server's own id ("" so far); `place`: among the calls given out."""

    index: int | None
    upstream_id: str = ""
    name: str = ""
    arguments: str = ""
    call_id: str = ""
    place: int = -1
    given: bool = False


class CallAssembler:
    """The calls of one turn. `request_id` makes the ids that servers leave out unique and repeatable."""

    def __init__(self, request_id: str) -> None:
        self._calls: list[OpenCall] = []
        self._stem = hashlib.sha256(request_id.encode()).hexdigest()[:20]
        self._given: set[str] = set()

    @property
    def begun(self) -> bool:
        """Whether any fragment has come."""
        return bool(self._calls)

    def feed(self, fragment: CallIn) -> list[StreamDelta]:
        """What this fragment settles. A call is given out once it has a name and arguments, or something else follows it."""
        name = (fragment.function.name if fragment.function else None) or ""
        arguments = arguments_of(fragment.function.arguments if fragment.function else None)
        deltas: list[StreamDelta] = []
        call = self._owner(fragment, name)
        if call is None:
            deltas = self.settle()
            call = OpenCall(index=fragment.index)
            self._calls.append(call)
        if call.given:
            return _piece(call, arguments)
        call.upstream_id = call.upstream_id or fragment.id or ""
        if name != call.name and not (call.name and call.arguments):
            call.name += name
        call.arguments += arguments
        return deltas + (self._give(call) if call.name and call.arguments else [])

    def settle(self) -> list[StreamDelta]:
        """Give out the calls that are held back: something else follows them, or nothing does.

        The arguments of a call without a name become content: nothing that was sampled is hidden.
        """
        return [delta for call in self._calls for delta in ([] if call.given else self._give(call))]

    def _give(self, call: OpenCall) -> list[StreamDelta]:
        call.given = True
        if not call.name:
            return _piece(call, call.arguments)
        call.place = len(self._given)
        made = f"call_{self._stem}{call.place}"
        call.call_id = call.upstream_id if call.upstream_id and call.upstream_id not in self._given else made
        self._given.add(call.call_id)
        head = StreamDelta(tool_index=call.place, tool_id=call.call_id, tool_name=call.name)
        return [head, *_piece(call, call.arguments)]

    def _owner(self, fragment: CallIn, name: str) -> OpenCall | None:
        last = self._calls[-1] if self._calls else None
        if fragment.id:
            same = [call for call in self._calls if call.upstream_id == fragment.id]
            moved = bool(same and name and fragment.index is not None and same[-1].index not in (None, fragment.index))
            if same and not moved:
                return same[-1]
        indexed = [call for call in self._calls if fragment.index is not None and call.index == fragment.index]
        if indexed and not _begins_another(indexed[-1], fragment, name):
            return indexed[-1]
        if last is None or (fragment.id and last.upstream_id and fragment.id != last.upstream_id):
            return None
        if name and (last.name or fragment.index is not None):
            return None
        return last


def _piece(call: OpenCall, arguments: str) -> list[StreamDelta]:
    """Further arguments of a call that has been given out; without a name it is no call, and they are content."""
    if not arguments:
        return []
    return [StreamDelta(tool_index=call.place, arguments=arguments) if call.name else StreamDelta(content=arguments)]


def _begins_another(call: OpenCall, fragment: CallIn, name: str) -> bool:
    """Whether a fragment with this call's index is the head of another call: servers that always send index 0."""
    if not name:
        return False
    if fragment.id and call.upstream_id:
        return fragment.id != call.upstream_id
    return bool(call.arguments) and name != call.name
