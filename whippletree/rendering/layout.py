"""What a template writes around a turn: measured by rendering probes, so that no model family needs a table.

Invariants (tests/rendering/test_rendering_layout.py):
- the marks and separators are those of the template itself: a turn that a parser split by them renders to the same text;
- a template that refuses a probe leaves that part of the layout at its default; measuring never fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.rendering.template import ChatTemplate
from whippletree.types import Message, Struct, ToolCall, ToolSpec

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_QUESTION = Message(role="user", content="probe question")
_ANSWER, _THOUGHT = "probe-answer", "probe-thought"
_TOOL = ToolSpec(name="probe_tool", description="probe", parameters={"type": "object", "properties": {}})
_CALLS = tuple(ToolCall(id=f"probecal{n}", name=_TOOL.name, arguments=f'{{"key": "probe-value-{n}"}}') for n in (1, 2))


class Layout(Struct):
    """The text around the parts of an assistant turn.

    Example: Layout(generation_prompt="<|im_start|>assistant\\n", turn_end="<|im_end|>\\n", before_call="\\n", hermes=True)
    """

    generation_prompt: str = ""
    turn_end: str = ""
    thinks: bool = False
    opens_thinking: bool = False
    after_think_open: str = ""
    before_think_close: str = ""
    after_think_close: str = ""
    shows_calls: bool = True
    hermes: bool = False
    before_call: str = ""


def measure(template: ChatTemplate) -> Layout:
    """Render the probes and read the layout off them."""
    layout = Layout(thinks=THINK_CLOSE in template.source)
    for part in (_turn_end, _generation_prompt, _thinking, _calls):
        layout = part(template, layout)
    return layout


def _probe(template: ChatTemplate, *turns: Message, tools: Sequence[ToolSpec] = (), generation_prompt: bool = False) -> str:
    """The probe's text; "" when the template refuses it."""
    try:
        return template.render((_QUESTION, *turns), tools, generation_prompt=generation_prompt)
    except RequestError:
        return ""


def _turn_end(template: ChatTemplate, layout: Layout) -> Layout:
    text = _probe(template, Message(role="assistant", content=_ANSWER))
    return msgspec.structs.replace(layout, turn_end=text.rpartition(_ANSWER)[2])


def _generation_prompt(template: ChatTemplate, layout: Layout) -> Layout:
    without, whole = _probe(template), _probe(template, generation_prompt=True)
    prompt = whole.removeprefix(without) if without and whole.startswith(without) else ""
    return msgspec.structs.replace(
        layout, generation_prompt=prompt, opens_thinking=prompt.rfind(THINK_OPEN) > prompt.rfind(THINK_CLOSE)
    )


def _thinking(template: ChatTemplate, layout: Layout) -> Layout:
    text = _probe(template, Message(role="assistant", content=_ANSWER, reasoning=_THOUGHT))
    shape = rf"{THINK_OPEN}(\s*){_THOUGHT}(\s*){THINK_CLOSE}(\s*){_ANSWER}"
    found = re.search(shape, text)
    if not found:
        return layout
    opened, closing, after = found.groups()
    if layout.opens_thinking:
        opened = opened.removeprefix(layout.generation_prompt.rpartition(THINK_OPEN)[2])
    return msgspec.structs.replace(layout, after_think_open=opened, before_think_close=closing, after_think_close=after)


def _calls(template: ChatTemplate, layout: Layout) -> Layout:
    turn = Message(role="assistant", content=_ANSWER, tool_calls=_CALLS)
    text = _probe(template, turn, tools=[_TOOL])
    if not text:
        return layout
    body = rf'\s*\{{"name": "{_TOOL.name}", "arguments": \{{[^{{}}]*\}}\s*\}}\s*'
    found = re.search(rf"{_ANSWER}(\s*){CALL_OPEN}{body}{CALL_CLOSE}\s*{CALL_OPEN}{body}{CALL_CLOSE}", text)
    layout = msgspec.structs.replace(layout, shows_calls="probe-value-1" in text, hermes=found is not None)
    return msgspec.structs.replace(layout, before_call=found[1]) if found else layout
