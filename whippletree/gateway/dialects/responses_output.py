"""What was sampled → output items, as a whole and as the events that build them up. Pure.

    delta ─► reasoning │ message │ function_call │ custom_tool_call ─► added, deltas, done      (one item is open at a time)

A whole reply is put together by the same code from the whole turn, so it cannot differ from a streamed one.
Invariants (tests/gateway/test_gateway_responses_stream.py):
- every item that is added is done, under the same id and output_index, before the next one is added;
- an item's deltas join to what its done event and the final response have;
- nothing of an item that may still be cut off is called completed.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from whippletree.gateway.dialects import ReplyHead, signatures
from whippletree.gateway.dialects import responses_ids as ids
from whippletree.gateway.dialects import responses_wire as wire
from whippletree.gateway.dialects.responses_custom import CustomInput
from whippletree.protocols import StreamDelta
from whippletree.types import ToolSpec

Events = list[wire.EventOut]

NO_ARGUMENTS = "{}"


class _OpenItem(Protocol):
    """An item under way."""

    def add(self, text: str) -> Events:
        """A further piece; the first call also opens the item."""
        ...

    def close(self, status: wire.ItemStatus) -> tuple[Events, wire.ItemOut]:
        """The rest, and the item as it stands."""
        ...


class _Reasoning:
    """Reasoning, as one summary text: harnesses show that and send it back."""

    def __init__(self, call_id: str, place: int) -> None:
        self._id, self._place = ids.item_id("rs", call_id, place), place
        self._mark = signatures.sign(call_id)
        self._texts: list[str] = []

    def add(self, text: str) -> Events:
        events = [] if self._texts else self._opened()
        self._texts.append(text)
        return [*events, self._event("reasoning_summary_text.delta", delta=text)]

    def _opened(self) -> Events:
        item = wire.ReasoningOut(id=self._id, summary=[], encrypted_content=self._mark, status="in_progress")
        part = self._event("reasoning_summary_part.added", part=wire.SummaryText(text=""))
        return [_added(self._place, item), part]

    def close(self, status: wire.ItemStatus) -> tuple[Events, wire.ItemOut]:
        text = "".join(self._texts)
        summary = wire.SummaryText(text=text)
        item = wire.ReasoningOut(id=self._id, summary=[summary], encrypted_content=self._mark, status=status)
        done = self._event("reasoning_summary_text.done", text=text)
        return [done, self._event("reasoning_summary_part.done", part=summary), _done(self._place, item)], item

    def _event(self, kind: str, **fields: Any) -> wire.EventOut:
        return _event(kind, item_id=self._id, output_index=self._place, summary_index=0, **fields)


class _Text:
    """The message."""

    def __init__(self, call_id: str, place: int) -> None:
        self._id, self._place = ids.item_id("msg", call_id, place), place
        self._texts: list[str] = []

    def add(self, text: str) -> Events:
        events = [] if self._texts else self._opened()
        self._texts.append(text)
        return [*events, *([self._event("output_text.delta", delta=text, logprobs=[])] if text else [])]

    def _opened(self) -> Events:
        item = wire.MessageOut(id=self._id, content=[], status="in_progress")
        return [_added(self._place, item), self._event("content_part.added", part=wire.TextOut(text=""))]

    def close(self, status: wire.ItemStatus) -> tuple[Events, wire.ItemOut]:
        part = wire.TextOut(text="".join(self._texts))
        item = wire.MessageOut(id=self._id, content=[part], status=status)
        done = self._event("output_text.done", text=part.text, logprobs=[])
        return [done, self._event("content_part.done", part=part), _done(self._place, item)], item

    def _event(self, kind: str, **fields: Any) -> wire.EventOut:
        return _event(kind, item_id=self._id, output_index=self._place, content_index=0, **fields)


class _Function:
    """A call of a function tool, or of a tool that the request does not have."""

    def __init__(self, call_id: str, place: int, delta: StreamDelta, spec: ToolSpec | None) -> None:
        self._place = place
        self._item = wire.FunctionCallOut(
            id=ids.item_id("fc", call_id, place),
            call_id=delta.tool_id,
            name=_own_name(delta, spec),
            arguments="",
            status="in_progress",
            namespace=_namespace(spec),
        )
        self._texts: list[str] | None = None

    def add(self, text: str) -> Events:
        events = []
        if self._texts is None:
            self._texts, events = [], [_added(self._place, self._item)]
        if text:
            self._texts.append(text)
            events.append(self._event("function_call_arguments.delta", delta=text))
        return events

    def close(self, status: wire.ItemStatus) -> tuple[Events, wire.ItemOut]:
        events = [] if self._texts else self.add(NO_ARGUMENTS)
        arguments = "".join(self._texts or ())
        item = msgspec.structs.replace(self._item, arguments=arguments, status=status)
        done = self._event("function_call_arguments.done", arguments=arguments, name=item.name)
        return [*events, done, _done(self._place, item)], item

    def _event(self, kind: str, **fields: Any) -> wire.EventOut:
        return _event(kind, item_id=self._item.id, output_index=self._place, **fields)


class _Custom:
    """A call of a custom tool: its input is written as the text it is. It is added once it is clear how it is to be read."""

    def __init__(self, call_id: str, place: int, delta: StreamDelta, spec: ToolSpec) -> None:
        self._call_id, self._place = call_id, place
        self._item = wire.CustomCallOut(
            id="",
            call_id=delta.tool_id,
            name=_own_name(delta, spec),
            input="",
            status="in_progress",
            namespace=_namespace(spec),
        )
        self._input = CustomInput()
        self._texts: list[str] = []

    def add(self, text: str) -> Events:
        return self._write(self._input.feed(text))

    def _write(self, text: str) -> Events:
        events: Events = []
        if not self._item.id and self._input.raw is not None:
            name = ids.item_id("ctc", self._call_id, self._place, raw=self._input.raw)
            self._item = msgspec.structs.replace(self._item, id=name)
            events.append(_added(self._place, self._item))
        if text:
            self._texts.append(text)
            events.append(self._event("custom_tool_call_input.delta", delta=text))
        return events

    def close(self, status: wire.ItemStatus) -> tuple[Events, wire.ItemOut]:
        events = self._write(self._input.finish())
        text = "".join(self._texts)
        item = msgspec.structs.replace(self._item, input=text, status=status)
        return [*events, self._event("custom_tool_call_input.done", input=text), _done(self._place, item)], item

    def _event(self, kind: str, **fields: Any) -> wire.EventOut:
        return _event(kind, item_id=self._item.id, output_index=self._place, **fields)


class Output:
    """The output items of one reply. `items`: those that are done."""

    def __init__(self, head: ReplyHead) -> None:
        self.items: list[wire.ItemOut] = []
        self._call_id = head.call_id
        self._specs = {spec.name: spec for spec in head.request.tools}
        self._open: _OpenItem | None = None
        self._key: tuple[str, int] = ("", -1)

    def feed(self, delta: StreamDelta) -> Events:
        """The events of one delta."""
        events: Events = []
        if delta.reasoning:
            events += self._switch("reasoning", delta, delta.reasoning)
        if delta.content:
            events += self._switch("content", delta, delta.content)
        if delta.tool_index >= 0:
            events += self._switch("call", delta, delta.arguments)
        return events

    def _switch(self, kind: str, delta: StreamDelta, text: str) -> Events:
        """Add to the open item, or to a new one after the open one is done."""
        key = (kind, delta.tool_index if kind == "call" else -1)
        events: Events = []
        if self._open is None or key != self._key:
            events = self._close("completed")
            self._open, self._key = self._new(kind, delta), key
        return [*events, *self._open.add(text)]

    def _new(self, kind: str, delta: StreamDelta) -> _OpenItem:
        place = len(self.items)
        if kind == "reasoning":
            return _Reasoning(self._call_id, place)
        if kind == "content":
            return _Text(self._call_id, place)
        spec = self._specs.get(delta.tool_name)
        if spec is not None and spec.kind == "custom":
            return _Custom(self._call_id, place, delta, spec)
        return _Function(self._call_id, place, delta, spec)

    def _close(self, status: wire.ItemStatus) -> Events:
        if self._open is None:
            return []
        events, item = self._open.close(status)
        self.items.append(item)
        self._open = None
        return events

    def finish(self, status: wire.ItemStatus) -> Events:
        """The last events. A turn in which nothing was sampled is an empty message, so that a harness keeps it."""
        events: Events = []
        if self._open is None and not self.items:
            events = self._switch("content", StreamDelta(), "")
        return [*events, *self._close(status)]


def _own_name(delta: StreamDelta, spec: ToolSpec | None) -> str:
    return spec.own_name or spec.name if spec is not None else delta.tool_name


def _namespace(spec: ToolSpec | None) -> str | msgspec.UnsetType:
    return spec.namespace if spec is not None and spec.namespace else msgspec.UNSET


def _event(kind: str, **fields: Any) -> wire.EventOut:
    return wire.EventOut(type=f"response.{kind}", **fields)


def _added(place: int, item: wire.ItemOut) -> wire.EventOut:
    return _event("output_item.added", output_index=place, item=item)


def _done(place: int, item: wire.ItemOut) -> wire.EventOut:
    return _event("output_item.done", output_index=place, item=item)
