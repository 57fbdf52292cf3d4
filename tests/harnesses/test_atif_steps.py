"""whippletree/harnesses/atif_steps.py"""

from __future__ import annotations

import msgspec

from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.reading import tool_call
from whippletree.traces.atif import Agent, read_trajectory

AGENT = Agent(name="a", version="1")


def test_ids_count_from_1_and_what_is_written_is_read_back() -> None:
    steps = Steps()
    steps.say("user", "go")
    steps.turn("I look.", [tool_call("c1", "sh", {"command": "ls"})], counts(10, 5, 2), reasoning="hm", model="policy")
    steps.observe("c1", "a.txt")
    steps.turn("Done.", [], None)
    told = steps.trajectory(AGENT, "s", trajectory_id="t")
    assert read_trajectory(msgspec.json.encode(told)) == told
    assert [step.step_id for step in told.steps] == [1, 2, 3] and (told.session_id, told.trajectory_id) == ("s", "t")
    assert [step.llm_call_count for step in told.steps] == [None, 1, 0]
    assert told.steps[1].metrics == counts(10, 5, 2) and told.steps[1].reasoning_content == "hm"


def test_a_result_is_put_to_the_latest_step_that_made_its_call_and_stands_alone_where_none_did() -> None:
    steps = Steps()
    for _ in range(2):
        steps.turn("", [tool_call("same", "sh", {})], counts(1, 1))
    steps.observe("same", "one")
    steps.observe("same", "two", failed=True)
    steps.observe("unknown", "lost")
    first, second, alone = steps.trajectory(AGENT).steps
    assert first.observation is None and second.observation is not None and alone.observation is not None
    assert [(one.content, one.extra) for one in second.observation.results] == [("one", None), ("two", {"is_error": True})]
    assert alone.source == "system" and alone.observation.results[0].source_call_id is None


def test_a_tool_call_may_refer_to_a_sub_agent() -> None:
    steps = Steps()
    steps.turn("", [tool_call("c1", "task", {})], counts(1, 1))
    steps.refer("c1", "too-early")
    steps.observe("c1", "its report")
    steps.refer("c1", "child")
    steps.refer("unknown", "child")
    (step,) = steps.trajectory(AGENT).steps
    assert step.observation is not None
    (reference,) = step.observation.results[0].subagent_trajectory_ref or []
    assert reference.trajectory_id == "child"


def test_what_a_tool_gave_is_a_text() -> None:
    assert text_of("plain") == "plain" and text_of({"a": [1]}) == '{"a":[1]}'
