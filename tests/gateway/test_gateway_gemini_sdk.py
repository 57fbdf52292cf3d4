"""The Gemini dialect through HTTP, with the clients that people use: google-genai (sync and async) and litellm."""

import asyncio
import json

import pytest
from gateway_world import SECRET
from google import genai
from google.genai import errors, types

from whippletree.engines.scripted import Faults
from whippletree.gateway.keys import mint
from whippletree.rendering import RenderingConfig, load_renderer

BASH = types.FunctionDeclaration(
    name="bash",
    description="run",
    parameters=types.Schema(type=types.Type.OBJECT, properties={"command": types.Schema(type=types.Type.STRING)}),
)
CONFIG = types.GenerateContentConfig(
    tools=[types.Tool(function_declarations=[BASH])],
    system_instruction="be brief",
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)
CALLING = 'Grüße 🙂 I look.<tool_call>{"name": "bash", "arguments": {"command": "cat amber"}}</tool_call>'
PARALLEL = "".join(f'<tool_call>{{"name": "bash", "arguments": {{"command": "cat {n}"}}}}</tool_call>' for n in ("a", "b"))
THINKING = "<think>the file</think>" + CALLING


def client_of(world, key="", version="v1beta"):
    options = types.HttpOptions(base_url=world.url, api_version=version)
    return genai.Client(api_key=key or mint(SECRET, "r0", 1), http_options=options)


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """`await ask(client, stream, contents)`: every chunk of a reply; one where it is whole."""

    async def asynchronous(client, stream, contents, config=CONFIG):
        fields = {"model": "policy", "contents": contents, "config": config}
        if not stream:
            return [await client.aio.models.generate_content(**fields)]
        return [chunk async for chunk in await client.aio.models.generate_content_stream(**fields)]

    async def blocking(client, stream, contents, config=CONFIG):
        fields = {"model": "policy", "contents": contents, "config": config}
        if not stream:
            return [await asyncio.to_thread(client.models.generate_content, **fields)]
        return await asyncio.to_thread(lambda: list(client.models.generate_content_stream(**fields)))

    return asynchronous if request.param == "async" else blocking


def parts_of(chunks):
    return [part for chunk in chunks for part in chunk.candidates[0].content.parts or []]


def text_of(chunks):
    return "".join(part.text or "" for part in parts_of(chunks) if not part.thought)


def calls_of(chunks):
    return [part.function_call for part in parts_of(chunks) if part.function_call]


def user(text):
    return types.Content(role="user", parts=[types.Part(text=text)])


def answers(calls, *texts, named=True):
    parts = [
        types.Part(
            function_response=types.FunctionResponse(id=call.id if named else None, name=call.name, response={"output": text})
        )
        for call, text in zip(calls, texts, strict=True)
    ]
    return types.Content(role="user", parts=parts)


async def delivered(world, count):
    while sum(call.delivered for call in world.calls()) < count:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_a_tool_goes_on_from_the_same_ids(make_world, ask, stream):
    """The client keeps every chunk as a content of its own, as its own chat helper does."""
    history = [user("read amber")]
    async with make_world([CALLING, "the next file is birch"]) as world:
        client = client_of(world)
        first = await ask(client, stream, history)
        assert text_of(first) == "Grüße 🙂 I look."
        (call,) = calls_of(first)
        assert (call.name, call.args) == ("bash", {"command": "cat amber"})
        assert first[-1].candidates[0].finish_reason == "STOP"
        await delivered(world, 1)
        history += [chunk.candidates[0].content for chunk in first] + [answers([call], "birch")]
        second = await ask(client, stream, history)
        assert text_of(second) == "the next file is birch"
        one, two = world.calls()
        assert (one.prefix_break, two.prefix_break, two.parent_call_id) == ("first", "", one.call_id)
        assert (two.dialect, two.streamed) == ("gemini", stream)
        usage = second[-1].usage_metadata
        assert (usage.prompt_token_count, usage.candidates_token_count) == (two.prompt_tokens, two.sampled_tokens)
        assert usage.total_token_count == two.prompt_tokens + two.sampled_tokens
        assert len(first) > 1 if stream else len(first) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_dropped_thoughts_are_put_back_by_the_mark(make_world, model_dir, ask, stream):
    keep = load_renderer(model_dir, RenderingConfig(policy="keep", template="tiny", reasoning_format="think"))
    history = [user("read amber")]
    async with make_world([THINKING, "done"], rendering=keep) as world:
        client = client_of(world)
        first = await ask(client, stream, history)
        assert "".join(part.text for part in parts_of(first) if part.thought) == "the file"
        assert text_of(first) == "Grüße 🙂 I look."
        await delivered(world, 1)
        kept = [part for part in parts_of(first) if not part.thought]
        history += [types.Content(role="model", parts=kept), answers(calls_of(first), "birch")]
        await ask(client, stream, history)
        one, two = world.calls()
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")


@pytest.mark.parametrize("named", [True, False])
async def test_parallel_calls_of_one_name_get_their_own_answers(make_world, ask, named):
    history = [user("read both")]
    async with make_world([PARALLEL, "done"]) as world:
        client = client_of(world)
        first = await ask(client, True, history)
        calls = calls_of(first)
        assert [call.args for call in calls] == [{"command": "cat a"}, {"command": "cat b"}]
        assert len({call.id for call in calls}) == 2
        signed = [part.thought_signature for part in parts_of(first) if part.function_call]
        assert (bool(signed[0]), signed[1]) == (True, None)
        await delivered(world, 1)
        if not named:
            for call in calls:
                call.id = None
        history += [*(chunk.candidates[0].content for chunk in first), answers(calls, "A!", "B!", named=named)]
        assert text_of(await ask(client, True, history)) == "done"
        one, two = world.calls()
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")
        prompt = world.renderer.decode(world.prompt_ids(two))
        assert prompt.index("A!") < prompt.index("B!")


