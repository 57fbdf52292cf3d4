"""Which text follows the recorded ids: the two policies of prefix reuse, on text alone.

    exact: rendered text ─ recorded text ─► what is left, or None where they differ
    keep:  the recorded turn is found among the messages; what the template writes after that turn follows it as it is

Invariants (tests/rendering/test_rendering_bridging.py):
- exact: recorded text + remainder == rendered text;
- keep: the rendered text ends with the remainder;
- keep gives what exact gives wherever exact gives anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.rendering.codec import Codec
from whippletree.rendering.layout import Layout
from whippletree.rendering.template import ChatTemplate
from whippletree.types import Message, ParsedMessage, ToolCall, ToolSpec

SENTINEL = "recorded-turn-7f3a9c"


def exact_remainder(codec: Codec, rendered: str, recorded: str) -> str | None:
    """What the rendered text has after the recorded text; None when it does not begin with it.

    Where the tokenizer rewrites text (Unicode normalisation), a recorded prompt is the rewritten text, so both are compared as
    the tokenizer sees them.
    """
    if rendered.startswith(recorded):
        return rendered[len(recorded) :]
    if not codec.rewrites:
        return None
    rendered, recorded = codec.canonical(rendered), codec.canonical(recorded)
    return rendered[len(recorded) :] if rendered.startswith(recorded) else None


def kept_remainder(
    template: ChatTemplate,
    layout: Layout,
    *,
    parse: Callable[[str], ParsedMessage],
    recorded: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
) -> str | None:
    """What the template writes after the end of the recorded turn; None when no message is that turn or its end is not clear.

    `recorded` is the recorded text without the token that ended the turn. The caller vouches for the messages before the turn.
    """
    if not layout.generation_prompt or layout.generation_prompt not in recorded:
        return None
    turn = parse(recorded.rpartition(layout.generation_prompt)[2])
    place = next((n for n in reversed(range(len(messages))) if same_turn(turn, messages[n])), None)
    if place is None:
        return None
    return _text_after(template, layout, messages, place, tools)


def same_turn(turn: ParsedMessage, message: Message) -> bool:
    """True when the message is this turn as a harness may send it back: outer white space and JSON spacing may differ, thinking
    may be gone."""
    return (
        message.role == "assistant"
        and message.content.strip() == turn.content.strip()
        and (not message.reasoning or message.reasoning.strip() == turn.reasoning.strip())
        and len(message.tool_calls) == len(turn.tool_calls)
        and all(map(_same_call, message.tool_calls, turn.tool_calls))
    )


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and (one.arguments == other.arguments or _normal(one.arguments) == _normal(other.arguments))


def _normal(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _text_after(
    template: ChatTemplate, layout: Layout, messages: Sequence[Message], place: int, tools: Sequence[ToolSpec]
) -> str | None:
    """Text between the end of turn `place` and the end of the prompt.

    The turn's content is replaced by a sentinel (a template may rewrite what stands before it), then the prompt up to the turn
    and the whole prompt are compared from the sentinel on.
    """
    marked = msgspec.structs.replace(messages[place], content=SENTINEL, reasoning="")
    try:
        head = template.render([*messages[:place], marked], tools, generation_prompt=False)
        whole = template.render([*messages[:place], marked, *messages[place + 1 :]], tools, generation_prompt=True)
    except RequestError:
        return None
    head, whole = head.rpartition(SENTINEL)[2], whole.rpartition(SENTINEL)[2]
    return whole[len(head) :] if head.endswith(layout.turn_end) and whole.startswith(head) else None
