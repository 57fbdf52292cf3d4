"""The Messages dialect against what harnesses sent and got. WHIPPLETREE_RECORDINGS names a folder with more recordings."""

import json

import anthropic
import msgspec
import pytest
from official import put_together
from readers import read_stream, read_whole
from recorded import files, parse, turn_of
from turns import CALL, by_character, written

from whippletree.gateway.dialects import ReplyHead
from whippletree.gateway.dialects.messages import MessagesDialect
from whippletree.gateway.lineage import normal_form, reply_message

DIALECT = MessagesDialect()
HEAD = ReplyHead(call_id="c-12", model="policy", created=1700000000, prompt_tokens=7)
FILES = files("messages")


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def test_every_request_parses(recorded):
    for exchange in recorded:
        request = parse("messages", exchange)
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
        message, first = turn_of("messages", earlier), parse("messages", earlier)
        if message is None:
            continue
        for later in recorded[place + 1 :]:
            second = parse("messages", later)
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
        stream = written(DIALECT, HEAD, by_character(message), message)
        assert read_stream("messages", stream).message == message
        whole = anthropic.types.Message.model_validate_json(DIALECT.reply(HEAD, CALL, message))
        if not any("INVALID_JSON" in (block.input if block.type == "tool_use" else {}) for block in whole.content):
            assert put_together(stream, 1) == whole


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


def test_the_decoded_request_needs_none_of_its_caching_marks(recorded):
    for exchange in recorded:
        plain = msgspec.json.decode(json.dumps(exchange["body"]))
        for block in [*plain["system"], *blocks(plain), *plain.get("tools", [])]:
            block.pop("cache_control", None)
        for message in plain["messages"]:
            content = message["content"]
            if isinstance(content, list) and [block["type"] for block in content] == ["text"]:
                message["content"] = content[0]["text"]
        stripped, sent = parse("messages", {**exchange, "body": plain}), parse("messages", exchange)
        assert (stripped.messages, stripped.tools) == (sent.messages, sent.tools)