async def test_the_clients_own_chat_keeps_the_prefix(make_world):
    async with make_world([CALLING, "done"]) as world:
        chat = client_of(world).aio.chats.create(model="policy", config=CONFIG)
        first = [chunk async for chunk in await chat.send_message_stream("read amber")]
        await delivered(world, 1)
        (call,) = calls_of(first)
        answer = types.Part.from_function_response(name=call.name, response={"output": "birch"})
        reply = await chat.send_message(answer)
        assert reply.text == "done"
        one, two = world.calls()
        assert (two.parent_call_id, two.prefix_break) == (one.call_id, "")


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_clients_own_exceptions(make_world, ask, stream):
    async with make_world(["x"] * 9, context=64) as world:
        with pytest.raises(errors.ClientError) as refused:
            await ask(client_of(world, "wt-nobody"), stream, [user("hi")])
        assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")
        client = client_of(world)
        with pytest.raises(errors.ClientError, match="candidateCount is 2") as refused:
            await ask(client, stream, [user("hi")], types.GenerateContentConfig(candidate_count=2))
        assert refused.value.status == "INVALID_ARGUMENT"
        long = [user("birch and amber " * 40)]
        with pytest.raises(
            errors.ClientError, match=r"input token count \(\d+\) exceeds the maximum number of tokens allowed \(64\)"
        ):
            await ask(client, stream, long)


async def test_an_engine_that_breaks_in_mid_stream_is_an_error_and_no_short_reply(make_world, ask):
    async with make_world(["a long enough answer"] * 9, faults=Faults(error_after=3)) as world:
        with pytest.raises(errors.ServerError):
            await ask(client_of(world), True, [user("hi")], None)


async def test_a_silent_stream_is_kept_alive(make_world, ask):
    async with make_world(["hello"], faults=Faults(first_token_seconds=0.3), keepalive=0.05) as world:
        assert text_of(await ask(client_of(world), True, [user("hi")], None)) == "hello"


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_counting_and_models(make_world, version):
    async with make_world(["x"]) as world:
        client = client_of(world, version=version)
        counted = await client.aio.models.count_tokens(model="policy", contents="hello there")
        await client.aio.models.generate_content(model="policy", contents="hello there")
        assert counted.total_tokens == world.calls()[0].prompt_tokens
        models = [model async for model in await client.aio.models.list()]
        assert [model.name for model in models] == ["models/policy"]
        model = await client.aio.models.get(model="policy")
        assert (model.name, model.input_token_limit) == ("models/policy", 4096)


async def test_logprobs(make_world):
    async with make_world(["hello"]) as world:
        config = types.GenerateContentConfig(response_logprobs=True)
        reply = await client_of(world).aio.models.generate_content(model="policy", contents="hi", config=config)
        chosen = reply.candidates[0].logprobs_result.chosen_candidates
        recorded = world.store.payload(world.calls()[0]).logprobs.tolist()
        assert [token.log_probability for token in chosen] == pytest.approx(recorded)
        assert reply.usage_metadata.candidates_token_count == len(chosen)


async def test_without_alt_sse_a_stream_is_a_json_list(make_world):
    async with make_world([CALLING]) as world:
        body = {"contents": [{"parts": [{"text": "go"}]}], "tools": [{"functionDeclarations": [{"name": "bash"}]}]}
        address = f"{world.url}/r/{mint(SECRET, 'r0', 1)}/v1beta/models/policy:streamGenerateContent"
        async with world.http.post(address, json=body) as response:
            assert response.content_type == "application/json"
            chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in json.loads(await response.read())]
        assert text_of(chunks) == "Grüße 🙂 I look."
        assert [call.args for call in calls_of(chunks)] == [{"command": "cat amber"}]


@pytest.mark.parametrize("version", ["v1", "v1alpha", "v1beta"])
async def test_every_version_of_the_address_is_served(make_world, version):
    async with make_world(["hello"]) as world:
        client = client_of(world, version=version).aio.models
        assert (await client.generate_content(model="models/policy", contents="hi")).text == "hello"
        assert (await client.count_tokens(model="policy", contents="hi")).total_tokens == world.calls()[0].prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_litellm(make_world, monkeypatch, stream):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it looks outside for prices otherwise
    import litellm

    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
    messages = [{"role": "user", "content": "read amber"}]
    async with make_world(["<think>hm</think>a\u2028b " + CALLING, "done"]) as world:
        fields = {"model": "gemini/policy", "api_base": world.url, "api_key": mint(SECRET, "r0", 1), "tools": tools}
        reply = await litellm.acompletion(messages=messages, stream=stream, **fields)
        if stream:
            reply = litellm.stream_chunk_builder([chunk async for chunk in reply])
        message = reply.choices[0].message
        assert message.content == "a\u2028b Grüße 🙂 I look."
        assert message.reasoning_content == "hm"
        assert json.loads(message.tool_calls[0].function.arguments) == {"command": "cat amber"}
        await delivered(world, 1)
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "birch"}]
        again = await asyncio.to_thread(litellm.completion, messages=messages, **fields)
        assert again.choices[0].message.content == "done"
        assert world.calls()[1].base_call_id == world.calls()[0].call_id
