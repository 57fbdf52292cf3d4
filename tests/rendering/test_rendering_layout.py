"""What templates write around a turn is measured, not listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whippletree.rendering import ChatRenderer, RenderingConfig
from whippletree.rendering.layout import Layout, measure
from whippletree.rendering.template import ChatTemplate
from whippletree.types import Message, ToolSpec

GENERATION = "<|im_start|>assistant\n"
EXPECTED = {
    "tiny": Layout(generation_prompt=GENERATION, turn_end="<|im_end|>\n", hermes=True, call_lead="<tool_call>"),
    "thinking": Layout(
        generation_prompt=GENERATION,
        turn_end="<|im_end|>\n",
        thinks=True,
        after_think_open="\n",
        before_think_close="\n",
        after_think_close="\n\n",
        hermes=True,
        before_call="\n",
        call_lead="<tool_call>\n",
    ),
    "compact": Layout(
        generation_prompt=GENERATION, turn_end="<|im_end|>", hermes=True, before_call="\n", call_lead="\n<tool_call>"
    ),
    "opened": Layout(
        generation_prompt=GENERATION + "<think>\n",
        turn_end="<|im_end|>\n",
        thinks=True,
        opens_thinking=True,
        before_think_close="\n",
        after_think_close="\n\n",
        shows_calls=False,
    ),
    "dated": Layout(generation_prompt=GENERATION, turn_end="<|im_end|>\n", shows_calls=False),
    "strict": Layout(generation_prompt=GENERATION, turn_end="<|im_end|>\n", shows_calls=False, any_system=False),
    "observed": Layout(
        generation_prompt="<|assistant|>\n", turn_end="", hermes=True, before_call="\n", call_lead="\n<tool_call>"
    ),
}


@pytest.mark.parametrize("model", EXPECTED)
def test_layouts_of_known_templates(renderer: Callable[..., ChatRenderer], model: str) -> None:
    assert renderer(model).layout == EXPECTED[model]


@pytest.mark.parametrize("model", ["thinking", "opened"])
def test_a_turn_split_by_the_layout_renders_to_the_same_text(renderer: Callable[..., ChatRenderer], model: str) -> None:
    loaded, tools = renderer(model), [ToolSpec(name="bash")] if model == "thinking" else []
    question = Message(role="user", content="q")
    opened = "" if model == "opened" else "<think>\n"
    sampled = f"{opened}a thought\n</think>\n\nan answer<|im_end|>"
    parser = loaded.parser(tools)
    parser.feed(loaded.codec.encode(sampled))
    message = parser.finish("stop")[1]
    turn = Message(role="assistant", content=message.content, reasoning=message.reasoning)
    assert (message.reasoning, message.content) == ("a thought", "an answer")
    whole = loaded.template.render([question, turn], tools, generation_prompt=False)
    assert whole == loaded.text([question], tools) + sampled + "\n"


def test_a_template_that_refuses_everything_leaves_the_defaults() -> None:
    template = ChatTemplate("{{ raise_exception('never') }}", "", {}, RenderingConfig())
    assert measure(template) == Layout()


def test_formats_follow_the_layout_unless_they_are_set(renderer: Callable[..., ChatRenderer]) -> None:
    assert (renderer("thinking").reads_calls, renderer("thinking").reads_thinking) == (True, True)
    assert (renderer("tiny").reads_calls, renderer("tiny").reads_thinking) == (True, False)
    assert (renderer("dated").reads_calls, renderer("dated").reads_thinking) == (False, False)
    set_off = renderer("thinking", tool_format="none", reasoning_format="none")
    assert (set_off.reads_calls, set_off.reads_thinking) == (False, False)
    assert renderer("dated", tool_format="hermes").reads_calls
