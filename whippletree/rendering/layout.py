"""What a template writes around a turn: measured by rendering probes, so that no model family needs a table.

Invariants (tests/rendering/test_rendering_layout.py):
- the marks and separators are those of the template itself: a turn that a parser split by them renders to the same text;
- a template that refuses a probe leaves that part of the layout at its default; measuring never fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from whippletree.errors import RequestError
from whippletree.rendering.template import ChatTemplate
from whippletree.types import Message, Struct, ToolCall, ToolSpec

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

PROBE_QUESTION = Message(role="user", content="probe question")
_ANSWER, _THOUGHT = "probe-answer", "probe-thought"
PROBE_TOOL = ToolSpec(name="probe_tool", description="probe", parameters={"type": "object", "properties": {}})
_CALLS = tuple(ToolCall(id=f"probecal{n}", name=PROBE_TOOL.name, arguments=f'{{"key": "probe-value-{n}"}}') for n in (1, 2))
PROBE_CALL = _CALLS[0]


class Layout(Struct):
    """The text around the parts of an assistant turn.

    `call_lead`: what stands between the generation prompt and the brace of a call, in a turn that is nothing but calls.
    `any_system`: the template shows several system messages, and later ones.

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
    call_lead: str = ""
    any_system: bool = True


def measure(template: ChatTemplate) -> Layout:
    """Render the probes and read the layout off them."""
    layout = Layout(thinks=THINK_CLOSE in template.source)
    for part in (_turn_end, _generation_prompt, _thinking, _calls, _call_lead, _any_system):
        layout = part(template, layout)
    return layout


def _probe(template: ChatTemplate, *turns: Message, tools: Sequence[ToolSpec] = (), generation_prompt: bool = False) -> str:
    """The probe's text; "" when the template refuses it."""
    try:
        return template.render((PROBE_QUESTION, *turns), tools, generation_prompt=generation_prompt)
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
    text = _probe(template, turn, tools=[PROBE_TOOL])
    if not text:
        return layout
    body = rf'\s*\{{"name": "{PROBE_TOOL.name}", "arguments": \{{[^{{}}]*\}}\s*\}}\s*'
    found = re.search(rf"{_ANSWER}(\s*){CALL_OPEN}{body}{CALL_CLOSE}\s*{CALL_OPEN}{body}{CALL_CLOSE}", text)
    layout = msgspec.structs.replace(layout, shows_calls="probe-value-1" in text, hermes=found is not None)
    return msgspec.structs.replace(layout, before_call=found[1]) if found else layout


def _call_lead(template: ChatTemplate, layout: Layout) -> Layout:
    """Where the generation prompt opens thinking, the lead closes it."""
    if not layout.hermes:
        return layout
    prompt = _probe(template, tools=[PROBE_TOOL], generation_prompt=True)
    text = _probe(template, Message(role="assistant", tool_calls=(PROBE_CALL,)), tools=[PROBE_TOOL])
    lead = lead_of_call(prompt, text) if prompt else None
    if lead is None:  # the turn does not begin as the prompt ends, so that only the mark itself is sure
        lead = "".join(re.findall(rf"{CALL_OPEN}\s*", text)[-1:])
    if layout.opens_thinking and lead and THINK_CLOSE not in lead:
        lead = layout.before_think_close + THINK_CLOSE + layout.after_think_close + lead
    return msgspec.structs.replace(layout, call_lead=lead)


def lead_of_call(prompt: str, text: str) -> str | None:
    """What a turn that is the probe's call has between the prompt and the call's brace; None where it has no such form."""
    rest, brace, _ = text.partition(f'{{"name": "{PROBE_TOOL.name}", "arguments": ')
    return rest[len(prompt) :] if brace and rest.startswith(prompt) else None


def opened_call(lead: str, name: str) -> str:
    """The text that begins a call of a tool ("": of any), up to where the model goes on. It ends without a space, which belongs
    to the model's first token."""
    return lead if not name else f'{lead}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


def _any_system(template: ChatTemplate, layout: Layout) -> Layout:
    rules = [Message(role="system", content=f"probe rule {number}") for number in (1, 2, 3)]
    answer = Message(role="assistant", content=_ANSWER)

    def shown(*messages: Message) -> bool:
        try:
            text = template.render(messages, (), generation_prompt=True)
        except RequestError:
            return False
        return all(message.content in text for message in messages)

    if not shown(rules[0], PROBE_QUESTION):
        return layout
    return msgspec.structs.replace(
        layout,
        any_system=shown(rules[0], rules[1], PROBE_QUESTION)
        and shown(rules[0], PROBE_QUESTION, answer, rules[2], PROBE_QUESTION),
    )
