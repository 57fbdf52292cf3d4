"""Cases of OpenAI Responses: what a harness sends, what it gets, and that the next request goes on from it."""

import json
import logging

import openai
import pytest
from gateway_world import SECRET
from readers import events, read_stream, read_whole
from turns import in_pieces

from whippletree.gateway.dialects import ReplyHead, Target, signatures
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import mint
from whippletree.types import Call, CallTimes, Message, ParsedMessage, Sampling, ToolCall

DIALECT = DIALECTS["responses"]
BASH = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}


def parse(**body):
    return DIALECT.parse(json.dumps({"model": "policy", **body}).encode(), Target())


def call(finish="stop"):
    return Call(
        call_id="c-1", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=9, sampled_tokens=4, finish_reason=finish,
        times=CallTimes(received=0.0), sampling=Sampling(),
    )  # fmt: skip


def both(request, message, size=3):
    """The turn as a response, streamed and whole."""
    head = ReplyHead(call_id="c-1", model="policy", created=1700000000, request=request)
    writer = DIALECT.stream(head)
    data = b"".join(map(writer.delta, in_pieces(message, size))) + writer.end(call(message.finish_reason), message)
    whole = DIALECT.reply(head, call(message.finish_reason), message)
    assert read_stream("responses", data) == read_whole("responses", whole)
    return [json.loads(text) for _, text in events(data)], json.loads(whole)


def client(world, rollout="r0"):
    return openai.AsyncOpenAI(api_key=mint(SECRET, rollout, 1), base_url=world.url + "/v1", max_retries=0)


def test_A05_a_call_cut_at_the_limit_is_incomplete_and_keeps_its_text():
    cut = '{"path":"a.txt","content":"hel'
    message = ParsedMessage(tool_calls=(ToolCall(id="c1", name="write_file", arguments=cut),), finish_reason="length")
    for response in (both(parse(input="x"), message)[1], both(parse(input="x"), message)[0][-1]["response"]):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [(item["status"], item["arguments"]) for item in response["output"]] == [("incomplete", cut)]


def test_A06_the_done_events_repeat_the_arguments_once():
    """We write this stream rather than read it: the deltas join to the arguments, and each done event has them once."""
    arguments = '{"pattern":"*.py"}'
    message = ParsedMessage(tool_calls=(ToolCall(id="c1", name="Glob", arguments=arguments),), finish_reason="tool_calls")
    for size in (1, 5, 100):
        told, _ = both(parse(input="x"), message, size)
        deltas = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
        assert "".join(deltas) == arguments
        (done,) = [event for event in told if event["type"] == "response.function_call_arguments.done"]
        (item,) = [event["item"] for event in told if event["type"] == "response.output_item.done"]
        (added,) = [event["item"] for event in told if event["type"] == "response.output_item.added"]
        assert (done["arguments"], item["arguments"], added["arguments"]) == (arguments, arguments, "")
        assert {done["item_id"], item["id"], added["id"]} == {item["id"]}


async def test_A28_reasoning_and_a_call_leave_no_markup_in_the_text(make_world):
    text = '<think>look</think><tool_call>{"name":"ls","arguments":{}}</tool_call>'
    async with make_world([text, text]) as world, client(world) as harness:
        types, final, markup = [], None, ""
        async with await harness.responses.create(model="policy", input="a", tools=[BASH], stream=True) as stream:
            async for event in stream:
                types.append(event.type)
                markup += event.delta if event.type == "response.output_text.delta" else ""
                final = event.response if event.type == "response.completed" else final
        whole = await harness.responses.create(model="policy", input="b", tools=[BASH])
        for response in (final, whole):
            assert [item.type for item in response.output] == ["reasoning", "function_call"]
            assert response.output[0].summary[0].text == "look"
            assert (response.output[1].name, response.output[1].arguments) == ("ls", "{}")
        assert markup == ""
        assert "response.function_call_arguments.delta" in types
        assert "response.function_call_arguments.done" in types


