"""Official clients against a running gateway, over the Responses dialect."""

import asyncio
import json

import openai
import pytest
from gateway_world import SECRET

from whippletree.gateway.dialects.responses_ids import call_of_response
from whippletree.gateway.keys import mint
from whippletree.types import Sampling

BASH = {
    "type": "function",
    "name": "bash",
    "description": "run",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
FILES = {"type": "namespace", "name": "mcp__fs__", "description": "files", "tools": [{**BASH, "name": "status"}]}
CALL = 'look<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
ENCRYPTED = ["reasoning.encrypted_content"]


def options(world, rollout="r0"):
    return {"api_key": mint(SECRET, rollout, 1), "base_url": world.url + "/v1", "max_retries": 0}


def sync_client(world, **fields):
    return openai.OpenAI(**{**options(world), **fields})


def async_client(world, **fields):
    return openai.AsyncOpenAI(**{**options(world), **fields})


async def whole(world, **body):
    async with async_client(world) as client:
        return await client.responses.create(model="policy", **body)


async def streamed(world, **body):
    """The final response of a stream, which the client's own accumulator must agree with."""
    async with async_client(world) as client:
        texts, final = [], None
        async with await client.responses.create(model="policy", stream=True, **body) as events:
            async for event in events:
                texts.append(event.delta if event.type == "response.output_text.delta" else "")
                final = event.response if event.type == "response.completed" else final
        assert "".join(texts) == final.output_text
        return final


def back(response):
    """Output items as harnesses send them on."""
    return [item.to_dict() for item in response.output]


@pytest.mark.parametrize("create", [whole, streamed])
async def test_a_conversation_with_a_tool_extends_the_first_calls_ids(make_world, create):
    async with make_world([CALL, "done"]) as world:
        ask = {"role": "user", "content": "list"}
        body = {"tools": [BASH], "instructions": "be brief", "store": False, "include": ENCRYPTED}
        one = await create(world, input=[ask], **body)
        message, call = one.output
        assert (message.content[0].text, call.name, call.arguments) == ("look", "bash", '{"command": "ls"}')
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
        two = await create(world, input=[ask, *back(one), output], **body)
        assert two.output_text == "done"
        first, second = world.calls()
        assert (second.parent_call_id, second.prefix_break) == (first.call_id, "")
        assert (first.dialect, first.delivered, first.finish_reason) == ("responses", True, "tool_calls")
        assert (one.usage.input_tokens, one.usage.output_tokens) == (first.prompt_tokens, first.sampled_tokens)
        assert call_of_response(one.id) == first.call_id


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sync_client(make_world, stream):
    async with make_world(["one two"]) as world:

        def ask():
            with sync_client(world) as client:
                if not stream:
                    return client.responses.create(model="policy", input="hi")
                with client.responses.stream(model="policy", input="hi") as events:
                    events.until_done()
                    return events.get_final_response()

        response = await asyncio.to_thread(ask)
        assert (response.output_text, response.status) == ("one two", "completed")


@pytest.mark.parametrize("create", [whole, streamed])
async def test_custom_and_namespaced_tools_round_trip(make_world, create):
    patch = "*** Begin Patch\n+caf\u00e9 \U0001f40e\n*** End Patch\n"
    calls = [
        f'<tool_call>{{"name": "apply_patch", "arguments": {json.dumps({"input": patch}, ensure_ascii=False)}}}</tool_call>',
        '<tool_call>{"name": "mcp__fs__status", "arguments": {"command": "x"}}</tool_call>',
    ]
    async with make_world(["".join(calls), "done"]) as world:
        ask = {"role": "user", "content": "change it"}
        one = await create(world, input=[ask], tools=[PATCH, FILES])
        custom, function = one.output
        assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "apply_patch", patch)
        assert (function.type, function.namespace, function.name) == ("function_call", "mcp__fs__", "status")
        outputs = [
            {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "ok"},
            {"type": "function_call_output", "call_id": function.call_id, "output": "ok"},
        ]
        await create(world, input=[ask, *back(one), *outputs], tools=[PATCH, FILES])
        first, second = world.calls()
        assert second.parent_call_id == first.call_id
        prompt = world.renderer.decode(world.prompt_ids(first))
        assert "mcp__fs__status" in prompt


