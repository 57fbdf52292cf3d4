"""The chat-completions dialect through HTTP, with the clients that people use: openai (sync and async) and litellm."""

import asyncio
import json

import openai
import pytest
from gateway_world import SECRET, user

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import mint

BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
CALLING = 'Grüße 🙂 I look.<tool_call>{"name": "bash", "arguments": {"command": "cat amber"}}</tool_call>'
PARALLEL = "".join(f'<tool_call>{{"name": "bash", "arguments": {{"command": "cat {n}"}}}}</tool_call>' for n in ("a", "b"))
PATCHING = '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin\\n\\"é\\""}}</tool_call>'


@pytest.fixture(params=["sync", "async"])
def client_of(request):
    def make(world, key="", **options):
        kind = openai.OpenAI if request.param == "sync" else openai.AsyncOpenAI
        return kind(base_url=world.url + "/v1", api_key=key or mint(SECRET, "r0", 1), **{"max_retries": 0, **options})

    return make


async def ask(client, stream=False, **fields):
    """The final completion of one request."""
    fields = {"model": "policy", **fields}
    if isinstance(client, openai.AsyncOpenAI):
        if not stream:
            return await client.chat.completions.create(**fields)
        async with client.chat.completions.stream(stream_options={"include_usage": True}, **fields) as events:
            return await events.get_final_completion()

    def blocking():
        if not stream:
            return client.chat.completions.create(**fields)
        with client.chat.completions.stream(stream_options={"include_usage": True}, **fields) as events:
            return events.get_final_completion()

    return await asyncio.to_thread(blocking)


async def ask_chunks(client, **fields):
    """The chunks of one streamed reply."""
    fields = {"model": "policy", "stream": True, **fields}
    if isinstance(client, openai.AsyncOpenAI):
        return [chunk async for chunk in await client.chat.completions.create(**fields)]
    return await asyncio.to_thread(lambda: list(client.chat.completions.create(**fields)))


async def delivered(world, count):
    while sum(call.delivered for call in world.calls()) < count:
        await asyncio.sleep(0.01)


def echo(message):
    """The message as harnesses keep it."""
    return message.model_dump(exclude_none=True, exclude={"parsed"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_tools_goes_on_from_the_same_ids(make_world, client_of, stream):
    history = [{"role": "developer", "content": "be brief"}, user("read both")]
    async with make_world([PARALLEL, "done"]) as world:
        client = client_of(world)
        first = (await ask(client, stream, messages=history, tools=[BASH])).choices[0]
        assert first.finish_reason == "tool_calls"
        calls = first.message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [{"command": "cat a"}, {"command": "cat b"}]
        assert len({call.id for call in calls}) == 2
        await delivered(world, 1)
        recorded = json.loads(world.store.payload(world.calls()[0]).reply_json)["tool_calls"]
        assert [call["id"] for call in recorded] == [call.id for call in calls]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "birch"} for call in calls]
        second = await ask(client, stream, messages=[*history, echo(first.message), *results], tools=[BASH])
        assert second.choices[0].message.content == "done"
        one, two = world.calls()
        assert (one.prefix_break, two.prefix_break, two.parent_call_id) == ("first", "", one.call_id)
        assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (two.prompt_tokens, two.sampled_tokens)
        assert second.usage.prompt_tokens_details.cached_tokens == two.cached_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_free_text_tool_both_ways(make_world, client_of, stream):
    tool = {"type": "custom", "custom": {"name": "apply_patch", "description": "edit"}}
    async with make_world([PATCHING, "done"]) as world:
        client = client_of(world)
        if stream:  # the client's stream helper puts function calls together only
            chunks = await ask_chunks(client, messages=[user("go")], tools=[tool])
            (call,) = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
            call = call.model_dump(exclude_none=True, exclude={"index"})
        else:
            (call,) = (await ask(client, messages=[user("go")], tools=[tool])).choices[0].message.tool_calls
            call = call.model_dump(exclude_none=True)
        assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": '*** Begin\n"é"'})
        await delivered(world, 1)
        turn = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]
        await ask(client, messages=[user("go"), *turn], tools=[tool])
        one, two = world.calls()
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_those_of_the_record(make_world, client_of, stream):
    async with make_world(["hello"]) as world:
        reply = await ask(client_of(world), stream, messages=[user("hi")], logprobs=True, top_logprobs=None)
        told = reply.choices[0].logprobs.content
        recorded = world.store.payload(world.calls()[0])
        assert [item.logprob for item in told] == pytest.approx(recorded.logprobs.tolist())
        assert "".join(item.token for item in told).startswith("hello")
        assert len(told) == reply.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_clients_own_exceptions(make_world, client_of, stream):
    async with make_world(["x"] * 9, context=64) as world:
        with pytest.raises(openai.AuthenticationError):
            await ask(client_of(world, "wt-nobody"), stream, messages=[user("hi")])
        client = client_of(world)
        with pytest.raises(openai.BadRequestError, match="n is 2"):
            await ask(client, stream, messages=[user("hi")], n=2)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens") as refused:
            await ask(client, stream, messages=[user("birch and amber " * 40)])
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


