"""Cases of turning a sampled turn into a reply: over every dialect where the case is about all, else over Messages."""

import asyncio
import json

import pytest
from gateway_world import SECRET
from readers import Counts, events, read_stream, read_whole

from whippletree.gateway.dialects import ReplyHead, Target, signatures
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.keys import mint
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, ChatRequest, Message, ParsedMessage, Sampling, ToolCall, ToolSpec

MESSAGES = DIALECTS["messages"]
TOOLS = tuple(ToolSpec(name=name, parameters={"type": "object"}) for name in ("read", "write_file", "git_status", "ls"))
ASKED = ChatRequest(model="policy", messages=(Message(role="user", content="x"),), tools=TOOLS, stream=True, include_usage=True)
HEAD = ReplyHead(
    call_id="c-1",
    model="policy",
    created=1700000000,
    request=ASKED,
    prompt_tokens=100,
    target=Target(model="policy", stream=True),
)
every_dialect = pytest.mark.parametrize("name", sorted(DIALECTS))


def call(finish="stop", sampled=5):
    return Call(
        call_id="c-1", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=100, sampled_tokens=sampled,
        finish_reason=finish, times=CallTimes(received=0.0), sampling=Sampling(), cached_tokens=64,
    )  # fmt: skip


def streamed(name, deltas, message):
    writer = DIALECTS[name].stream(HEAD)
    return b"".join([*(writer.delta(delta) for delta in deltas), writer.end(call(message.finish_reason), message)])


def both(name, deltas, message):
    """The turn as a client reads it from the stream and from the whole reply."""
    whole = DIALECTS[name].reply(HEAD, call(message.finish_reason), message)
    return read_stream(name, streamed(name, deltas, message)), read_whole(name, whole)


def asked_for(reading):
    return [(item.name, json.loads(item.arguments)) for item in reading.message.tool_calls]


def turn(*deltas):
    """The whole turn of some deltas."""
    calls = {}
    for delta in deltas:
        if delta.tool_index >= 0:
            was = calls.get(delta.tool_index, ("", "", ""))
            calls[delta.tool_index] = tuple(
                a + b for a, b in zip(was, (delta.tool_id, delta.tool_name, delta.arguments), strict=True)
            )
    return ParsedMessage(
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(ToolCall(id=a, name=b, arguments=c) for a, b, c in calls.values()),
        finish_reason="tool_calls" if calls else "stop",
    )


@every_dialect
def test_A01_parallel_calls_stay_apart(name):
    deltas = [
        StreamDelta(tool_index=0, tool_id="c1", tool_name="read", arguments='{"p":"a"}'),
        StreamDelta(tool_index=1, tool_id="c2", tool_name="read", arguments='{"p":"b"}'),
    ]
    for reading in both(name, deltas, turn(*deltas)):
        assert asked_for(reading) == [("read", {"p": "a"}), ("read", {"p": "b"})]


def test_A01_parallel_calls_are_two_blocks():
    deltas = [
        StreamDelta(tool_index=0, tool_id="c1", tool_name="read", arguments='{"p":"a"}'),
        StreamDelta(tool_index=1, tool_id="c2", tool_name="read", arguments='{"p":"b"}'),
    ]
    told = [(kind, json.loads(data).get("index")) for kind, data in events(streamed("messages", deltas, turn(*deltas)))]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert told[1:-2] == [(kind, 0) for kind in block] + [(kind, 1) for kind in block]


CUT = '{"path":"a.txt","content":"hel'


@every_dialect
def test_A05_a_call_cut_by_the_limit_is_not_passed_on_as_finished(name):
    deltas = [StreamDelta(tool_index=0, tool_id="c1", tool_name="write_file", arguments=CUT)]
    message = ParsedMessage(tool_calls=(ToolCall(id="c1", name="write_file", arguments=CUT),), finish_reason="length")
    for reading in both(name, deltas, message):
        assert reading.message.finish_reason == "length"
        if name != "gemini":  # its arguments are an object: there is no place for text that is none
            assert [item.arguments for item in reading.message.tool_calls] == [CUT]


def test_A05_the_reason_is_max_tokens_and_the_turn_comes_back_with_its_text():
    message = ParsedMessage(tool_calls=(ToolCall(id="c1", name="write_file", arguments=CUT),), finish_reason="length")
    reply = json.loads(MESSAGES.reply(HEAD, call("length"), message))
    assert reply["stop_reason"] == "max_tokens"
    echo = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": reply["content"]}]}
    assert MESSAGES.parse(json.dumps(echo).encode(), Target()).messages[1].tool_calls[0].arguments == CUT


