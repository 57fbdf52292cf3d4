"""A trace as an ATIF document."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from whippletree.errors import AlignmentError
from whippletree.traces import Trajectory, export_atif, read_trajectory
from whippletree.traces.atif import Step
from whippletree.types import Message, Rollout, RolloutSpec, ToolCall


def exported(made: Any, spec: RolloutSpec, **options: Any) -> Trajectory:
    rollout = Rollout(spec=spec, state="succeeded", created=1.0, updated=2.0, attempt=2, reward=1.0)
    whole = export_atif(made.trace(), rollout, **options)
    assert read_trajectory(msgspec.json.encode(whole)) == whole
    return whole


def sampled(steps: list[Step]) -> list[str]:
    return [step.extra["call_id"] for step in steps if step.llm_call_count and step.extra]


def test_a_run_reads_as_its_conversation(story: Any, spec: RolloutSpec) -> None:
    whole = exported(story, spec, version="9.9")
    assert (whole.schema_version, whole.session_id, whole.agent.name, whole.agent.version) == ("ATIF-v1.8", "r", "h", "9.9")
    assert [(step.source, step.message) for step in whole.steps] == [
        ("system", "be brief"),
        ("user", "fix it"),
        ("agent", "look"),
        ("agent", "ask"),
        ("agent", "summary"),
        ("system", "be brief"),
        ("user", "fix it"),
        ("user", "summary"),
        ("agent", "done"),
    ]
    assert [step.step_id for step in whole.steps] == list(range(1, 10))
    assert sampled(whole.steps) == ["c1", "c3", "c6", "c7"]
    assert [bool(step.is_copied_context) for step in whole.steps] == [False] * 5 + [True] * 3 + [False]
    assert whole.final_metrics is not None
    assert (whole.final_metrics.total_completion_tokens, whole.final_metrics.total_steps) == (8, 9)


def test_tool_results_and_subagents_are_found_at_the_step_that_asked(story: Any, spec: RolloutSpec) -> None:
    whole = exported(story, spec)
    look, ask = whole.steps[2], whole.steps[3]
    assert look.observation is not None
    assert [(result.source_call_id, result.content) for result in look.observation.results] == [("t1", "a.txt")]
    assert ask.observation is not None
    references = [result.subagent_trajectory_ref for result in ask.observation.results if result.subagent_trajectory_ref]
    assert [reference[0].trajectory_id for reference in references] == ["c4"]
    assert whole.subagent_trajectories is not None
    assert [(sub.trajectory_id, sampled(sub.steps)) for sub in whole.subagent_trajectories] == [("c4", ["c4"])]


def test_a_step_has_the_ids_that_were_fed_and_sampled(story: Any, spec: RolloutSpec) -> None:
    look = exported(story, spec).steps[2]
    assert look.metrics is not None
    assert (look.metrics.prompt_token_ids, look.metrics.completion_token_ids) == ([1, 2], [3, 4, 5])
    assert look.metrics.logprobs == pytest.approx([-0.501, -0.511, -0.521])
    slim = exported(story, spec, tokens=False).steps[2]
    assert slim.metrics is not None
    assert (slim.metrics.prompt_token_ids, slim.metrics.logprobs, slim.metrics.completion_tokens) == (None, None, 3)


def test_turns_that_no_call_sampled_are_steps_of_no_model_call(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.said("go")
    recorder.call([1, 2, 3], [4], parent=0, base_call_id="c0")
    recorder.said(
        "on",
        heard=(
            Message(role="assistant", content="Stopped.", tool_calls=(ToolCall(id="z", name="n", arguments="{}"),)),
            Message(role="user", content="go on"),
            Message(role="tool", content="late", tool_call_id="gone", is_error=True),
        ),
    )
    steps = exported(recorder, spec).steps
    assert [(step.source, step.message, step.llm_call_count) for step in steps] == [
        ("agent", "go", 1),
        ("agent", "Stopped.", 0),
        ("user", "go on", None),
        ("system", "", None),
        ("agent", "on", 1),
    ]
    assert steps[1].metrics is None
    assert steps[3].observation is not None
    (late,) = steps[3].observation.results
    assert (late.source_call_id, late.content, late.extra) == (None, "late", {"is_error": True})


def test_a_subagents_subagent_is_in_its_document(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.call([10], [11], role="subagent", origin_call_id="c0", prefix_break="new_thread")
    recorder.call([20], [21], role="subagent", origin_call_id="c1", prefix_break="new_thread")
    recorder.call([30], [31], role="subagent", origin_call_id="lost", prefix_break="new_thread")
    first, last = exported(recorder, spec).subagent_trajectories or []
    assert (first.trajectory_id, last.trajectory_id) == ("c1", "c3")
    assert [sub.trajectory_id for sub in first.subagent_trajectories or []] == ["c2"]


def test_arguments_that_are_no_object_are_kept_beside_the_call(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.said(calls=(ToolCall(id="t", name="bash", arguments='{"command": '), ToolCall(id="u", name="ls", arguments="")))
    (step,) = exported(recorder, spec).steps
    assert step.tool_calls is not None
    assert [(call.arguments, call.extra) for call in step.tool_calls] == [({}, {"arguments": '{"command": '}), ({}, None)]


def test_messages_that_cannot_be_read_name_the_call(recorder: Any, spec: RolloutSpec) -> None:
    recorder.call([1], [2])
    recorder.payloads[0].messages_json = b"["
    with pytest.raises(AlignmentError, match="call c0: its messages cannot be read"):
        exported(recorder, spec)
