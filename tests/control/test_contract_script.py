"""whippletree/control/contract/script.py and scenarios.py"""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from whippletree.control.contract.scenarios import CHILD, STEPS, known, scenarios
from whippletree.control.contract.script import (
    FINAL,
    REPORT,
    Move,
    Script,
    command_call,
    filled,
    is_main,
    printing,
    written,
)
from whippletree.errors import ContextOverflow
from whippletree.protocols import HarnessFacts, Probe

FACTS = HarnessFacts(dialects=("chat",), streams=True, shell_tool="sh", shell_extra={"why": "a check"})
SYSTEM = '<|im_start|>system\nTools: {"name": "sh"}<|im_end|>\n'
TOKEN = "wt-task-1"


def user(text: str, system: str = SYSTEM) -> str:
    return f"{system}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def move(name: str) -> Move:
    prints, shows = printing(1, name)
    return Move(calls=(command_call(FACTS, prints),), shows=(shows,))


def test_a_call_of_the_shell_tool_has_what_the_harness_insists_on() -> None:
    assert command_call(FACTS, "ls") == ("sh", {"command": "ls", "why": "a check"})
    turn = written(Move(calls=(command_call(FACTS, "ls"), ("sh", "{broken"))))
    assert re.findall(r"<tool_call>\n(.*)\n</tool_call>", turn) == [
        json.dumps({"name": "sh", "arguments": {"command": "ls", "why": "a check"}}),
        '{"name": "sh", "arguments": {broken}',
    ]


def test_moves_are_made_in_order_until_what_they_print_is_seen_and_stay_done() -> None:
    script = Script(FACTS, TOKEN, [move("a"), move("b")])
    assert "1 a" in script.answer(user(TOKEN))
    assert "1 a" in script.answer(user(f"{TOKEN} again"))
    assert "1 b" in script.answer(user(f"{TOKEN} wt-1-a"))
    assert "1 b" in script.answer(user("a summary took its output away"))
    assert not script.complete
    assert script.answer(user("wt-1-b")) == FINAL and script.complete


def test_a_move_is_made_only_so_often() -> None:
    script = Script(FACTS, TOKEN, [move("a")])
    answers = [script.answer(user(f"{TOKEN} {number}")) for number in range(5)]
    assert [answer == FINAL for answer in answers] == [False, False, False, True, True] and not script.complete


def test_a_move_that_shows_nothing_is_made_once() -> None:
    script = Script(FACTS, TOKEN, [Move(calls=(("sh", "{broken"),))])
    assert "broken" in script.answer(user(TOKEN)) and script.answer(user(f"{TOKEN} 2")) == FINAL and script.complete


def test_without_tools_it_says_plain_text_and_a_summary_where_one_is_asked_for() -> None:
    script = Script(FACTS, TOKEN, [move("a")])
    assert script.answer(user(TOKEN, system="")) == FINAL
    first, second = (
        script.answer(user("Write a summary of it.", system="")),
        script.answer(user("Produce the <state_snapshot> now.")),
    )
    assert "<summary>" in first and "<state_snapshot>" in second and first != second
    assert "1 a" in script.answer(user(f"{TOKEN}: the summary below says where we are"))


def test_a_turn_that_was_cut_off_is_gone_on_with() -> None:
    script = Script(FACTS, TOKEN, [move("a")])
    whole = script.answer(user(TOKEN))
    assert script.answer(user(TOKEN) + whole[:20]) == whole[20:]


def test_a_prompt_overflows_once() -> None:
    script = Script(FACTS, TOKEN, [move("a"), move("b")], overflow_at=1)
    assert "1 a" in script.answer(user(TOKEN)) and not script.overflowed
    with pytest.raises(ContextOverflow):
        script.answer(user(f"{TOKEN} wt-1-a"))
    assert "1 b" in script.answer(user(f"{TOKEN} wt-1-a")) and script.overflowed


def test_a_sub_agent_has_moves_of_its_own_and_ends_as_the_facts_say() -> None:
    probe = Probe(subagent_finish="finish", subagent_finish_arguments={"result": {"response": "{report}"}})
    facts = msgspec.structs.replace(FACTS, probe=probe)
    script = Script(facts, TOKEN, [move("a")], child=CHILD, child_moves=[move("inner")])
    assert script.of_child(user(CHILD)) and not script.of_child(user(f"{TOKEN} {CHILD}"))
    assert "1 inner" in script.answer(user(CHILD))
    assert f'{{"name": "finish", "arguments": {{"result": {{"response": "{REPORT}"}}}}}}' in script.answer(
        user(f"{CHILD} wt-1-inner")
    )
    assert filled({"a": "{x}", "b": {"c": "{x}"}}, "{x}", "y") == {"a": "y", "b": {"c": "y"}}