@every_dialect
def test_A07_a_call_without_arguments_has_an_empty_object(name):
    deltas = [StreamDelta(tool_index=0, tool_id="t1", tool_name="git_status")]
    for reading in both(name, deltas, turn(*deltas)):
        assert asked_for(reading) == [("git_status", {})]


LARGE = json.dumps({"doc": 'x"\\\né' * 12000})


@every_dialect
@pytest.mark.parametrize("size", [1, 7, 65536])
def test_A08_large_arguments_arrive_whole(name, size):
    text = LARGE if size > 1 else LARGE[: len(LARGE) // 8].rpartition("x")[0] + '"}'
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    deltas = [StreamDelta(tool_index=0, tool_id="c1", tool_name="read")]
    deltas += [StreamDelta(tool_index=0, arguments=piece) for piece in pieces]
    for reading in both(name, deltas, turn(*deltas)):
        (item,) = reading.message.tool_calls
        assert json.loads(item.arguments) == json.loads(text)
        if name != "gemini":  # there an object is sent, not its text
            assert item.arguments == text


@every_dialect
def test_A10_reasoning_alone_reaches_the_client(name):
    deltas = [StreamDelta(reasoning="step 1"), StreamDelta(reasoning=" step 2"), StreamDelta(content="done")]
    for reading in both(name, deltas, turn(*deltas)):
        assert (reading.message.reasoning, reading.message.content) == ("step 1 step 2", "done")


def test_A10_thinking_is_a_block_of_its_own_with_a_signature():
    deltas = [StreamDelta(reasoning="step 1"), StreamDelta(reasoning=" step 2"), StreamDelta(content="done")]
    told = [json.loads(data) for _, data in events(streamed("messages", deltas, turn(*deltas)))]
    assert [(event["type"], event["index"]) for event in told[1:-2]] == [
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0), ("content_block_delta", 0),
        ("content_block_stop", 0), ("content_block_start", 1), ("content_block_delta", 1), ("content_block_stop", 1),
    ]  # fmt: skip
    assert told[1]["content_block"]["type"] == "thinking"
    assert told[4]["delta"] == {"type": "signature_delta", "signature": signatures.sign("c-1")}


@every_dialect
@pytest.mark.parametrize("together", [False, True])
def test_A11_no_text_is_lost_after_thinking(name, together):
    first = [StreamDelta(reasoning="plan"), StreamDelta(content="Hello")]
    deltas = [*([StreamDelta(reasoning="plan", content="Hello")] if together else first), StreamDelta(content=" world")]
    for reading in both(name, deltas, turn(*deltas)):
        assert (reading.message.reasoning, reading.message.content) == ("plan", "Hello world")


def test_A12_a_block_closes_before_the_next_one_opens():
    deltas = [
        StreamDelta(content="Let me look."),
        StreamDelta(tool_index=0, tool_id="c1", tool_name="ls"),
        StreamDelta(tool_index=0, arguments="{}"),
    ]
    data = streamed("messages", deltas, turn(*deltas))
    told = [(kind, json.loads(text).get("index")) for kind, text in events(data)]
    assert told.index(("content_block_stop", 0)) + 1 == told.index(("content_block_start", 1))
    assert asked_for(read_stream("messages", data)) == [("ls", {})]  # the reader refuses two open blocks


@every_dialect
def test_A12_text_before_a_call_is_kept_apart_from_it(name):
    deltas = [
        StreamDelta(content="Let me look."),
        StreamDelta(tool_index=0, tool_id="c1", tool_name="ls"),
        StreamDelta(tool_index=0, arguments="{}"),
    ]
    for reading in both(name, deltas, turn(*deltas)):
        assert (reading.message.content, asked_for(reading)) == ("Let me look.", [("ls", {})])


@every_dialect
def test_A25_cached_tokens_are_told_and_all_dialects_agree_on_the_sum(name):
    for reading in both(name, [StreamDelta(content="ok")], ParsedMessage(content="ok")):
        assert reading.counts == Counts(prompt=100, cached=64, sampled=5)


