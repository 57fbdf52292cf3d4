"""The OpenHands SDK's adapter: what it launches, what its end means, and its events as ATIF ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from adapter_parts import placed
from python_packages import SPEC, with_settings

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import openhands_driver
from whippletree.harnesses.openhands import FOLDER, OpenHands
from whippletree.protocols import HarnessResult
from whippletree.traces.atif import read_trajectory

RECORDS = Path(__file__).parent / "records" / "openhands"


@pytest.fixture
def openhands(tmp_path: Path) -> OpenHands:
    return placed(OpenHands, tmp_path)


def request(openhands: OpenHands, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dict(openhands.plan(with_settings(**settings)).files)[f"{FOLDER}/request.json"])
    return found


def test_it_is_not_launched_where_it_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="whippletree harness install openhands"):
        OpenHands(tmp_path).plan(SPEC)


def test_the_key_is_in_one_variable_alone(openhands: OpenHands) -> None:
    plan = openhands.plan(SPEC)
    assert plan.environment[openhands_driver.KEY] == SPEC.api_key and plan.environment["DO_NOT_TRACK"] == "1"
    assert SPEC.api_key not in " ".join(plan.argv) and not any(SPEC.api_key in text for _, text in plan.files)
    assert dict(plan.files)[plan.argv[2]] == Path(openhands_driver.__file__).read_text()
    assert plan.argv[0] == str(openhands.folder / "bin" / "python")


def test_settings_arrive_in_the_request(openhands: OpenHands) -> None:
    plain = request(openhands)
    assert plain["llm"] == {"model": "openai/policy", "base_url": SPEC.base_url, "timeout": 300, "num_retries": 5}
    assert plain["tools"] == ["terminal", "file_editor", "task_tracker", "finish", "think"]
    own = request(
        openhands, tools=["terminal"], system_prompt="Short.", step_limit=9, condense_at=0, treat_as="kimi-k2-thinking"
    )
    assert (own["tools"], own["system_prompt"], own["step_limit"], own["condense_at"]) == (["terminal"], "Short.", 9, 0)
    assert own["llm"]["model_canonical_name"] == "kimi-k2-thinking"


def test_wrong_settings_are_refused_with_their_names(openhands: OpenHands) -> None:
    for settings, word in (({"tools": ["shell"]}, "'shell'"), ({"condenser": 1}, "condense_at"), ({"retries": "5"}, "retries")):
        with pytest.raises(ConfigurationError, match=word):
            openhands.plan(with_settings(**settings))


def test_its_ending_says_how_it_ended(openhands: OpenHands) -> None:
    def result(code: int = 3, **fields: Any) -> HarnessResult:
        return openhands.result(code, "said", json.dumps(fields).encode())

    ended = openhands.result(0, "said", (RECORDS / "ending.json").read_bytes())
    assert ended == HarnessResult(exit_status="finished", steps=2)
    refused = result(status="error", error="LLMBadRequestError", detail="litellm.BadRequestError: no")
    assert refused == HarnessResult(exit_status="LLMBadRequestError", crashed=True, message="litellm.BadRequestError: no")
    spent = result(status="error", error="MaxIterationsReached", detail="Agent reached maximum iterations limit (3).")
    assert (spent.exit_status, spent.ran_out, spent.crashed) == ("MaxIterationsReached", "budget", False)
    for error, detail in (("LLMContextWindowExceedError", "no"), ("LLMBadRequestError", "maximum context length is 9")):
        full = result(status="error", error=error, detail=detail)
        assert (full.exit_status, full.ran_out, full.crashed) == ("ContextWindowExceeded", "budget", False)
    assert result(status="stuck") == HarnessResult(exit_status="stuck")
    assert openhands.result(1, "Traceback", None) == HarnessResult(exit_status="Exit1", crashed=True, message="Traceback")


def test_its_events_are_told_response_by_response(openhands: OpenHands) -> None:
    events = {f"{FOLDER}/conversation/8a8d/events/{path.name}": path.read_bytes() for path in RECORDS.glob("event-*.json")}
    ending = {f"{FOLDER}/ending.json": (RECORDS / "ending.json").read_bytes()}
    told = read_trajectory(openhands.account("", events | ending) or b"")
    assert [step.source for step in told.steps] == ["system", "user", "agent", "agent"]
    both, last = told.steps[2:]
    assert (both.message, both.reasoning_content, both.llm_call_count) == ("I write both.", "both are missing", 1)
    assert [(call.tool_call_id, call.arguments) for call in both.tool_calls or []] == [
        ("call_1", {"command": "echo amber > a"}),
        ("call_2", {"command": "echo birch > b"}),
    ]
    assert both.observation is not None
    assert [(result.source_call_id, result.content) for result in both.observation.results] == [
        ("call_1", ""),
        ("call_2", "the terminal is gone"),
    ]
    assert both.metrics is not None and (both.metrics.prompt_tokens, both.metrics.cached_tokens) == (200, 8)
    assert (last.message, last.tool_calls) == ("One is written.", None)
    assert openhands.account("", ending) is None
    without = read_trajectory(openhands.account("", events) or b"")
    assert [step.llm_call_count for step in without.steps if step.source == "agent"] == [1, 1]


def test_a_summary_is_a_turn_with_its_own_counts_and_no_step(openhands: OpenHands) -> None:
    event = {"kind": "Condensation", "source": "environment", "summary": "Both were written.", "llm_response_id": "c-1"}
    usage = {"response_id": "c-1", "prompt_tokens": 90, "completion_tokens": 4, "cache_read_tokens": 0}
    ending = json.dumps({"status": "finished", "usages": [], "summing_up": [usage]}).encode()
    records = {f"{FOLDER}/conversation/8a8d/events/event-00001-a.json": json.dumps(event).encode()}
    (step,) = read_trajectory(openhands.account("", records | {f"{FOLDER}/ending.json": ending}) or b"").steps
    assert (step.source, step.message, step.llm_call_count) == ("agent", "Both were written.", 1)
    assert step.metrics is not None and (step.metrics.prompt_tokens, step.metrics.completion_tokens) == (90, 4)
    assert openhands.result(0, "", ending).steps == 0
