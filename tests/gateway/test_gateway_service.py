"""Whole calls on real parts: what the harness gets, and what the store has of it."""

import json

import numpy as np
import pytest
from gateway_world import user

from whippletree.gateway.history import stored_request
from whippletree.types import Sampling

LISTING = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


async def test_a_conversation_goes_on_from_the_recorded_ids(make_world):
    async with make_world([f"I look.{LISTING}", "done"]) as world:
        messages = [{"role": "system", "content": "be brief"}, user("go")]
        status, first = await world.chat(messages)
        assert status == 200
        said = first["choices"][0]["message"]
        assert said["content"] == "I look."
        assert said["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "amber"}]
        status, second = await world.chat(messages)
        assert second["choices"][0]["message"]["content"] == "done"
        one, two = world.calls()
        assert (one.prefix_break, two.prefix_break) == ("first", "")
        assert two.parent_call_id == one.call_id
        sampled = world.store.payload(one).sampled_ids.tolist()
        assert world.prompt_ids(two)[: len(world.prompt_ids(one)) + len(sampled)] == [*world.prompt_ids(one), *sampled]
        assert world.renderer.decode(world.prompt_ids(two)).endswith("tool\namber<|im_end|>\n<|im_start|>assistant\n")
        await world.control.seal_async("r0", 1)
        assert all(call.delivered for call in world.calls())


async def test_ids_logprobs_and_usage_agree(make_world):
    async with make_world(None, sampling=Sampling(max_tokens=17, seed=1)) as world:
        _, reply = await world.chat([user("go")])
        (call,) = world.calls()
        payload = world.store.payload(call)
        usage = reply["usage"]
        assert len(payload.sampled_ids) == len(payload.logprobs) == usage["completion_tokens"] == call.sampled_tokens > 0
        assert usage["prompt_tokens"] == call.prompt_tokens == len(payload.prompt_delta)
        assert np.isfinite(payload.logprobs).all()
        prompt = payload.prompt_delta.tolist()
        scores = await world.engines[0].score([*prompt, *payload.sampled_ids.tolist()])
        assert np.allclose(payload.logprobs, scores[len(prompt) - 1 :], atol=1e-5)
        assert (call.version_start, call.version_end, call.replica) == (0, 0, "scripted")
        assert call.times.received <= call.times.submitted <= call.times.first_token <= call.times.finished


async def test_the_run_decides_how_is_sampled_and_the_wish_is_recorded(make_world):
    async with make_world(None, sampling=Sampling(temperature=0.7, max_tokens=30, seed=1)) as world:
        await world.chat([user("a")], temperature=0.1, max_tokens=1000, top_p=0.5)
        await world.chat([user("b")], max_completion_tokens=3)
        one, two = world.calls()
        assert (one.sampling.temperature, one.sampling.top_p, one.sampling.max_tokens) == (0.7, 1.0, 30)
        assert (one.requested.temperature, one.requested.top_p, one.requested.max_tokens) == (0.1, 0.5, 1000)
        assert (two.sampling.max_tokens, two.finish_reason, two.sampled_tokens) == (3, "length", 3)


async def test_the_limit_is_what_room_the_context_has(make_world):
    async with make_world(None, context=60) as world:
        await world.chat([user("go")])
        (call,) = world.calls()
        assert call.sampling.max_tokens == 60 - call.prompt_tokens
        assert call.finish_reason in ("length", "stop")


async def test_a_prompt_that_does_not_fit_is_refused_as_openai_does(make_world):
    async with make_world(None, context=60) as world:
        status, body = await world.chat([user("go " * 100)])
        assert status == 400
        assert body["error"]["code"] == "context_length_exceeded"
        assert "maximum context length is 60" in body["error"]["message"]
        assert world.calls() == []


async def test_breaks_of_the_prefix_are_recorded_by_cause(make_world):
    async with make_world(lambda prompt: "hello") as world:
        await world.chat([user("go")])
        hello = {"role": "assistant", "content": "hello"}
        await world.chat([user("go"), hello, user("on")])
        await world.chat([user("go"), user("no reply of yours here")])
        await world.chat([user("title of this session?")])
        await world.chat([user("go"), hello, user("on"), {"role": "assistant", "content": "hello "}, user("and on")])
        await world.chat([user("go")], tools=[])
        causes = [call.prefix_break for call in world.calls()]
        assert causes == ["first", "", "harness_edit", "new_thread", "harness_edit", "harness_edit"]
        assert (await world.control.status_async()).prefix_breaks == {"first": 1, "": 1, "harness_edit": 3, "new_thread": 1}


async def test_a_call_sent_back_as_text_still_goes_on_from_the_ids_it_has_in_common(make_world):
    """The messages differ, the rendered prompt does not: no prefix is broken and nothing is stored twice."""
    async with make_world(lambda prompt: LISTING) as world:
        await world.chat([user("go")])
        text = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
        await world.chat([user("go"), {"role": "assistant", "content": text}, user("on")])
        one, two = world.calls()
        assert (two.prefix_break, two.parent_call_id) == ("", one.call_id)
        assert len(world.store.payload(two).prompt_delta) < two.prompt_tokens - one.prompt_tokens


async def test_a_repeat_after_delivery_is_a_new_sampling_of_the_same_prompt(make_world):
    async with make_world(["one", "two"]) as world:
        _, first = await world.chat([user("go")])
        _, second = await world.chat([user("go")])
        assert [reply["choices"][0]["message"]["content"] for reply in (first, second)] == ["one", "two"]
        one, two = world.calls()
        assert world.prompt_ids(one) == world.prompt_ids(two)
        assert (one.prefix_break, two.prefix_break) == ("first", "first")


async def test_stored_requests_grow_with_the_new_messages_only(make_world):
    async with make_world(lambda prompt: "hello") as world:
        messages = [user("a long instruction " * 20)]
        for _ in range(6):
            _, reply = await world.chat(messages)
            messages += [reply["choices"][0]["message"], user("on")]
        calls = world.calls()
        sizes = [len(world.store.payload(call).request_json) for call in calls]
        assert max(sizes[1:]) < 300 < sizes[0]
        assert json.loads(stored_request(world.store, calls[5]))["messages"] == messages[:-2]
        assert [len(json.loads(world.store.payload(call).messages_json)) for call in calls] == [1, 1, 1, 1, 1, 1]
        assert sum(len(world.store.payload(call).prompt_delta) for call in world.calls()) < 2 * world.calls()[5].prompt_tokens


@pytest.mark.parametrize("name", ["base", "par", "textmode", "badargs"])
async def test_recorded_sessions_of_mini_swe_agent(make_world, recordings, name):
    """The recorded requests, with our replies where the recorded ones had been: every request that keeps them goes on."""
    texts = iter([f"I will write the file.{LISTING}", "second", "third", "fourth", "fifth"])
    async with make_world(lambda prompt: next(texts), context=100_000) as world:
        said = []
        for exchange in recordings(f"mini-swe-agent.{name}"):
            body = exchange["body"]
            replies = iter(said)
            messages = [next(replies) if item["role"] == "assistant" else item for item in body["messages"]]
            status, reply = await world.chat(messages, model=body["model"], tools=body.get("tools", []))
            assert status == 200
            said.append(reply["choices"][0]["message"])
        causes = [call.prefix_break for call in world.calls()]
        expected = ["first", "harness_edit", "harness_edit"] if name == "badargs" else ["first", "", ""]
        assert causes == expected[: len(causes)]
