"""Cases of capture: what goes wrong between a harness's request and the ids that are trained."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from gateway_world import user
from msgspec.structs import replace

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.errors import AlignmentError, ContextOverflow
from whippletree.gateway.delivery import as_request_error
from whippletree.gateway.history import stored_request
from whippletree.gateway.sources import check_alignment
from whippletree.protocols import ChatChunk
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.traces import build_samples
from whippletree.types import Sampling


def trained(direct):
    """The trained tokens of the rollout, as text, and their number."""
    ids = [sample.token_ids[sample.trained] for sample in build_samples(direct.trace(), direct.store.rollout("r0").spec)]
    joined = np.concatenate(ids).tolist() if ids else []
    return direct.renderer.decode(joined), len(joined)


@pytest.mark.parametrize("stream", [True, False])
async def test_B01_ids_of_chunks_without_deltas_are_kept(make_direct, stream):
    text = '<tool_call>{"name": "add_numbers", "arguments": {"a": 15, "b": 27}}</tool_call>'
    tool = {"type": "function", "function": {"name": "add_numbers", "parameters": {"type": "object", "properties": {}}}}
    async with make_direct([text]) as direct:
        reply, _ = await direct.follow([user("add")], tools=[tool], stream=stream)
        payload = direct.store.payload(reply.call)
        assert json.loads(reply.message.tool_calls[0].arguments) == {"a": 15, "b": 27}
        assert len(payload.sampled_ids) == reply.call.sampled_tokens
        assert direct.renderer.decode(payload.sampled_ids.tolist()) == text + "<|im_end|>"
        await direct.settled()
        assert trained(direct) == (text + "<|im_end|>", reply.call.sampled_tokens)


async def test_B05_lists_of_different_length_are_never_zipped(make_direct):
    ids, logprobs = [20, 21], [-0.1, -0.2, -0.01]
    with pytest.raises(AlignmentError, match="c-1: the engine sent 2 ids with 3 logprobs"):
        check_alignment(ids, logprobs, "c-1")

    class Trims(ScriptedEngine):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield replace(chunk, token_ids=[]) if chunk.finish_reason == "stop" else chunk

    async with make_direct(engines=[Trims(lambda prompt: [20, 21, 2], vocabulary=420, context=4096)]) as direct:
        with pytest.raises(AlignmentError, match="0 ids with 1 logprobs"):
            await direct.ask([user("go")])
        (call,) = direct.calls()
        assert call.finish_reason == "error"
        assert trained(direct)[1] == 0


async def test_B06_logprobs_without_a_count_is_a_valid_request(make_world):
    async with make_world(lambda prompt: "hi there") as world:
        status, reply = await world.chat([user("hi")], logprobs=True, top_logprobs=None)
        assert status == 200
        (call,) = world.calls()
        payload = world.store.payload(call)
        assert len(payload.logprobs) == call.sampled_tokens == reply["usage"]["completion_tokens"]
        status, reply = await world.chat([user("on")], logprobs=False)
        assert not reply["choices"][0].get("logprobs")


async def test_B07_sampled_ids_without_prompt_ids_are_no_sample(make_direct, model_dir):
    """The prompt's ids are ours unless an engine's own chat endpoint makes the prompt: then they may be missing."""

    class NoPrompt(ScriptedEngine):
        async def chat(self, turn):
            yield ChatChunk(token_ids=[20, 21, 2], logprobs=[-0.1, -0.2, -0.01], finish_reason="stop")

    own = load_renderer(model_dir, RenderingConfig(template="tiny", policy="engine"))
    async with make_direct(engines=[NoPrompt(None, vocabulary=420, context=4096)], rendering=own) as direct:
        reply = await direct.ask([user("go")])
        await direct.settled()
        assert (reply.message.content != "", reply.call.grade) == (True, "logprobs")
        (node,) = direct.trace().nodes
        assert node.excluded
        assert trained(direct)[1] == 0


@pytest.mark.parametrize(("replayed", "same"), [('{"edits":[],"path":"a.py"}', True), ('{"edits":[],"path":"b.py"}', False)])
async def test_B11_arguments_that_come_back_spelt_otherwise(make_direct, replayed, same):
    """The turn is recognised. Under "exact" the prompt is what the template writes now, so its ids are not reused."""
    sampled = '{"path": "a.py", "edits": []}'
    async with make_direct([f'<tool_call>{{"name": "bash", "arguments": {sampled}}}</tool_call>', "done"]) as direct:
        first = await direct.ask([user("go")])
        (made,) = first.message.tool_calls
        assert made.arguments == sampled
        echo = {"role": "assistant", "tool_calls": [
            {"id": made.id, "type": "function", "function": {"name": "bash", "arguments": replayed}}
        ]}  # fmt: skip
        second = await direct.ask([user("go"), echo, {"role": "tool", "tool_call_id": made.id, "content": "ok"}])
        assert (second.call.base_call_id == first.call.call_id) is same
        prompt, _ = direct.ids(second.call)
        assert prompt[: first.call.prompt_tokens] == direct.ids(first.call)[0]
        if not same:
            assert second.call.parent_call_id == ""
            assert second.call.prefix_break == "harness_edit"


async def test_B11_under_keep_the_sampled_ids_are_the_prefix(make_direct, model_dir):
    keeping = load_renderer(model_dir, RenderingConfig(template="tiny", policy="keep"))
    sampled = '{"path": "a.py", "edits": []}'
    texts = [f'<tool_call>{{"name": "bash", "arguments": {sampled}}}</tool_call>', "done"]
    async with make_direct(texts, rendering=keeping) as direct:
        first = await direct.ask([user("go")])
        (made,) = first.message.tool_calls
        call = {"id": made.id, "type": "function", "function": {"name": "bash", "arguments": '{"edits":[],"path":"a.py"}'}}
        messages = [user("go"), {"role": "assistant", "tool_calls": [call]}]
        second = await direct.ask([*messages, {"role": "tool", "tool_call_id": made.id, "content": "ok"}])
        assert (second.call.parent_call_id, second.call.prefix_break) == (first.call.call_id, "")
        prompt, ids = direct.ids(first.call)
        assert direct.ids(second.call)[0][: len(prompt) + len(ids)] == [*prompt, *ids]
        await direct.settled()
        assert trained(direct)[1] == sum(call.sampled_tokens for call in direct.calls())


async def test_B20_a_client_that_gives_up_and_asks_again(make_direct):
    """The first generation ends with its connection; the second goes on with what it had sampled; both are on record, and only
    what was delivered is trained."""
    engine = ScriptedEngine(lambda prompt: [7 + len(prompt) % 50] * 100, vocabulary=420, context=4096)
    engine.faults = Faults(token_seconds=0.005)
    async with make_direct(engines=[engine], sampling=Sampling(max_tokens=40, seed=1)) as direct:
        first = asyncio.create_task(direct.ask([user("go")]))
        while not any(len(live.sampled.ids) > 2 for s in direct.gateway._sessions.values() for live in s.live.values()):
            await asyncio.sleep(0.002)
        first.cancel()
        while (await engine.status()).running or not direct.calls():
            await asyncio.sleep(0.002)
        second = await direct.ask([user("go")])
        await direct.settled()
        one, two = direct.calls()
        assert (one.finish_reason, one.delivered, two.delivered) == ("abort", False, True)
        assert direct.ids(two)[1][: one.sampled_tokens] == direct.ids(one)[1]
        assert trained(direct)[1] == second.call.sampled_tokens == 40
        reasons = {node.call_id: node.excluded for node in direct.trace().nodes}
        assert reasons == {one.call_id: "undelivered", two.call_id: ""}


async def test_B22_fields_of_no_known_meaning_are_not_lost_in_silence(make_world):
    odd = {"chat_template_kwargs": {"enable_thinking": False}, "required_prefix_token_ids": [1, 2, 3], "new_unknown_option": 1}
    async with make_world(["hello"]) as world:
        status, _ = await world.chat([user("hi")], **odd)
        assert status == 200
        (call,) = world.calls()
        assert set(odd) <= set(call.ignored)  # our engines take token ids: the fields are named on the record
        stored = json.loads(stored_request(world.store, call))
        assert {name: stored[name] for name in odd} == odd


async def test_B23_the_run_decides_how_is_sampled(make_world):
    rollout = Sampling(temperature=1.0, top_p=1.0, max_tokens=2048)
    async with make_world(lambda prompt: "hello END more", sampling=rollout) as world:
        asked = {"temperature": 0.0, "top_p": 0.5, "max_tokens": 32000, "stop": ["END"]}
        status, refused = await world.chat([user("go")], n=3, **asked)
        assert (status, "n is 3" in refused["error"]["message"]) == (400, True)
        assert (await world.chat([user("go")], **asked))[0] == 200
        (call,) = world.calls()
        assert call.sampling == rollout
        requested = call.requested
        assert (requested.temperature, requested.top_p, requested.max_tokens, requested.stop) == (0.0, 0.5, 32000, ("END",))
        await world.chat([user("on")], max_tokens=7)
        assert world.calls()[1].sampling.max_tokens == 7


async def test_B24_a_prompt_that_does_not_fit_is_told_so_that_the_harness_can_compact(make_direct):
    async with make_direct(lambda prompt: "hello", context=256) as direct:
        first = await direct.ask([user("go")])
        with pytest.raises(ContextOverflow, match="maximum context length is 256") as overflow:
            await direct.ask([user("x" * 273)])
        told = as_request_error(overflow.value)
        assert (told.status, told.code) == (400, "context_length_exceeded")
        assert [call.call_id for call in direct.calls()] == [first.call.call_id]
        await direct.settled()
        assert trained(direct)[1] == first.call.sampled_tokens
        await direct.ask([user("shorter")])


async def test_A18_null_content_is_rendered_as_nothing_and_stored_as_it_came(make_world):
    messages = [
        user("check metrics"),
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]  # fmt: skip
    async with make_world(["done"]) as world:
        assert (await world.chat(messages))[0] == 200
        (call,) = world.calls()
        assert "None" not in world.renderer.decode(world.prompt_ids(call))
        assert json.loads(stored_request(world.store, call))["messages"] == messages


async def test_B23_a_harness_cannot_ask_for_no_tokens(make_world):
    async with make_world(["hello"]) as world:
        status, refused = await world.chat([user("go")], max_tokens=0)
        assert status == 400
        assert "max_tokens" in refused["error"]["message"]