def test_A29_ids_order_and_indices_are_the_same_in_every_event():
    calls = tuple(ToolCall(id=f"call_{place}", name="ls", arguments="{}") for place in range(2))
    message = ParsedMessage(reasoning="hm", content="text", tool_calls=calls, finish_reason="tool_calls")
    told, whole = both(parse(input="x"), message)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))

    def identity(item):
        return item["type"], item["id"], item.get("call_id")

    final = told[-1]["response"]["output"]
    for kind in ("added", "done"):
        seen = [event for event in told if event["type"] == f"response.output_item.{kind}"]
        assert [event["output_index"] for event in seen] == list(range(4))
        assert [identity(event["item"]) for event in seen] == [identity(item) for item in final]
    assert final == whole["output"]
    assert [item["status"] for item in final if item["type"] == "function_call"] == ["completed", "completed"]
    assert [item["call_id"] for item in final if item["type"] == "function_call"] == ["call_0", "call_1"]


async def test_A31_a_grammar_tool_is_called_with_raw_text_and_the_prefix_holds(make_world):
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)+/'}
    tool = {"type": "custom", "name": "apply_patch", "description": "edit files", "format": grammar}
    (spec,) = parse(input="x", tools=[tool]).tools
    assert spec.parameters["properties"] == {"input": {"type": "string"}}
    assert grammar["definition"] in spec.description
    patch = "*** Begin Patch\n*** End Patch\n"
    sampled = f'<tool_call>{{"name": "apply_patch", "arguments": {json.dumps({"input": patch})}}}</tool_call>'
    async with make_world([sampled, "done"]) as world, client(world) as harness:
        pieces, final = [], None
        ask = {"role": "user", "content": "edit"}
        async with await harness.responses.create(model="policy", input=[ask], tools=[tool], stream=True) as stream:
            async for event in stream:
                pieces.append(event.delta if event.type == "response.custom_tool_call_input.delta" else "")
                if event.type == "response.custom_tool_call_input.done":
                    assert event.input == patch
                final = event.response if event.type == "response.completed" else final
        (item,) = final.output
        assert "".join(pieces) == patch
        assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", patch)
        output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Success."}
        await harness.responses.create(model="policy", input=[ask, item.to_dict(), output], tools=[tool])
        first, second = world.calls()
        assert second.parent_call_id == first.call_id


def test_A32_a_call_of_a_namespaced_tool_goes_back_under_its_namespace():
    tools = [
        {"type": "namespace", "name": "mcp__fs__", "tools": [{**BASH, "name": "status"}]},
        {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}, {**BASH, "name": "status"}]},
    ]
    request = parse(input="x", tools=tools)
    names = [spec.name for spec in request.tools]
    assert names == ["mcp__fs__status", "functions__exec", "functions__status"]
    arguments = ["{}", '{"input": "text"}', "{}"]
    calls = tuple(ToolCall(id=name, name=name, arguments=text) for name, text in zip(names, arguments, strict=True))
    told, whole = both(request, ParsedMessage(tool_calls=calls, finish_reason="tool_calls"))
    for output in (whole["output"], told[-1]["response"]["output"]):
        assert [(item["type"], item["namespace"], item["name"]) for item in output] == [
            ("function_call", "mcp__fs__", "status"),
            ("custom_tool_call", "functions", "exec"),
            ("function_call", "functions", "status"),
        ]
    back = parse(input=[{"role": "user", "content": "x"}, *whole["output"]], tools=tools).messages[1]
    assert back.tool_calls == calls


async def test_A35_unknown_reasoning_is_no_error_and_ours_names_its_call(make_world):
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_unknown", "summary": [], "encrypted_content": "opaque=="},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    body = {"model": "policy", "store": False, "include": ["reasoning.encrypted_content"]}
    async with make_world(["<think>deep</think>d", "e"]) as world, client(world) as harness:
        one = await harness.responses.create(input=items, **body)
        reasoning, message = one.output
        first = world.calls()[0]
        assert signatures.read(reasoning.encrypted_content) == first.call_id
        kept = {"type": "reasoning", "id": "rs_renamed", "summary": [], "encrypted_content": reasoning.encrypted_content}
        following = [*items, kept, message.to_dict(), {"role": "user", "content": "f"}]
        # enough to restore the reasoning, also after a restart: the store has the call's text and tokens
        assert parse(input=following).messages[3] == Message(role="assistant", content="d", signature=first.call_id)
        await harness.responses.create(input=following, **body)
        assert world.calls()[1].base_call_id == first.call_id


