"""The chat-completions dialect against what harnesses sent and got."""

import msgspec
import pytest
from readers import read_stream, read_whole
from recorded import files, parse, turn_of
from turns import CALL, by_character, head, written

from whippletree.gateway.dialects.chat import ChatDialect

DIALECT = ChatDialect()
FILES = files("chat")


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def test_every_request_parses_one_message_to_one(recorded):
    for exchange in recorded:
        request, sent = parse("chat", exchange), exchange["body"]
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


def with_arguments(message):
    """Empty arguments are written as an empty object."""
    calls = [msgspec.structs.replace(call, arguments=call.arguments or "{}") for call in message.tool_calls]
    return msgspec.structs.replace(message, tool_calls=tuple(calls))
