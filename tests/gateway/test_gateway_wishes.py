"""What a request asks for besides its messages: stop strings, a forced tool, a schema, logprobs."""

import json

import pytest
from gateway_world import user

from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.turns import message_of
from whippletree.types import EngineReport, Sampling

ARGUMENTS = '{"command": "ls"}'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def test_sampling_ends_at_a_stop_string_and_the_engine_is_told(make_direct):
    async with make_direct(lambda prompt: "one two END three four five") as direct:
        reply, deltas = await direct.follow([user("go")], stop=["END"])
        assert (reply.message.content, reply.message.stop_sequence) == ("one two ", "END")
        assert reply.call.finish_reason == "stop"
        assert message_of(deltas, "stop").content == "one two "
        payload = direct.store.payload(reply.call)
        text = direct.renderer.decode(payload.sampled_ids.tolist())
        assert text.startswith("one two END")
        assert "three" not in text
        assert len(payload.sampled_ids) == len(payload.logprobs) == reply.call.sampled_tokens
        assert (await direct.engines[0].status()).running == 0


async def test_a_forced_tool_begins_the_turn_and_is_part_of_the_prompt(make_direct, renderer):
    async with make_direct([" " + ARGUMENTS + "}</tool_call>", "done"]) as direct:
        choice = {"type": "function", "function": {"name": "bash"}}
        reply, deltas = await direct.follow([user("go")], tool_choice=choice)
        (made,) = reply.message.tool_calls
        assert (made.name, json.loads(made.arguments)) == ("bash", {"command": "ls"})
        assert message_of(deltas, "stop").tool_calls == reply.message.tool_calls
        prompt, sampled = direct.ids(reply.call)
        assert renderer.decode(prompt).endswith('<tool_call>{"name": "bash", "arguments":')
        assert renderer.decode(sampled) == " " + ARGUMENTS + "}</tool_call><|im_end|>"
        assert "tool_choice" not in reply.call.ignored
        echo = {"role": "assistant", "content": None, "tool_calls": [
            {"id": made.id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}
        ]}  # fmt: skip
        second = await direct.ask([user("go"), echo, {"role": "tool", "tool_call_id": made.id, "content": "amber"}])
        assert (second.call.prefix_break, second.call.parent_call_id) == ("", reply.call.call_id)


async def test_a_forced_tool_that_the_format_cannot_begin_is_named(make_direct, renderer, model_dir):
    from whippletree.rendering import RenderingConfig, load_renderer

    plain = load_renderer(model_dir, RenderingConfig(template="tiny", tool_format="none"))
    async with make_direct(["hello"], rendering=plain) as direct:
        reply = await direct.ask([user("go")], tool_choice="required")
        assert reply.call.ignored == ("tool_choice",)
        assert reply.message.content == "hello"


@pytest.mark.parametrize("structured", [True, False])
async def test_a_schema_reaches_only_engines_that_follow_it(make_direct, renderer, structured):
    asked = []

    class Engine(ScriptedEngine):
        async def generate(self, request):
            asked.append(request.schema)
            async for chunk in super().generate(request):
                yield chunk

    answer = renderer.codec.encode('{"a": 1}<|im_end|>')
    engine = Engine(lambda prompt: answer, vocabulary=420, context=4096)
    report = EngineReport(grade="tokens", logprobs="processed", structured=structured)
    async with make_direct(engines=[engine], reports={"scripted": report}) as direct:
        reply = await direct.ask([user("go")], change={"schema": SCHEMA})
        assert asked == [SCHEMA if structured else None]
        assert reply.call.constrained is structured
        assert reply.call.ignored == (() if structured else ("response_format",))


async def test_logprobs_for_the_harness_are_those_of_the_record(make_direct):
    async with make_direct(None, sampling=Sampling(max_tokens=9, seed=1)) as direct:
        plain = await direct.ask([user("go")])
        assert plain.tokens == ()
        reply = await direct.ask([user("on")], change={"wants_logprobs": True}, deliver=False)
        payload = direct.store.payload(reply.call)
        assert [token.logprob for token in reply.tokens] == pytest.approx(payload.logprobs.tolist())
        assert len(reply.tokens) == reply.call.sampled_tokens
        again = await direct.ask([user("on")], change={"wants_logprobs": True})  # replayed
        assert [token.text for token in again.tokens] == [token.text for token in reply.tokens]
        assert len(direct.calls()) == 2
