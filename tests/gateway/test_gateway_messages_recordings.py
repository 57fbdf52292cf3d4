"""The Messages dialect against what harnesses sent and got. WHIPPLETREE_RECORDINGS names a folder with more recordings."""

import json

import anthropic
import httpx2
import msgspec
import pytest
from readers import read_stream, read_whole
from recorded import FOLDERS, files, turn_of

from whippletree.gateway.dialects import ReplyHead, Target
from whippletree.gateway.dialects.messages import MessagesDialect
from whippletree.gateway.lineage import normal_form, reply_message
from whippletree.protocols import StreamDelta
from whippletree.types import Call, CallTimes, Sampling

DIALECT = MessagesDialect()
HEAD = ReplyHead(call_id="c-12", model="policy", created=1700000000, prompt_tokens=7)
CALL = Call(
    call_id="c-12", rollout_id="r", attempt=1, index=0, digest="d", prompt_tokens=7, sampled_tokens=5, finish_reason="stop",
    times=CallTimes(received=0.0), sampling=Sampling(), cached_tokens=3,
)  # fmt: skip
FILES = files("/v1/messages$")


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def parse(exchange):
    return DIALECT.parse(json.dumps(exchange["body"]).encode(), Target())


def test_all_recordings_are_at_hand():
    if len(FOLDERS) == 1:
        pytest.skip("WHIPPLETREE_RECORDINGS is not set: only the recordings of this repository are replayed")
    assert len(FILES) >= 30


def test_every_request_parses(recorded):
    for exchange in recorded:
        request = parse(exchange)
        sent = exchange["body"]
        assert request.messages[0].role == "system"
        assert "x-anthropic-billing-header" not in request.messages[0].content
        offered = [tool["name"] for tool in sent.get("tools", []) if not tool.get("defer_loading")]
        assert [tool.name for tool in request.tools] == offered
        assert request.requested.max_tokens == sent["max_tokens"]
        assert request.extra == {}
        answered = {block["tool_use_id"] for block in blocks(sent) if block["type"] == "tool_result"}
        assert answered == {message.tool_call_id for message in request.messages if message.role == "tool"}


def blocks(body):
    return [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]


def test_what_stands_before_a_sampled_turn_stays_the_same_and_the_turn_is_found_after_it(recorded):
    found = 0
    for place, earlier in enumerate(recorded):
        message, first = turn_of("messages", earlier), parse(earlier)
        if message is None:
            continue
        for later in recorded[place + 1 :]:
            second = parse(later)
            size = len(first.messages)
            if len(second.messages) > size and list(map(normal_form, second.messages[:size])) == list(
                map(normal_form, first.messages)
            ):
                if message.content or message.tool_calls:
                    assert without_descriptions(second.messages[size]) == without_descriptions(reply_message(message))
                assert first.tools == second.tools
                found += 1
    assert found or {one["answer"] for one in recorded} & {"fault 400", "fault 429", "fault 500"}


def test_a_recorded_turn_written_again_is_the_same_turn(recorded):
    for message in filter(None, (turn_of("messages", exchange) for exchange in recorded)):
        assert read_whole("messages", DIALECT.reply(HEAD, CALL, message)).message == message
        writer = DIALECT.stream(HEAD)
        stream = b"".join([*(writer.delta(delta) for delta in by_character(message)), writer.end(CALL, message)])
        assert read_stream("messages", stream).message == message
        whole = anthropic.types.Message.model_validate_json(DIALECT.reply(HEAD, CALL, message))
        if not any("INVALID_JSON" in (block.input if block.type == "tool_use" else {}) for block in whole.content):
            assert put_together(stream) == whole


def without_descriptions(message):
    """The normal form; recordings have other words in place of every description, also in the arguments of a call."""
    calls = []
    for call in message.tool_calls:
        try:
            arguments = {name: value for name, value in json.loads(call.arguments).items() if name != "description"}
        except ValueError:
            arguments = call.arguments
        calls.append(msgspec.structs.replace(call, arguments=json.dumps(arguments)))
    return normal_form(msgspec.structs.replace(message, tool_calls=tuple(calls)))


def by_character(message):
    """Every text cut into single characters."""
    deltas = [StreamDelta(reasoning=c) for c in message.reasoning] + [StreamDelta(content=c) for c in message.content]
    for index, call in enumerate(message.tool_calls):
        deltas.append(StreamDelta(tool_index=index, tool_id=call.id, tool_name=call.name))
        deltas += [StreamDelta(tool_index=index, arguments=c) for c in call.arguments]
    return deltas


def put_together(stream):
    """What the official client makes of a stream that comes in single bytes."""

    def serve(request):
        single = (stream[place : place + 1] for place in range(len(stream)))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=single)

    with (
        httpx2.Client(transport=httpx2.MockTransport(serve)) as http,
        anthropic.Anthropic(api_key="k", base_url="http://gateway", http_client=http) as client,
        client.messages.stream(model="policy", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as events,
    ):
        final = events.get_final_message()
    return anthropic.types.Message.model_validate(final.to_dict())


def test_the_decoded_request_needs_none_of_its_caching_marks(recorded):
    for exchange in recorded:
        plain = msgspec.json.decode(json.dumps(exchange["body"]))
        for block in [*plain["system"], *blocks(plain), *plain.get("tools", [])]:
            block.pop("cache_control", None)
        for message in plain["messages"]:
            content = message["content"]
            if isinstance(content, list) and [block["type"] for block in content] == ["text"]:
                message["content"] = content[0]["text"]
        stripped = DIALECT.parse(json.dumps(plain).encode(), Target())
        assert (stripped.messages, stripped.tools) == (parse(exchange).messages, parse(exchange).tools)
