"""The Gemini dialect against what harnesses sent and got."""

import msgspec
import pytest
from readers import read_stream, read_whole
from recorded import files, parse, turn_of
from turns import CALL, by_character, head, written

from whippletree.gateway.dialects.gemini import GeminiDialect

DIALECT = GeminiDialect()
FILES = files("gemini")


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def test_every_request_parses(recorded):
    for exchange in recorded:
        request, sent = parse("gemini", exchange), exchange["body"]
        assert (request.messages[0].role, request.messages[1].role) == ("system", "user")
        declared = [item for tool in sent.get("tools") or [] for item in tool["functionDeclarations"]]
        assert [tool.name for tool in request.tools] == [item["name"] for item in declared]
        assert request.stream
        assert "contents.parts" not in request.ignored
        calls = [call for message in request.messages for call in message.tool_calls]
        answers = [message.tool_call_id for message in request.messages if message.role == "tool"]
        assert len(set(answers)) == len(answers)
        assert set(answers) <= {call.id for call in calls}
        parts = [part for content in sent["contents"] for part in content["parts"]]
        assert len(answers) == sum("functionResponse" in part for part in parts)


def test_a_recorded_turn_written_again_is_the_same_turn(recorded):
    for message in filter(None, (turn_of("gemini", exchange) for exchange in recorded)):
        calls = [msgspec.structs.replace(c, arguments=msgspec.json.format(c.arguments, indent=-1)) for c in message.tool_calls]
        wanted = msgspec.structs.replace(message, tool_calls=tuple(calls))
        assert read_whole("gemini", DIALECT.reply(head(), CALL, message)).message == wanted
        for sse in (True, False):
            stream = written(DIALECT, head(sse=sse), by_character(message), message)
            assert read_stream("gemini", stream).message == wanted
