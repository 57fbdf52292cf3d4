"""A sampled turn read by a family's own parser, which takes whole turns only: it is asked again as the turn grows.

Thinking and content are passed on as far as two readings in a row agree on them; calls at the end. What may still turn out to
be a call (content that begins like one, where tools were offered) is held back until then.

Invariants (tests/rendering/test_rendering_families.py):
- the deltas, joined, are the message, for any split of the ids;
- all readings together cost a small multiple of one: each waits until the turn has grown by a sixteenth;
- a turn on which the family's parser fails is content as a whole, and the reason is given;
- a call that it could not read is passed on with its raw text, as arguments where it has a name, else as content;
- white space before a part belongs to the format: the families' parsers do not agree with themselves on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from whippletree.protocols import StreamDelta
from whippletree.rendering.codec import Codec
from whippletree.rendering.turn import TurnBuilder
from whippletree.types import ParsedMessage

GROWTH = 16
FAILURES = (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError)  # of parsers on odd text
CALL_STARTS = ("{", "[", "<")


class FamilyParser:
    """One sampled turn. `parse` gives the family's reading of ids. Implements protocols.StreamParser."""

    def __init__(
        self,
        parse: Callable[[list[int]], Any],
        codec: Codec,
        stop_token_ids: Sequence[int],
        *,
        calls: bool,
        stops: Sequence[str] = (),
    ) -> None:
        self._parse = parse
        self._codec = codec
        self._stops = frozenset(stop_token_ids)
        self._calls = calls
        self._turn = TurnBuilder(stops)
        self._ids: list[int] = []
        self._due = 1
        self._thought = _Part(self._turn.thought)
        self._content = _Part(self._turn.text)
        self.stopped = ""

    def feed(self, token_ids: Sequence[int]) -> list[StreamDelta]:
        """Deltas that these further ids settle."""
        if self.stopped:
            return []
        self._ids += token_ids
        if len(self._ids) < self._due:
            return []
        self._due = len(self._ids) + max(1, len(self._ids) // GROWTH)
        parsed, _ = self._read()
        if parsed is None:
            return []
        self._thought.settle(parsed.reasoning_content or "")
        content = parsed.content if parsed.reasoning_complete is not False else ""
        if not parsed.tool_calls and not (self._calls and content.lstrip().startswith(CALL_STARTS)):
            self._content.settle(content)
        self.stopped = self._turn.stopped
        return self._turn.take()

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn."""
        parsed, why = self._read()
        if parsed is None:
            self._turn.malformed(why)
            changed = self._content.end(self._codec.decode(self._without_end()))
        else:
            changed = self._thought.end(parsed.reasoning_content or "")
            offered = self._calls or not parsed.tool_calls
            changed |= self._content.end(parsed.content if offered else self._plain(parsed))
            for call in parsed.tool_calls if offered else ():
                self._call(call)
        if changed:
            self._turn.malformed("the turn was read anew, so part of it may stand twice")
        message = self._turn.finish(finish_reason)
        self.stopped = self._turn.stopped
        return self._turn.take(), message

    def _call(self, call: Any) -> None:
        """One call as the family read it. `arguments` is a dictionary or text."""
        if call.status != "ok":
            self._turn.malformed(f"{call.status}: {call.raw[:200]}")
        if not call.name:
            self._turn.text(call.raw)
            return
        self._turn.call(call.name, call.id or "")
        given = call.arguments
        known = given is not None and (call.status == "ok" or bool(given))
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False) if known else call.raw
        self._turn.arguments(text)

    def _plain(self, parsed: Any) -> str:
        """The content of a turn to which no tool was offered: its calls stay text, from the first one's mark on."""
        span = parsed.tool_calls[0].token_span
        if span is None:
            return str(parsed.content) + "".join(call.raw for call in parsed.tool_calls)
        return str(parsed.content) + self._codec.decode(self._without_end()[span[0] :])

    def _without_end(self) -> list[int]:
        return self._ids[:-1] if self._ids and self._ids[-1] in self._stops else self._ids

    def _read(self) -> tuple[Any, str]:
        """The family's reading of the turn so far, or None and why it failed."""
        try:
            return self._parse(self._ids), ""
        except FAILURES as error:
            return None, f"the turn cannot be read: {error!r}"


class _Part:
    """Text of one part, passed on as far as it is settled."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._given = ""
        self._seen = ""

    def settle(self, text: str) -> None:
        """Pass on what this reading and the last one have in common; white space and cut characters at its end may change."""
        text = text.lstrip()
        agreed = _common(self._seen, text).rstrip().rstrip("\ufffd")
        self._seen = text
        if agreed.startswith(self._given):
            self._emit(agreed[len(self._given) :])
            self._given = agreed

    def end(self, text: str) -> bool:
        """Pass on the rest. True when the last reading takes back what was passed on."""
        text = text.lstrip()
        common = _common(self._given, text)
        self._emit(text[len(common) :])
        return common != self._given


def _common(one: str, other: str) -> str:
    """The longest beginning that both have."""
    size = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:size]