async def test_an_engine_that_breaks_in_mid_stream_is_an_error_and_no_short_reply(make_world, client_of):
    async with make_world(["a long enough answer"] * 9, faults=Faults(error_after=3)) as world:
        with pytest.raises(openai.APIError):
            await ask(client_of(world), True, messages=[user("hi")])


async def test_the_clients_own_retry_gets_an_answer(make_world, client_of):
    async with make_world(["a", "b"], faults=Faults(errors=1, error_after=1)) as world:
        reply = await ask(client_of(world, max_retries=3), messages=[user("hi")])
        assert reply.choices[0].message.content == "b"
        assert [bool(call.error) for call in world.calls()] == [True, False]


async def test_pictures_leave_their_mark_on_the_record(make_world, client_of):
    async with make_world(["a tree"]) as world:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
        await ask(client_of(world), messages=[{"role": "user", "content": [{"type": "text", "text": "see "}, picture]}])
        (call,) = world.calls()
        assert "see [image image/png]" in world.renderer.decode(world.prompt_ids(call))
        (message,) = json.loads(world.store.payload(call).messages_json)
        assert message["media"][0]["kind"] == "image"


async def test_models(make_world, client_of):
    async with make_world(["x"]) as world:
        client = client_of(world)
        if isinstance(client, openai.AsyncOpenAI):
            names = [model.id async for model in client.models.list()]
        else:
            names = await asyncio.to_thread(lambda: [model.id for model in client.models.list()])
        assert names == ["policy"]


@pytest.mark.parametrize("stream", [False, True])
async def test_litellm(make_world, monkeypatch, stream):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it looks outside for prices otherwise
    import litellm

    messages = [user("read amber")]
    async with make_world(["<think>hm</think>" + CALLING, "done"], context=2048) as world:
        fields = {"model": "openai/policy", "api_base": world.url + "/v1", "api_key": mint(SECRET, "r0", 1), "tools": [BASH]}
        reply = await litellm.acompletion(messages=messages, stream=stream, **fields)
        if stream:
            reply = litellm.stream_chunk_builder([chunk async for chunk in reply])
        message = reply.choices[0].message
        assert (message.content, message.reasoning_content) == ("Grüße 🙂 I look.", "hm")
        assert json.loads(message.tool_calls[0].function.arguments) == {"command": "cat amber"}
        await delivered(world, 1)
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "birch"}]
        again = await asyncio.to_thread(litellm.completion, messages=messages, **fields)
        assert again.choices[0].message.content == "done"
        assert world.calls()[1].base_call_id == world.calls()[0].call_id
        with pytest.raises(litellm.ContextWindowExceededError):
            await litellm.acompletion(messages=[user("amber " * 2000)], **fields)