async def test_A36_a_previous_response_is_gone_on_from_with_its_exact_tokens(make_world):
    async with make_world(["Noted.", "purple-42"]) as world, client(world) as harness:
        one = await harness.responses.create(model="policy", input="Remember purple-42", store=True)
        await harness.responses.create(model="policy", input="What was it?", previous_response_id=one.id)
        first, second = world.calls()
        payload = world.store.payload(first)
        start = [*payload.prompt_delta.tolist(), *payload.sampled_ids.tolist()]
        assert second.parent_call_id == first.call_id
        assert world.prompt_ids(second)[: len(start)] == start
        with pytest.raises(openai.NotFoundError, match="resp_nope"):
            await harness.responses.create(model="policy", input="x", previous_response_id="resp_nope")
        async with client(world, "r1") as other:
            with pytest.raises(openai.NotFoundError, match=one.id.removeprefix("resp_")):
                await other.responses.create(model="policy", input="x", previous_response_id=one.id)


def test_A38_calls_stay_calls_and_reasoning_stays_apart():
    items = [
        {"role": "user", "content": "Collect tokens one at a time."},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "need slot 1"}]},
    ]
    for slot in range(1, 21):
        items.append({"type": "function_call", "call_id": f"c{slot}", "name": "vault_token", "arguments": f'{{"slot":{slot}}}'})
        items.append({"type": "function_call_output", "call_id": f"c{slot}", "output": f"tok-{slot}"})
    user, one, *rest = parse(input=items).messages
    assert user == Message(role="user", content="Collect tokens one at a time.")
    assert one == Message(
        role="assistant",
        reasoning="need slot 1",
        tool_calls=(ToolCall(id="c1", name="vault_token", arguments='{"slot":1}'),),
    )
    assert rest[0] == Message(role="tool", tool_call_id="c1", content="tok-1")
    assert len(rest) == 39
    for slot in range(2, 21):
        asked, answered = rest[2 * slot - 3], rest[2 * slot - 2]
        assert (asked.role, asked.content, asked.tool_calls[0].id) == ("assistant", "", f"c{slot}")
        assert (answered.tool_call_id, answered.content) == (f"c{slot}", f"tok-{slot}")


async def test_A39_hints_are_accepted_and_hosted_tools_are_not_offered(make_world, caplog):
    body = {
        "model": "policy", "input": "hi", "prompt_cache_key": "k", "client_metadata": {"x": "y"},
        "include": ["reasoning.encrypted_content"], "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"},
        "tools": [{"type": "web_search"}, {"type": "local_shell"}],
    }  # fmt: skip
    request = parse(**{name: value for name, value in body.items() if name != "model"})
    assert request.tools == ()
    named = {"prompt_cache_key", "client_metadata", "parallel_tool_calls", "reasoning", "tools.web_search", "tools.local_shell"}
    assert set(request.ignored) == named
    key = {"Authorization": f"Bearer {mint(SECRET, 'r0', 1)}"}
    with caplog.at_level(logging.DEBUG):
        async with make_world(["ok", "ok"]) as world:
            async with world.http.post(world.url + "/v1/responses", json=body, headers=key) as response:
                assert response.status == 200
                assert (await response.json())["output"][0]["content"][0]["text"] == "ok"
            assert set(world.calls()[0].ignored) >= named  # on the call's record, rather than a line of a log
            async with world.http.post(world.url + "/v1/responses", json={**body, "tools": 3}, headers=key) as response:
                assert response.status == 400


async def test_A45_developer_is_system_and_a_late_one_is_no_error(make_world):
    items = [
        {"role": "developer", "content": "test"},
        {"role": "system", "content": "more"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    ]
    late = [*items, {"role": "developer", "content": "late"}]
    assert parse(input=items, store=False).messages == (
        Message(role="system", content="test\n\nmore"),
        Message(role="user", content="hi"),
    )
    assert parse(input=late).messages[:2] == parse(input=items).messages
    assert parse(input=late).messages[2].content == "late"
    async with make_world(["a", "b"]) as world, client(world) as harness:
        assert (await harness.responses.create(model="policy", input=items, store=False)).output_text == "a"
        assert (await harness.responses.create(model="policy", input=late, store=False)).output_text == "b"
