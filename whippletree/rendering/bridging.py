"""Which text follows the recorded ids: the two policies of prefix reuse, on text alone.

    exact: rendered text ─ recorded text ─► what is left, or None where they differ
    keep:  what the template writes after the last recorded message follows the recorded text as it is

Invariants (tests/rendering/test_rendering_bridging.py):
- exact: recorded text + remainder == rendered text;
- keep: the rendered text ends with the remainder, and a token that ended the turn is not written again;
- keep gives what exact gives wherever exact gives anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.rendering.codec import Codec
from whippletree.rendering.layout import Layout
from whippletree.rendering.template import ChatTemplate
from whippletree.types import Message, ToolSpec

SENTINEL = "recorded-turn-7f3a9c"


def exact_remainder(codec: Codec, rendered: str, recorded: bytes) -> str | None:
    """What the rendered text has after the recorded bytes; None when it does not begin with them.

    Where the tokenizer rewrites text (Unicode normalisation), a recorded prompt is the rewritten text, so both are compared as
    the tokenizer sees them. Bytes of a cut character count as U+FFFD, as they do in the turn that was parsed from them.
    """
    whole = rendered.encode()
    if whole.startswith(recorded) and not _inside_character(whole, len(recorded)):
        return whole[len(recorded) :].decode()
    text = recorded.decode("utf-8", "replace")
    if rendered.startswith(text):
        return rendered[len(text) :]
    if not codec.rewrites:
        return None
    rendered, text = codec.canonical(rendered), codec.canonical(text)
    return rendered[len(text) :] if rendered.startswith(text) else None


def kept_remainder(
    template: ChatTemplate,
    layout: Layout,
    *,
    messages: Sequence[Message],
    recorded: int,
    ended: str,
    tools: Sequence[ToolSpec],
) -> str | None:
    """What the template writes after the sampled turn, whose place is `recorded` - 1; None where that is not clear.

    The caller vouches that the messages up to there are the recorded ones. `ended` is the text of the token that ended the
    turn, "" where it was cut: where what follows the turn begins with it, be it the turn's end or the mark that opens the next
    one, it is not written again. The turn's content is replaced by a sentinel (a template may rewrite what stands before it),
    then the prompt up to the turn and the whole prompt are compared from the sentinel on.
    """
    place = recorded - 1
    if not layout.generation_prompt or not 0 <= place < len(messages) or messages[place].role != "assistant":
        return None
    marked = msgspec.structs.replace(messages[place], content=SENTINEL, reasoning="")
    try:
        head = template.render([*messages[:place], marked], tools, generation_prompt=False)
        whole = template.render([*messages[:place], marked, *messages[recorded:]], tools, generation_prompt=True)
    except RequestError:
        return None
    head, whole = head.rpartition(SENTINEL)[2], whole.rpartition(SENTINEL)[2]
    if not head.endswith(layout.turn_end) or not whole.startswith(head):
        return None
    return (layout.turn_end + whole[len(head) :]).removeprefix(ended)


def _inside_character(text: bytes, place: int) -> bool:
    """True when the byte at `place` goes on a UTF-8 character that began before it."""
    return place < len(text) and text[place] & 0xC0 == 0x80