def test_a_run_ends_by_a_call_where_the_facts_say_so() -> None:
    facts = msgspec.structs.replace(FACTS, probe=Probe(finish_tool="sh", finish_arguments={"command": "submit"}))
    assert '"command": "submit"' in Script(facts, TOKEN, []).answer(user(TOKEN))


def test_scenarios_are_those_that_apply() -> None:
    plain = {scenario.name for scenario in scenarios(FACTS, dialect_setting=False)}
    assert plain == {"plain", "parallel", "arguments", "429", "500", "drop", "overflow", "two-at-once"}
    probe = Probe(subagent_tool="task", subagent_arguments={"prompt": "{prompt}"}, compaction={"context_tokens": 9})
    facts = msgspec.structs.replace(FACTS, compacts=True, subagents=True, probe=probe, dialects=("chat", "gemini"))
    found = {scenario.name: scenario for scenario in scenarios(facts, dialect_setting=True)}
    assert set(found) == plain | {"dialect-gemini", "compaction", "subagent"}
    assert found["compaction"].settings == {"context_tokens": 9} and found["dialect-gemini"].settings == {"dialect": "gemini"}
    (start,) = found["subagent"].moves
    assert CHILD in str(start.calls[0][1])
    without = [scenario.name for scenario in scenarios(msgspec.structs.replace(FACTS, shell_tool=""), dialect_setting=False)]
    assert without == ["plain", "429", "500", "drop", "overflow", "two-at-once"]
    probe = msgspec.structs.replace(probe, extending={"thinks": True})
    facts = msgspec.structs.replace(facts, probe=probe, variations=("steps",))
    more = {scenario.name: scenario for scenario in scenarios(facts, dialect_setting=True)}
    assert set(more) == set(found) | {"extending", "steps"} and set(more) < set(known())
    assert more["extending"].settings == {"thinks": True} and more["steps"].settings == {"step_limit": STEPS}
    assert len(more["steps"].moves) > STEPS and list(more["steps"].writes) == ["steps-1.txt"]


def test_no_command_holds_the_word_that_it_prints() -> None:
    for scenario in scenarios(FACTS, dialect_setting=False):
        for one in scenario.moves:
            assert not any(shown in str(one.calls) for shown in one.shows), scenario.name


EDITS = Probe(edit="I write.\n\n{path}\n```\n{text}\n```\n", bad_edit="```\nno name\n```\n", side_mark="commit message")


def test_a_harness_without_tools_edits_by_text_in_one_turn_and_mends_an_edit_that_fails() -> None:
    facts = msgspec.structs.replace(FACTS, shell_tool="", probe=EDITS, second_request="single")
    found = {scenario.name: scenario for scenario in scenarios(facts)}
    assert set(found) == {"plain", "arguments", "429", "500", "drop", "overflow", "two-at-once"}
    assert found["drop"].faults == {1: "drop"} and [len(found[name].moves) for name in ("drop", "arguments")] == [1, 2]
    script = Script(facts, TOKEN, found["arguments"].moves)
    assert "no name" in script.answer(user(TOKEN, system=""))
    again = script.answer(user(f"{TOKEN}: no name is given", system=""))
    assert "arguments-1.txt\n```\namber-arguments-1\n```" in again and script.complete
    assert script.answer(user(f"{TOKEN}, the reply was lost", system="")) == again


def test_one_rule_tells_main_prompts_from_side_calls() -> None:
    edits = msgspec.structs.replace(FACTS, shell_tool="", probe=EDITS)
    assert is_main(FACTS, '{"name": "sh"}') and not is_main(FACTS, "Give it a title.")
    assert is_main(edits, "go") and not is_main(edits, "Write a commit message for: go")
    assert Script(edits, TOKEN, [Move(text="an edit")]).answer(user(f"a commit message of {TOKEN}", system="")) == FINAL
    assert is_main(msgspec.structs.replace(FACTS, shell_tool=""), "anything")