async def test_a_previous_response_brings_its_conversation_along(make_world):
    async with make_world(["remembered", "purple-42", "again"]) as world:
        one = await whole(world, input="Remember purple-42", instructions="be brief")
        two = await streamed(world, input="What was it?", previous_response_id=one.id, instructions="be brief")
        assert two.previous_response_id == one.id
        first, second = world.calls()
        assert (second.parent_call_id, second.base_call_id) == (first.call_id, first.call_id)
        await whole(world, input="And now?", previous_response_id=two.id, instructions="be brief")
        assert world.calls()[2].parent_call_id == second.call_id
        async with async_client(world) as client:
            assert (await client.responses.retrieve(one.id)).output_text == "remembered"


async def test_a_response_of_nobody_or_of_another_rollout_is_not_found(make_world):
    async with make_world(["one"]) as world:
        one = await whole(world, input="hi")
        for name in ("resp_nope", "resp_" + "0" * 24):
            with pytest.raises(openai.NotFoundError) as error:
                await whole(world, input="x", previous_response_id=name)
            assert name.removeprefix("resp_") in str(error.value)
        async with async_client(world, **options(world, "r1")) as client:
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="policy", input="x", previous_response_id=one.id)


async def test_reasoning_that_comes_back_only_as_our_mark_does_not_break_the_prefix(make_world):
    async with make_world(["<think>secret</think>b", "d"]) as world:
        ask = {"role": "user", "content": "a"}
        one = await whole(world, input=[ask], store=False, include=ENCRYPTED)
        reasoning, message = back(one)
        assert reasoning["summary"] == [{"type": "summary_text", "text": "secret"}]
        kept = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": reasoning["encrypted_content"]}
        await whole(world, input=[ask, kept, message, {"role": "user", "content": "c"}], store=False)
        first, second = world.calls()
        assert second.base_call_id == first.call_id


async def test_a_turn_at_its_limit_is_incomplete(make_world):
    async with make_world(["word " * 50], sampling=Sampling(max_tokens=6, seed=1)) as world:
        response = await whole(world, input="hi")
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output[-1].status == "incomplete"
        assert response.usage.output_tokens == 6


async def test_errors_have_the_clients_own_classes(make_world):
    async with make_world(["x"], context=256) as world:
        with pytest.raises(openai.BadRequestError) as error:
            await whole(world, input="word " * 4000)
        assert error.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="background"):
            await whole(world, input="x", background=True)
        async with async_client(world, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.responses.create(model="policy", input="x")


async def test_a_compaction_and_the_conversation_that_goes_on_from_it(make_world):
    async with make_world(["did a", "the summary", "went on", "another summary"]) as world:
        ask = {"role": "user", "content": "task"}
        one = await streamed(world, input=[ask], tools=[BASH])
        summary = await streamed(world, input=[ask, *back(one), {"type": "compaction_trigger"}], tools=[BASH])
        (item,) = summary.output
        assert item.type == "compaction"
        await streamed(world, input=[ask, item.to_dict()], tools=[BASH])
        first, second, third = world.calls()
        assert second.parent_call_id == first.call_id
        assert "the summary" in world.renderer.decode(world.prompt_ids(third))
        async with async_client(world) as client:
            compacted = await client.responses.compact(model="policy", input=[ask])
        assert [item.type for item in compacted.output] == ["message", "compaction"]


async def test_a_token_count_is_that_of_the_prompt(make_world):
    async with make_world(["ok"]) as world:
        body = {"model": "policy", "input": [{"role": "user", "content": "count me"}], "tools": [BASH], "instructions": "brief"}
        async with async_client(world) as client:
            counted = await client.responses.input_tokens.count(**body)
            response = await client.responses.create(**body)
        assert counted.input_tokens == response.usage.input_tokens == world.calls()[0].prompt_tokens
        assert len(world.calls()) == 1


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
async def test_litellm_goes_on_with_a_tool_conversation(make_world, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    async with make_world([CALL, "done"]) as world:
        where = {"model": "openai/policy", "api_base": world.url + "/v1", "api_key": options(world)["api_key"], "tools": [BASH]}
        ask = {"role": "user", "content": "list"}
        one = await litellm.aresponses(input=[ask], **where)
        message, call = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in one.output]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "a.txt"}
        final = None
        async for event in await litellm.aresponses(input=[ask, message, call, output], stream=True, **where):
            final = event.response if event.type == "response.completed" else final
        assert final.output[0].content[0].text == "done"
        first, second = world.calls()
        assert second.parent_call_id == first.call_id
