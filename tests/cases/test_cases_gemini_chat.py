"""Cases of the chat-completions and the Gemini dialect."""

import asyncio
import json

import httpx2
import openai
import pytest
from readers import read_stream, read_whole
from turns import CALL, by_character, head, written

from whippletree.gateway.dialects import Target, signatures
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import mint
from whippletree.protocols import StreamDelta
from whippletree.types import Message, ParsedMessage, ToolCall

CHAT, GEMINI = DIALECTS["chat"], DIALECTS["gemini"]
TEXT = "\u676d\u5dde\U0001f980"


def chat(messages, **fields):
    return CHAT.parse(json.dumps({"messages": messages, **fields}).encode(), Target())


def call(call_id, name="ls", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_A02_our_own_stream_names_every_call_once_with_the_id_of_the_record():
    message = ParsedMessage(
        tool_calls=(ToolCall(id="c1", name="now", arguments="{}"), ToolCall(id="c2", name="here", arguments="{}")),
        finish_reason="tool_calls",
    )
    stream = written(CHAT, head(), by_character(message), message)
    assert read_stream("chat", stream).message.tool_calls == message.tool_calls
    assert read_whole("chat", CHAT.reply(head(), CALL, message)).message.tool_calls == message.tool_calls
    assert all(stream.count(f'"id":"{call_id}"'.encode()) == 1 for call_id in ("c1", "c2"))


def test_A02_ids_that_a_harness_left_out_are_filled_alike_in_call_and_result():
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call("c1", "now"), call(None, "here")]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        {"role": "tool", "content": "home"},
        {"role": "assistant", "content": "done"},
    ]
    read = chat(messages).messages
    assert [item.id for item in read[1].tool_calls] == ["c1", "call_1"] == [read[2].tool_call_id, read[3].tool_call_id]
    assert chat([*messages, {"role": "user", "content": "more"}]).messages[: len(read)] == read


async def test_A18_null_content_beside_calls_is_empty_and_the_request_is_stored_as_it_came(make_world):
    messages = [
        {"role": "user", "content": "check metrics"},
        {"role": "assistant", "content": None, "tool_calls": [call("c1", "bash")]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    async with make_world(["fine"]) as world:
        status, _ = await world.chat(messages)
        (recorded,) = world.calls()
        assert status == 200
        assert "None" not in world.renderer.decode(world.prompt_ids(recorded))
        assert chat(messages).messages[1].content == ""


def test_A19_a_turn_of_calls_alone_is_kept():
    chat_turn = chat([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call("t1")]}]).messages[1]
    contents = [{"parts": [{"text": "x"}]}, {"role": "model", "parts": [{"functionCall": {"id": "t1", "name": "ls"}}]}]
    gemini_turn = GEMINI.parse(json.dumps({"contents": contents}).encode(), Target()).messages[1]
    assert chat_turn == gemini_turn == Message(role="assistant", tool_calls=(ToolCall(id="t1", name="ls", arguments="{}"),))


A40 = [
    {"role": "user", "parts": [{"text": "go"}]},
    {
        "role": "model",
        "parts": [
            {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "b", "args": {}}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "a", "response": {"r": 1}}},
            {"functionResponse": {"name": "b", "response": {"r": 2}}},
        ],
    },
]


@pytest.mark.parametrize("kept", [True, False])
def test_A40_a_signature_is_never_demanded(kept):
    contents = json.loads(json.dumps(A40))
    if not kept:
        del contents[1]["parts"][0]["thoughtSignature"]
    turn, first, second = GEMINI.parse(json.dumps({"contents": contents}).encode(), Target()).messages[1:]
    assert [(item.name, item.id) for item in turn.tool_calls] == [("a", first.tool_call_id), ("b", second.tool_call_id)]
    assert (first.content, second.content, turn.signature) == ('{"r": 1}', '{"r": 2}', "")


def test_A40_the_first_call_of_a_reply_is_signed_and_the_mark_is_read_back():
    message = ParsedMessage(
        reasoning="why",
        tool_calls=(ToolCall(id="c1", name="a", arguments="{}"), ToolCall(id="c2", name="a", arguments="{}")),
        finish_reason="tool_calls",
    )
    content = json.loads(GEMINI.reply(head(), CALL, message))["candidates"][0]["content"]
    signed = [part.get("thoughtSignature") for part in content["parts"]]
    assert signed == [None, signatures.sign(CALL.call_id), None]
    echoed = {"contents": [A40[0], {**content, "parts": content["parts"][1:]}]}
    assert GEMINI.parse(json.dumps(echoed).encode(), Target()).messages[1].signature == CALL.call_id


def test_A40_responses_match_calls_even_when_names_repeat():
    model = {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {"n": n}}} for n in range(3)]}
    answers = {"parts": [{"functionResponse": {"name": "a", "response": {"output": str(n)}}} for n in range(3)]}
    read = GEMINI.parse(json.dumps({"contents": [A40[0], model, answers, model, answers]}).encode(), Target()).messages
    for turn, results in ((read[1], read[2:5]), (read[5], read[6:9])):
        assert [item.id for item in turn.tool_calls] == [result.tool_call_id for result in results]
        assert [result.content for result in results] == ["0", "1", "2"]
    assert len({item.id for item in (*read[1].tool_calls, *read[5].tool_calls)}) == 6


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_A41_a_reply_that_is_cut_anywhere_reaches_the_client_whole(size):
    """Every event is one write of whole characters, so only the network can cut; and then the client puts it together."""
    message = ParsedMessage(content=TEXT)
    stream = written(CHAT, head(), by_character(message), message)

    def serve(request):
        pieces = (stream[place : place + size] for place in range(0, len(stream), size))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=pieces)

    with (
        httpx2.Client(transport=httpx2.MockTransport(serve)) as http,
        openai.OpenAI(api_key="k", base_url="http://gateway/v1", http_client=http) as client,
        client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "x"}]) as events,
    ):
        assert events.get_final_completion().choices[0].message.content == TEXT


