"""The Messages dialect through HTTP, with the clients that people use: anthropic (sync and async) and litellm."""

import asyncio
import json

import anthropic
import pytest
from gateway_world import SECRET

from whippletree.gateway.keys import mint
from whippletree.rendering import RenderingConfig, load_renderer

BASH = [
    {"name": "bash", "description": "run", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
]
CALLING = 'I look.<tool_call>{"name": "bash", "arguments": {"command": "cat amber"}}</tool_call>'
THINKING = "<think>\nthe file\n</think>\n\n" + CALLING


@pytest.fixture(params=["sync", "async"])
def client_of(request):
    """A client of a world: `await ask(client, ...)` gives the final message, streamed or whole."""

    def make(world, key="", **options):
        kind = anthropic.Anthropic if request.param == "sync" else anthropic.AsyncAnthropic
        return kind(base_url=world.url, api_key=key or mint(SECRET, "r0", 1), max_retries=0, **options)

    return make


async def ask(client, stream=False, **fields):
    fields = {"model": "policy", "max_tokens": 300, **fields}
    if isinstance(client, anthropic.AsyncAnthropic):
        if not stream:
            return await client.messages.create(**fields)
        async with client.messages.stream(**fields) as events:
            return await events.get_final_message()

    def blocking():
        if not stream:
            return client.messages.create(**fields)
        with client.messages.stream(**fields) as events:
            return events.get_final_message()

    return await asyncio.to_thread(blocking)


async def call_of(client, method, **fields):
    """One method of either client that is no turn."""
    if isinstance(client, anthropic.AsyncAnthropic):
        return await method(**fields)
    return await asyncio.to_thread(method, **fields)


async def delivered(world, count):
    while sum(call.delivered for call in world.calls()) < count:
        await asyncio.sleep(0.01)


def tool_result(message, text):
    (use,) = [block for block in message.content if block.type == "tool_use"]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": text}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_a_tool_goes_on_from_the_same_ids(make_world, client_of, stream):
    history = [{"role": "user", "content": "read amber"}]
    async with make_world([CALLING, "the next file is birch"]) as world:
        client = client_of(world)
        first = await ask(client, stream, messages=history, tools=BASH, system="be brief")
        assert first.stop_reason == "tool_use"
        assert [block.type for block in first.content] == ["text", "tool_use"]
        assert first.content[1].input == {"command": "cat amber"}
        await delivered(world, 1)
        history += [{"role": "assistant", "content": first.content}, tool_result(first, "birch")]
        second = await ask(client, stream, messages=history, tools=BASH, system="be brief")
        assert (second.content[0].text, second.stop_reason) == ("the next file is birch", "end_turn")
        one, two = world.calls()
        assert (one.prefix_break, two.prefix_break, two.parent_call_id) == ("first", "", one.call_id)
        assert (two.dialect, two.streamed) == ("messages", stream)
        counts = second.usage.input_tokens + second.usage.cache_read_input_tokens
        assert (counts, second.usage.output_tokens) == (two.prompt_tokens, two.sampled_tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_comes_with_a_signature_and_goes_on_where_it_is_kept(make_world, model_dir, client_of, stream):
    keep = load_renderer(model_dir, RenderingConfig(policy="keep", template="tiny", reasoning_format="think"))
    history = [{"role": "user", "content": "read amber"}]
    async with make_world([THINKING, "done", "done"], rendering=keep) as world:
        client = client_of(world)
        first = await ask(client, stream, messages=history, tools=BASH)
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert first.content[0].thinking.strip() == "the file"
        await delivered(world, 1)
        echoed = [{"role": "assistant", "content": first.content}, tool_result(first, "birch")]
        await ask(client, stream, messages=history + echoed, tools=BASH)
        one, two = world.calls()
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")
        (turn, _) = json.loads(json.dumps(echoed, default=lambda block: block.to_dict()))
        turn["content"][0]["thinking"] = ""  # a harness that sends back the mark alone
        await delivered(world, 2)
        await ask(client, stream, messages=[*history, turn, tool_result(first, "cedar")], tools=BASH)
        three = world.calls()[2]
        assert (three.parent_call_id, three.prefix_break) == (one.call_id, "")


async def test_refusals_are_the_clients_own_exceptions(make_world, client_of):
    message = [{"role": "user", "content": "hi"}]
    async with make_world(["x"] * 9, context=64) as world:
        client = client_of(world)
        with pytest.raises(anthropic.AuthenticationError):
            await ask(client_of(world, key="wt-nobody"), messages=message)
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.text"):
            await ask(client, messages=[{"role": "user", "content": [{"type": "text", "text": 5}]}])
        long = [{"role": "user", "content": "birch and amber " * 40}]
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 64 maximum") as refused:
                await ask(client, stream, messages=long)
            assert refused.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.NotFoundError):
            await call_of(client, client.models.retrieve, model_id="another")


async def test_a_count_is_the_prompt_of_the_same_request(make_world, client_of):
    asked = {"messages": [{"role": "user", "content": "read amber"}], "tools": BASH, "system": "be brief"}
    async with make_world(["x"]) as world:
        client = client_of(world)
        counted = await call_of(client, client.messages.count_tokens, model="policy", **asked)
        await ask(client, **asked)
        assert counted.input_tokens == world.calls()[0].prompt_tokens > 0


async def test_models_are_listed(make_world, client_of):
    async with make_world(["x"]) as world:
        client = client_of(world)
        page = await call_of(client, client.models.list)
        assert [model.id for model in page.data] == [world.config.model]
        assert (await call_of(client, client.models.retrieve, model_id=world.config.model)).type == "model"


async def test_a_stop_sequence_ends_the_turn(make_world, client_of):
    async with make_world(["one END two"]) as world:
        message = await ask(client_of(world), messages=[{"role": "user", "content": "x"}], stop_sequences=["END"])
    assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("one ", "stop_sequence", "END")


@pytest.mark.parametrize("stream", [False, True])
async def test_litellm_reads_calls_text_and_counts(make_world, monkeypatch, stream):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it looks outside for prices otherwise
    import litellm

    tools = [{"type": "function", "function": {"name": "bash", "parameters": BASH[0]["input_schema"]}}]
    async with make_world([CALLING, "done"]) as world:
        options = {"model": "anthropic/policy", "api_base": world.url, "api_key": mint(SECRET, "r0", 1), "tools": tools}
        history = [{"role": "user", "content": "read amber"}]
        for _ in range(2):
            reply = await litellm.acompletion(messages=history, stream=stream, num_retries=0, max_tokens=300, **options)
            if stream:
                reply = litellm.stream_chunk_builder([chunk async for chunk in reply])
            message = reply.choices[0].message
            await delivered(world, len(history) // 2 + 1)
            if message.tool_calls:
                assert json.loads(message.tool_calls[0].function.arguments) == {"command": "cat amber"}
                result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "birch"}
                history += [message.model_dump(exclude_none=True), result]
        assert message.content == "done"
        one, two = world.calls()
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")
        assert reply.usage.prompt_tokens == two.prompt_tokens
