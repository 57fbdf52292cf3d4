"""The chat-completions dialect against what harnesses sent and got."""

import json

import msgspec
import pytest
from readers import read_stream, read_whole
from recorded import FOLDERS, body_of, files, target_of, turn_of
from turns import CALL, by_character, head, written

from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.lineage import normal_form, reply_message

DIALECT = ChatDialect()
FILES = files("/chat/completions")
REWRITES = ("smolagents", "opencode.badargs", "pi.badargs", "qwen-code.badargs")
"""Where the history has the turn in another form: tool calls as text, unreadable arguments repaired."""


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def parse(exchange):
    return DIALECT.parse(body_of(exchange), target_of(exchange))


def test_all_recordings_are_at_hand():
    if len(FOLDERS) == 1:
        pytest.skip("WHIPPLETREE_RECORDINGS is not set: only the recordings of this repository are replayed")
    assert len(FILES) >= 80


def test_every_request_parses_one_message_to_one(recorded):
    for exchange in recorded:
        request, sent = parse(exchange), exchange["body"]
        assert [message.role for message in request.messages] == [message["role"] for message in sent["messages"]]
        assert [tool.name for tool in request.tools] == [tool["function"]["name"] for tool in sent.get("tools") or []]
        assert request.stream == bool(sent.get("stream"))
        assert request.extra == {}
        calls = [call for message in request.messages for call in message.tool_calls]
        assert all(call.id and call.name for call in calls)
        assert {message.tool_call_id for message in request.messages if message.role == "tool"} <= {call.id for call in calls}


def test_a_recorded_turn_written_again_is_the_same_turn(recorded):
    for message in filter(None, (turn_of("chat", exchange) for exchange in recorded)):
        assert read_whole("chat", DIALECT.reply(head(), CALL, message)).message == with_arguments(message)
        stream = written(DIALECT, head(), by_character(message), message)
        assert read_stream("chat", stream).message == with_arguments(message)


def echoes(recorded):
    """Each sampled turn with the message that stands in its place in the first request that goes on from it."""
    for place, earlier in enumerate(recorded):
        turn, size = turn_of("chat", earlier), len(earlier["body"]["messages"])
        if turn is None or not (turn.content.strip() or turn.tool_calls):
            continue
        before = list(map(normal_form, parse(earlier).messages))
        for later in recorded[place + 1 :]:
            messages = parse(later).messages
            if (
                len(messages) > size
                and list(map(normal_form, messages[:size])) == before
                and messages[size].role == "assistant"
            ):
                yield turn, messages[size]
                break


def test_a_sampled_turn_is_found_in_the_request_that_follows():
    found = 0
    for name, recorded in FILES.items():
        for turn, echoed in echoes(recorded):
            if not name.startswith(REWRITES):
                assert normal_form(echoed) == normal_form(reply_message(turn)), name
                found += 1
    assert found >= 7 if len(FOLDERS) == 1 else found >= 80


def with_arguments(message):
    """Empty arguments are written as an empty object."""
    calls = [msgspec.structs.replace(call, arguments=call.arguments or "{}") for call in message.tool_calls]
    return msgspec.structs.replace(message, tool_calls=tuple(calls))


def test_a_body_may_be_written_in_any_spacing(recorded):
    for exchange in recorded[:2]:
        assert DIALECT.parse(json.dumps(exchange["body"], indent=2).encode(), target_of(exchange)) == parse(exchange)