def test_A25_the_cached_part_is_told_apart_in_numbers():
    usage = json.loads(MESSAGES.reply(HEAD, call(), ParsedMessage(content="ok")))["usage"]
    told = (usage["input_tokens"], usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"])
    assert told == (36, 64, 0)


def test_A26_null_is_absent_and_no_count_is_ever_null():
    empty = {"system": None, "tools": None, "tool_choice": None, "metadata": None, "temperature": None, "stream": None}
    body = {"messages": [{"role": "user", "content": "x"}], **empty}
    assert MESSAGES.parse(json.dumps(body).encode(), Target()) == MESSAGES.parse(
        json.dumps({"messages": body["messages"]}).encode(), Target()
    )
    told = [
        json.loads(data) for _, data in events(streamed("messages", [StreamDelta(content="a")], ParsedMessage(content="a")))
    ]
    whole = json.loads(MESSAGES.reply(HEAD, call(), ParsedMessage(content="a")))
    for usage in (whole["usage"], told[0]["message"]["usage"], told[-2]["usage"]):
        assert None not in usage.values()


# --- through the gateway ------------------------------------------------------------------------------------------------


async def send(world, body):
    headers = {"x-api-key": mint(SECRET, "r0", 1), "anthropic-version": "2023-06-01"}
    async with world.http.post(world.url + "/v1/messages?beta=true", json=body, headers=headers) as response:
        return response.status, await response.read()


LS = [{"name": "ls", "input_schema": {"type": "object", "properties": {}}}]


@pytest.mark.parametrize("nothing", [None, "", []])
async def test_A18_no_content_is_never_rendered_as_the_word_none(make_world, nothing):
    sent = [
        {"role": "user", "content": "check metrics"},
        {"role": "assistant", "content": nothing},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": None}]},
    ]
    async with make_world(["fine"]) as world:
        status, _ = await send(world, {"model": "policy", "messages": sent})
        prompt = world.renderer.decode(world.prompt_ids(world.calls()[0]))
    assert status == 200
    assert "None" not in prompt and "null" not in prompt
    assert "<|im_start|>assistant\n<|im_end|>" in prompt


async def test_A19_a_turn_that_only_calls_a_tool_is_kept(make_world):
    sent = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a"}]},
    ]
    assert MESSAGES.parse(json.dumps({"messages": sent}).encode(), Target()).messages[1:] == (
        Message(role="assistant", tool_calls=(ToolCall(id="t1", name="ls", arguments="{}"),)),
        Message(role="tool", content="a", tool_call_id="t1", name="ls"),
    )
    async with make_world(["fine"]) as world:
        status, _ = await send(world, {"model": "policy", "messages": sent, "tools": LS})
        prompt = world.renderer.decode(world.prompt_ids(world.calls()[0]))
    assert status == 200
    assert '<tool_call>{"name": "ls", "arguments": {}}</tool_call>' in prompt


async def test_A21_a_system_message_among_the_messages_keeps_the_prefix(make_world):
    first = {
        "model": "policy",
        "system": [{"type": "text", "text": "base"}],
        "messages": [{"role": "user", "content": "task"}, {"role": "system", "content": "Available agent types: a"}],
        "stream": True,
    }
    async with make_world(["one", "two", "three"]) as world:
        for reply in ("one", "two"):
            status, data = await send(world, first)
            assert (status, read_stream("messages", data).message.content) == (200, reply)
            first = {**first, "messages": [*first["messages"], {"role": "assistant", "content": reply},
                                           {"role": "user", "content": "and?"}]}  # fmt: skip
        await send(world, first)
        await delivered(world, 3)
        calls = world.calls()
        prompt = world.renderer.decode(world.prompt_ids(calls[0]))
    assert "task\n<system-reminder>\nAvailable agent types: a\n</system-reminder>" in prompt
    assert [item.prefix_break for item in calls] == ["first", "", ""]
    assert [item.parent_call_id for item in calls] == ["", calls[0].call_id, calls[1].call_id]


async def delivered(world, count):
    while sum(item.delivered for item in world.calls()) < count:
        await asyncio.sleep(0.01)


async def test_A24_the_prompt_is_counted_at_the_start_and_thinking_at_the_end(make_world):
    body = {"model": "policy", "max_tokens": 200, "stream": True, "messages": [{"role": "user", "content": "Reply only: ok"}]}
    async with make_world(["<think>\nlong thought\n</think>\n\nok"]) as world:
        _, data = await send(world, body)
        (item,) = world.calls()
    told = [json.loads(text) for kind, text in events(data) if kind != "ping"]
    assert item.prompt_tokens > 0
    assert told[0]["message"]["usage"]["input_tokens"] == item.prompt_tokens
    assert told[-2]["usage"]["output_tokens"] == item.sampled_tokens
    assert read_stream("messages", data).message.reasoning


async def test_A27_a_turn_of_thinking_alone_is_one_thinking_block(make_world):
    body = {"model": "policy", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]}
    async with make_world(["<think>still thinking about it, and on and on"]) as world:
        _, data = await send(world, body)
        (item,) = world.calls()
    reply = json.loads(data)
    assert [block["type"] for block in reply["content"]] == ["thinking"]
    assert reply["content"][0]["thinking"]
    assert (reply["stop_reason"], item.finish_reason, item.sampled_tokens) == ("max_tokens", "length", 8)