@pytest.mark.parametrize("name", ["chat", "gemini"])
def test_A41_no_event_ends_inside_a_character_or_an_escape(name):
    message = ParsedMessage(content=TEXT + '\\"\u2028', finish_reason="stop")
    writer = DIALECTS[name].stream(head())
    for delta in by_character(message):
        event = writer.delta(delta).decode()
        assert "\ufffd" not in event
        assert json.loads(event.removeprefix("data: "))


async def test_A41_a_request_one_byte_per_chunk_is_read_whole(make_world):
    async with make_world(lambda prompt: TEXT if TEXT in prompt else "lost") as world:
        body = json.dumps({"messages": [{"role": "user", "content": TEXT}]}, ensure_ascii=False).encode()

        async def pieces():
            for place in range(len(body)):
                yield body[place : place + 1]
                await asyncio.sleep(0)

        address = f"{world.url}/r/{mint(bytes(range(32)), 'r0', 1)}/v1/chat/completions"
        async with world.http.post(address, data=pieces(), headers={"Content-Type": "application/json"}) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == TEXT
        stored = json.loads(world.store.payload(world.calls()[0]).reply_json)
        assert stored["content"] == TEXT


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_details"])
def test_A44_reasoning_may_be_there_or_not(field):
    reasoning = [{"type": "reasoning.text", "text": "why"}] if field == "reasoning_details" else "why"
    turns = [
        {"role": "assistant", "content": "", field: reasoning, "tool_calls": [call("c1")]},
        {"role": "assistant", "content": "", "tool_calls": [call("c2")]},
    ]
    assert [message.reasoning for message in chat(turns).messages] == ["why", ""]


def test_A45_developer_is_system_and_a_late_one_keeps_its_place():
    """Merging is the renderer's: it knows whether the template takes a late system message."""
    read = chat([
        {"role": "developer", "content": "test"}, {"role": "system", "content": "two"}, {"role": "user", "content": "hi"},
        {"role": "developer", "content": "late"},
    ]).messages  # fmt: skip
    assert [(message.role, message.content) for message in read] == [
        ("system", "test"), ("system", "two"), ("user", "hi"), ("system", "late"),
    ]  # fmt: skip


def test_A47_name_and_id_are_sent_once_also_where_a_delta_repeats_them():
    """We read no upstream here; the same holds for what we write."""
    writer = CHAT.stream(head())
    deltas = [
        StreamDelta(tool_index=0, tool_id="c1", tool_name="bash"),
        StreamDelta(tool_index=0, tool_id="", tool_name="", arguments="{"),
        StreamDelta(tool_index=0, tool_id="c1", tool_name="bash", arguments="}"),
    ]
    events = [writer.delta(delta) for delta in deltas]
    told = [json.loads(event[6:])["choices"][0]["delta"]["tool_calls"][0] for event in events]
    assert told[0] == {"index": 0, "id": "c1", "type": "function", "function": {"name": "bash", "arguments": ""}}
    assert told[1:] == [{"index": 0, "function": {"arguments": piece}} for piece in ("{", "}")]


@pytest.mark.parametrize("name", ["chat", "gemini"])
async def test_A48_a_bare_string_among_messages_is_named_and_the_session_goes_on(make_world, name):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, "oops"]
    contents = [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}, "oops"]
    path = {"chat": "/v1/chat/completions", "gemini": "/v1beta/models/policy:generateContent"}[name]
    body = {"chat": {"messages": messages}, "gemini": {"contents": contents}}[name]
    async with make_world(["b", "c"]) as world:
        address = f"{world.url}/r/{mint(bytes(range(32)), 'r0', 1)}{path}"
        field = "messages" if name == "chat" else "contents"
        async with world.http.post(address, json={field: body[field][:1]}) as response:
            assert response.status == 200
        async with world.http.post(address, json=body) as response:
            error = (await response.json())["error"]
            assert (response.status, f"{field}[2]" in error["message"]) == (400, True)
        async with world.http.post(address, json={field: [*body[field][:2], body[field][0]]}) as response:
            assert response.status == 200
        assert [recorded.error for recorded in world.calls()] == ["", ""]


async def test_B06_logprobs_without_a_number_of_alternatives(make_world):
    async with make_world(["hello", "hello"]) as world:
        status, reply = await world.chat([{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=None)
        recorded = world.store.payload(world.calls()[0])
        assert status == 200
        told = [item["logprob"] for item in reply["choices"][0]["logprobs"]["content"]]
        assert told == pytest.approx(recorded.logprobs.tolist())
        _, plain = await world.chat([{"role": "user", "content": "ho"}])
        assert plain["choices"][0]["logprobs"] is None
        assert len(world.store.payload(world.calls()[1]).logprobs) == world.calls()[1].sampled_tokens
