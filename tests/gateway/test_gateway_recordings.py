"""What harnesses sent and got, for the dialects alike: enough of it is at hand, and what was sampled is found again."""

import json

import pytest
from recorded import FOLDERS, echoes, files, parse, target_of

from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.lineage import normal_form, reply_message

REWRITES = ("smolagents", "opencode.badargs", "pi.badargs", "qwen-code.badargs")
"""Where the history of chat completions has the turn in another form: tool calls as text, unreadable arguments repaired."""


@pytest.mark.parametrize(("dialect", "least"), [("chat", 80), ("gemini", 18), ("messages", 30), ("responses", 38)])
def test_all_recordings_are_at_hand(dialect, least):
    if len(FOLDERS) == 1:
        pytest.skip("WHIPPLETREE_RECORDINGS is not set: only the recordings of this repository are replayed")
    assert len(files(dialect)) >= least


@pytest.mark.parametrize(("dialect", "own", "least"), [("chat", 7, 80), ("gemini", 4, 18)])
def test_a_sampled_turn_is_found_in_the_request_that_follows(dialect, own, least):
    found = 0
    for name, recorded in files(dialect).items():
        for turn, echoed in echoes(dialect, recorded):
            if dialect != "chat" or not name.startswith(REWRITES):
                assert normal_form(echoed) == normal_form(reply_message(turn)), name
                found += 1
    assert found >= own if len(FOLDERS) == 1 else found >= least


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_body_may_be_written_in_any_spacing(dialect):
    for recorded in files(dialect).values():
        for exchange in recorded[:2]:
            sent = {name: value for name, value in exchange["body"].items() if name != "previous_response_id"}
            indented = json.dumps(sent, indent=2).encode()
            assert DIALECTS[dialect].parse(indented, target_of(exchange)) == parse(dialect, {**exchange, "body": sent})
