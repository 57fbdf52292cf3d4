"""Prompt ids: where a request goes on from recorded ids, and where it cannot."""

import pytest
from gateway_world import user

from whippletree.engines.scripted import ScriptedEngine
from whippletree.rendering import RenderingConfig, load_renderer

THINKING = "<think>I wonder.</think>the answer"


@pytest.fixture
def stripping(model_dir, tmp_path):
    """A renderer whose template leaves old thinking out, under either policy."""
    template = tmp_path / "stripping.jinja"
    template.write_text(
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.reasoning_content and loop.last %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}"
        "{{- message.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    return lambda policy: load_renderer(
        model_dir, RenderingConfig(template=str(template), policy=policy, reasoning_format="think", tool_format="none")
    )


@pytest.mark.parametrize(("policy", "cause", "kept"), [("exact", "template", False), ("keep", "", True)])
async def test_thinking_that_the_template_drops(make_world, stripping, policy, cause, kept):
    async with make_world(lambda prompt: THINKING, rendering=stripping(policy)) as world:
        _, first = await world.chat([user("go")], tools=[])
        said = first["choices"][0]["message"]
        assert said["reasoning_content"] == "I wonder."
        await world.chat([user("go"), said, user("on")], tools=[])
        one, two = world.calls()
        assert two.prefix_break == cause
        recorded = [*world.prompt_ids(one), *world.store.payload(one).sampled_ids.tolist()]
        assert (world.prompt_ids(two)[: len(recorded)] == recorded) is kept
        assert ("I wonder." in world.renderer.decode(world.prompt_ids(two))) is kept
        assert two.parent_call_id == (one.call_id if kept else "")


async def test_a_reply_that_the_harness_changed_in_its_text_breaks_the_prefix_by_its_own_doing(make_world):
    async with make_world(lambda prompt: "an answer  ") as world:
        await world.chat([user("go")])
        await world.chat([user("go"), {"role": "assistant", "content": "an answer"}, user("on")])
        assert [call.prefix_break for call in world.calls()] == ["first", "harness_edit"]


async def test_ids_that_the_tokenizer_would_cut_otherwise_are_kept(make_world, renderer):
    """The model wrote the text in single characters; rendering it anew would merge them."""
    text = "the next file is birch"
    letters = [renderer.codec.encode(letter)[0] for letter in text]
    assert len(renderer.codec.encode(text)) < len(letters)
    answer = [*letters, *renderer.codec.encode("<|im_end|>")]
    engine = ScriptedEngine(lambda prompt: answer, vocabulary=420, context=4096)
    async with make_world(engines=[engine]) as world:
        _, first = await world.chat([user("go")])
        assert first["choices"][0]["message"]["content"] == text
        await world.chat([user("go"), {"role": "assistant", "content": text}, user("on")])
        one, two = world.calls()
        assert two.prefix_break == ""
        place = one.prompt_tokens
        assert world.prompt_ids(two)[place : place + len(letters)] == letters
