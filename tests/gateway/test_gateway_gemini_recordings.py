"""The Gemini dialect against what harnesses sent and got."""

import json

import msgspec
import pytest
from readers import read_stream, read_whole
from recorded import FOLDERS, body_of, files, target_of, turn_of
from turns import CALL, by_character, head, written

from whippletree.gateway.dialects.gemini import GeminiDialect
from whippletree.gateway.lineage import normal_form, reply_message

DIALECT = GeminiDialect()
FILES = files("GenerateContent")


@pytest.fixture(params=FILES)
def recorded(request):
    return FILES[request.param]


def parse(exchange):
    return DIALECT.parse(body_of(exchange), target_of(exchange))


def test_all_recordings_are_at_hand():
    if len(FOLDERS) == 1:
        pytest.skip("WHIPPLETREE_RECORDINGS is not set: only the recordings of this repository are replayed")
    assert len(FILES) >= 18


def test_every_request_parses(recorded):
    for exchange in recorded:
        request, sent = parse(exchange), exchange["body"]
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


def echoes(recorded):
    """Each sampled turn with the message that stands in its place in the first request that goes on from it."""
    for place, earlier in enumerate(recorded):
        turn, before = turn_of("gemini", earlier), list(map(normal_form, parse(earlier).messages))
        if turn is None or not (turn.content.strip() or turn.tool_calls):
            continue
        for later in recorded[place + 1 :]:
            messages, size = parse(later).messages, len(before)
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
            assert normal_form(echoed) == normal_form(reply_message(turn)), name
            found += 1
    assert found >= 4 if len(FOLDERS) == 1 else found >= 18


def test_a_body_may_be_written_in_any_spacing(recorded):
    for exchange in recorded[:2]:
        assert DIALECT.parse(json.dumps(exchange["body"], indent=2).encode(), target_of(exchange)) == parse(exchange)
