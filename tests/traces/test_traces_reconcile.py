"""The capture against the harness's own account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.traces import Account, Finding, Trajectory, export_atif, reconcile
from whippletree.traces.atif import VERSION, Agent, FinalMetrics, Metrics, Step, StepToolCall
from whippletree.types import Rollout, RolloutSpec, ToolCall


def account_of(trace: Any, spec: RolloutSpec) -> Account:
    rollout = Rollout(spec=spec, state="succeeded", created=1.0, updated=2.0, attempt=1, reward=1.0)
    whole = export_atif(trace, rollout)
    return Account(segments=(whole,), subagents=tuple(whole.subagent_trajectories or ()))


def told(*steps: Step, **changes: Any) -> Account:
    numbered = [msgspec.structs.replace(step, step_id=number) for number, step in enumerate(steps, start=1)]
    return Account(
        segments=(Trajectory(schema_version=VERSION, agent=Agent(name="a", version="1"), steps=numbered, **changes),)
    )


def turn(message: str = "", **changes: Any) -> Step:
    return Step(step_id=1, source="agent", message=message, **changes)


def codes(findings: tuple[Finding, ...]) -> list[tuple[str, str, str]]:
    return [(finding.level, finding.code, finding.call_id or str(finding.step_id)) for finding in findings]


def test_an_exported_account_agrees_with_its_trace(story: Any, spec: RolloutSpec) -> None:
    trace = story.trace()
    found = reconcile(trace, account_of(trace, spec))
    assert codes(found.findings) == [("INFO", "side_call", "c0"), ("INFO", "retry", "c2"), ("INFO", "aborted", "c5")]
    assert {(pair.call_id, pair.trajectory) for pair in found.pairs} == {
        ("c1", ""),
        ("c3", ""),
        ("c4", "c4"),
        ("c6", ""),
        ("c7", ""),
    }
    assert (found.turns, found.calls, found.worst) == (5, 8, "INFO")


@given(data=st.data())
def test_any_trace_agrees_with_its_own_export(grow: Callable[..., Any], spec: RolloutSpec, data: st.DataObject) -> None:
    made = grow(data)
    for payload in made.payloads:
        if payload is not None:
            payload.reply_json = b'{"content":"' + "".join(map(str, payload.sampled_ids)).encode() + b'"}'
    trace = made.trace()
    found = reconcile(trace, account_of(trace, spec))
    assert found.worst in (None, "INFO")
    paired = {pair.call_id for pair in found.pairs}
    assert paired | {finding.call_id for finding in found.findings} == {call.call_id for call in made.calls}


def test_a_step_without_a_call_is_fatal_and_a_call_without_a_step_a_warning(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.said("look")
    recorder.call([1, 2, 3], [4], parent=0)
    recorder.said("dropped by the harness")
    recorder.call([1, 2, 3, 5], [6], parent=0)
    recorder.said("tidy")
    found = reconcile(recorder.trace(), told(turn("look"), turn("tidy"), turn("asked elsewhere")))
    assert codes(found.findings) == [("FATAL", "not_captured", "3"), ("WARN", "not_told", "c1")]
    assert found.worst == "FATAL"
    assert found.findings[0].message == "step 3: it has no captured call"


def test_turn_counts_that_differ_are_told(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.said("look")
    found = reconcile(recorder.trace(), told())
    assert codes(found.findings) == [("WARN", "not_told", "c0"), ("WARN", "turn_count", "0")]
    assert reconcile(recorder.trace(), told(turn("look"))).findings == ()


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (Metrics(completion_tokens=3, completion_token_ids=[3, 4, 5], prompt_token_ids=[1, 2], prompt_tokens=2), []),
        (Metrics(completion_tokens=3, completion_token_ids=[3, 9, 5]), [("FATAL", "sampled_ids", "c0")]),
        (Metrics(completion_token_ids=[3, 4]), [("FATAL", "sampled_ids", "c0")]),
        (Metrics(prompt_token_ids=[1, 3]), [("FATAL", "prompt_ids", "c0")]),
        (Metrics(completion_tokens=4), [("WARN", "completion_tokens", "c0")]),
        (Metrics(completion_tokens=9, completion_token_ids=[3, 4, 5]), [("WARN", "completion_tokens", "c0")]),
        (Metrics(completion_tokens=9), [("FATAL", "completion_tokens", "c0")]),
        (Metrics(prompt_tokens=90), [("WARN", "prompt_tokens", "c0")]),
    ],
)
def test_counts_and_ids_are_compared_call_by_call(recorder: Any, metrics: Metrics, expected: list[Any]) -> None:
    recorder.call([1, 2], [3, 4, 5])
    recorder.said("look")
    assert codes(reconcile(recorder.trace(), told(turn("look", metrics=metrics))).findings) == expected


def test_the_place_of_a_difference_is_named(recorder: Any) -> None:
    recorder.call([1, 2], [3, 4, 5])
    recorder.said("look")
    found = reconcile(recorder.trace(), told(turn("look", metrics=Metrics(completion_token_ids=[3, 9, 5]))))
    assert found.findings[0].message == "step 1: they differ from place 1 on"


def test_text_and_tool_calls_that_differ_are_warnings(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.said("look", calls=(ToolCall(id="t", name="bash", arguments='{"command": "ls"}'),))
    renamed = StepToolCall(tool_call_id="t", function_name="invalid", arguments={})
    repaired = StepToolCall(tool_call_id="t", function_name="bash", arguments={"command": "ls -l"})
    found = reconcile(recorder.trace(), told(turn("LOOK", tool_calls=[renamed])))
    assert codes(found.findings) == [("WARN", "text", "c0"), ("WARN", "tool_calls", "c0")]
    found = reconcile(recorder.trace(), told(turn("look", tool_calls=[repaired])))
    assert found.findings[0].message == "step 1: arguments of ['bash'] differ"


def test_a_step_that_stands_for_several_calls_has_their_sums(recorder: Any) -> None:
    recorder.call([1], [2, 3])
    recorder.said("first try")
    recorder.call([7], [8])
    recorder.said("look")
    both = turn("look", llm_call_count=2, metrics=Metrics(completion_tokens=3, prompt_tokens=2))
    assert reconcile(recorder.trace(), told(both)).findings == ()


def test_a_turn_of_a_call_that_was_held_back_is_a_warning(recorder: Any) -> None:
    recorder.call([1], [2], delivered=False)
    recorder.said("look")
    recorder.call([5], [6], role="side")
    recorder.said("title")
    found = reconcile(recorder.trace(), told(turn("look"), turn("title")))
    assert codes(found.findings) == [("WARN", "unexpected", "c0"), ("WARN", "unexpected", "c1")]
    assert "undelivered" in found.findings[0].message


def test_subagents_are_compared_each_with_its_own_trajectory(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.said("go")
    for first in (10, 20):
        recorder.call([first], [first + 1], role="subagent", origin_call_id="c0", prefix_break="new_thread")
        recorder.said("same words")
    trace = recorder.trace()

    def sub(name: str, ids: list[int]) -> Trajectory:
        steps = [turn("same words", metrics=Metrics(completion_token_ids=ids))]
        return Trajectory(schema_version=VERSION, agent=Agent(name="a", version="1"), steps=steps, trajectory_id=name)

    main = told(turn("go"))
    swapped = msgspec.structs.replace(main, subagents=(sub("two", [21]), sub("one", [11])))
    found = reconcile(trace, swapped)
    assert found.findings == ()
    assert {(pair.call_id, pair.trajectory) for pair in found.pairs} == {("c0", ""), ("c1", "one"), ("c2", "two")}
    assert codes(reconcile(trace, main).findings) == [("INFO", "subagent", "c1"), ("INFO", "subagent", "c2")]
    lone = reconcile(trace, msgspec.structs.replace(main, subagents=(sub("one", [11]),)))
    assert codes(lone.findings) == [("WARN", "not_told", "c2")]


def test_totals_above_the_steps_own_are_a_warning(recorder: Any) -> None:
    recorder.call([1], [2])
    recorder.said("look")
    step = turn("look", metrics=Metrics(completion_tokens=1))
    found = reconcile(recorder.trace(), told(step, final_metrics=FinalMetrics(total_completion_tokens=90)))
    assert codes(found.findings) == [("WARN", "total", "0")]
