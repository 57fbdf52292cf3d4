"""One streamed reply of OpenAI Responses, as server-sent events. Pure.

    created, in_progress ─► items (responses_output.py) ─► completed │ incomplete │ failed

Invariants (tests/gateway/test_gateway_responses_stream.py):
- put together as the official client does, a stream equals the whole reply, however the deltas are cut;
- sequence numbers count from 0 by one;
- the terminal event comes from `end` or `error` alone, once, and last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import ReplyHead, TokenText, events
from whippletree.gateway.dialects import responses_compaction as compaction
from whippletree.gateway.dialects import responses_reply as reply
from whippletree.gateway.dialects import responses_wire as wire
from whippletree.gateway.dialects.responses_output import Output
from whippletree.protocols import StreamDelta
from whippletree.types import Call, ParsedMessage

KEEPALIVE = b": keep-alive\n\n"


class ResponsesStream:
    """Satisfies `dialects.StreamWriter`."""

    content_type = "text/event-stream"

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._output = Output(head)
        self._compacts = compaction.is_compaction(head.request)
        self._sequence = 0
        self._fed = False

    def delta(self, delta: StreamDelta) -> bytes:
        """The events of one delta. Of a summary nothing is shown before it is whole."""
        self._fed = True
        return self._write(() if self._compacts else self._output.feed(delta)) or KEEPALIVE

    def end(self, call: Call, message: ParsedMessage, tokens: Sequence[TokenText] = ()) -> bytes:
        """The rest of the last item, then the whole response."""
        if self._compacts:
            return self._end_compaction(call, message)
        built = [] if self._fed else [event for delta in reply.deltas_of(message) for event in self._output.feed(delta)]
        built += self._output.finish(reply.item_status(message))
        response = reply.closed(self._head, call, message, reply.with_logprobs(self._output.items, tokens))
        return self._write([*built, _terminal(response)])

    def _end_compaction(self, call: Call, message: ParsedMessage) -> bytes:
        item = reply.compaction_item(self._head, message)
        response = reply.closed(self._head, call, message, [item])
        kinds = ("response.output_item.added", "response.output_item.done")
        built = [wire.EventOut(type=kind, output_index=0, item=item) for kind in kinds]
        return self._write([*built, _terminal(response)])

    def error(self, error: RequestError) -> bytes:
        """`response.failed`: an open item stays without an end, so that no client takes it for complete."""
        return self._write([_terminal(reply.failed(self._head, error))])

    def _write(self, built: Iterable[wire.EventOut]) -> bytes:
        if self._sequence == 0:
            response = reply.opened(self._head)
            kinds = ("response.created", "response.in_progress")
            built = [*(wire.EventOut(type=kind, response=response) for kind in kinds), *built]
        return b"".join(self._event(event) for event in built)

    def _event(self, event: wire.EventOut) -> bytes:
        numbered = msgspec.structs.replace(event, sequence_number=self._sequence)
        self._sequence += 1
        return b"event: " + event.type.encode() + b"\n" + events.event(msgspec.json.encode(numbered))


def _terminal(response: wire.ResponseOut) -> wire.EventOut:
    return wire.EventOut(type=f"response.{response.status}", response=response)
