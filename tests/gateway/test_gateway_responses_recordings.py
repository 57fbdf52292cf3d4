"""The Responses dialect against what harnesses sent and got. WHIPPLETREE_RECORDINGS names a folder with more recordings."""

import contextlib
import itertools
import json

import msgspec
import pytest
from readers import read_stream, read_whole
from recorded import files, turn_of
from turns import CALL, by_character, written

from whippletree.gateway.dialects import ReplyHead, Target
from whippletree.gateway.dialects.responses import ResponsesDialect
from whippletree.gateway.dialects.responses_compaction import is_compaction, unseal
from whippletree.gateway.lineage import normal_form, reply_message

DIALECT = ResponsesDialect()
CALLS = ("function_call", "custom_tool_call")
FILES = files("responses")


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def parse(body):
    return DIALECT.parse(json.dumps(body).encode(), Target())


def without_previous(exchange):
    """The body; the previous response of a recording is not ours."""
    return {name: value for name, value in exchange["body"].items() if name != "previous_response_id"}


def test_recordings_are_at_hand():
    assert len(FILES) >= 12


def test_every_recorded_request_parses(recorded):
    for exchange in recorded:
        body = without_previous(exchange)
        request = parse(body)
        assert request.stream == bool(body.get("stream"))
        items = body["input"] if isinstance(body["input"], list) else []
        results = [item for item in items if str(item.get("type")).endswith("_output")]
        assert [message.content for message in request.messages if message.role == "tool"] == [
            item["output"] if isinstance(item["output"], str) else "".join(part["text"] for part in item["output"])
            for item in results
        ]
        called = [call.id for message in request.messages for call in message.tool_calls]
        assert called == [item["call_id"] for item in items if item.get("type") in CALLS]
        assert sum(message.role == "system" for message in request.messages) <= 1
        said = [item["content"] for item in items if item.get("role") == "user"]
        texts = [text if isinstance(text, str) else "".join(part["text"] for part in text) for text in said]
        assert [message.content for message in request.messages if message.role == "user"][: len(texts)] == texts


def test_every_tool_that_can_be_called_is_offered(recorded):
    for exchange in recorded:
        body = without_previous(exchange)
        listed = [*(body.get("tools") or ())]
        listed += [tool for item in body["input"] if isinstance(item, dict) for tool in item.get("tools") or ()]
        names = []
        for tool in listed:
            if tool["type"] == "namespace":
                names += [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]
            elif tool["type"] in ("function", "custom"):
                names.append(tool["name"])
        assert [tool.name for tool in parse(body).tools] == names


def both(request, message):
    """What our writers make of a turn: as a whole, and as a stream of one character at a time."""
    head = ReplyHead(call_id="c-12", model="policy", created=1700000000, request=request)
    return json.loads(DIALECT.reply(head, CALL, message)), written(DIALECT, head, by_character(message), message)


def model_turn(exchange, request):
    """The recorded turn as our model would have sampled it: tools under the names that it sees."""
    message = turn_of("responses", exchange)
    if message is None:
        return None
    flat = {tool.own_name: tool.name for tool in request.tools if tool.own_name}
    calls = tuple(msgspec.structs.replace(call, name=flat.get(call.name, call.name)) for call in message.tool_calls)
    return msgspec.structs.replace(message, tool_calls=calls)


def reserialised(item):
    """An item as a careless harness sends it back: no ids, no reasoning, arguments written anew."""
    kept = {name: value for name, value in item.items() if name not in ("id", "status")}
    if kept["type"] == "function_call":
        with contextlib.suppress(ValueError):
            kept["arguments"] = json.dumps(json.loads(kept["arguments"]), separators=(" ,", ": "))
    return kept


def test_a_recorded_turn_written_by_us_streamed_and_whole_is_the_same(recorded):
    for exchange in recorded:
        request = parse(without_previous(exchange))
        message = model_turn(exchange, request)
        if message is None:
            continue
        whole, data = both(request, message)
        read = read_stream("responses", data)
        assert read == read_whole("responses", json.dumps(whole).encode())
        final = json.loads(data.rpartition(b"data: ")[2])["response"]
        assert final == whole
        if is_compaction(request):
            assert unseal(final["output"][0]["encrypted_content"]) == message.content
            continue
        assert (read.message.content, read.message.reasoning) == (message.content, message.reasoning)


def test_the_turn_comes_back_in_the_next_request_whatever_the_harness_does_to_it(recorded):
    for exchange in recorded:
        body = without_previous(exchange)
        request = parse(body)
        message = model_turn(exchange, request)
        if message is None or is_compaction(request):
            continue
        whole, _ = both(request, message)
        before = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        for sent in (whole["output"], [reserialised(item) for item in whole["output"] if item["type"] != "reasoning"]):
            following = parse({**body, "input": [*before, *sent, {"role": "user", "content": "go on"}]})
            assert following.messages[: len(request.messages)] == request.messages
            assert following.tools == request.tools
            assert normal_form(following.messages[len(request.messages)]) == normal_form(reply_message(message))
            assert len(following.messages) == len(request.messages) + 2


def test_recorded_following_requests_go_on_from_the_recorded_turn(recorded):
    seen = 0
    for earlier, later in itertools.pairwise(recorded):
        request, following = parse(without_previous(earlier)), parse(without_previous(later))
        message = turn_of("responses", earlier)
        place = len(request.messages)
        if message is None or following.messages[:place] != request.messages or len(following.messages) <= place:
            continue
        assert normal_form(following.messages[place]) == normal_form(reply_message(message))
        seen += 1
    assert seen or len(recorded) < 2 or not any(turn_of("responses", exchange) for exchange in recorded[:-1])
