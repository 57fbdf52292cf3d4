"""The adapter without running mini: its plan, what an end means, its settings, and the registry."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest
from adapter_parts import KEY, attempt

from whippletree.configuration import field_docs
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import NAMES, load_harness, mini_swe_agent
from whippletree.harnesses.config import MiniSettings
from whippletree.harnesses.mini_swe_agent import MiniSweAgent
from whippletree.protocols import Harness, HarnessResult, PoolHarness
from whippletree.traces.atif import Metrics, read_trajectory

spec = partial(attempt, 'Say "hi": {{ not a template }}')


def test_every_name_loads_and_is_a_harness() -> None:
    for name in NAMES:
        harness = load_harness(name)
        assert isinstance(harness, Harness) and harness.name == name and harness.version
    assert isinstance(load_harness("mini-swe-agent"), PoolHarness)
    assert isinstance(load_harness("whippletree.harnesses.mini_swe_agent:MiniSweAgent"), MiniSweAgent)


@pytest.mark.parametrize(
    ("name", "message"),
    [("mini", "not known"), ("no.such.module:X", "No module"), ("json:JSONX", "JSONX"), ("json:JSONDecoder", "not a Harness")],
)
def test_a_name_that_leads_nowhere_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_harness(name)


def test_the_plan_hides_the_key_and_carries_minis_own_configuration() -> None:
    plan = MiniSweAgent().plan(spec(step_limit=5, system_template="S", environment={"A": "b"}))
    assert plan.argv[:3] == (sys.executable, "-m", "minisweagent.run.mini")
    ((path, text),) = plan.files
    assert path in plan.argv and plan.trajectory in plan.argv
    assert KEY not in text and not any(KEY in argument for argument in plan.argv)
    assert plan.environment["OPENAI_API_KEY"] == KEY
    config = json.loads(text)
    assert config["agent"] | {"step_limit": 5, "system_template": "S", "instance_template": "{{task}}"} == config["agent"]
    assert config["run"]["task"] == spec().instruction
    assert config["model"]["model_class"] == "litellm" and config["model"]["model_name"] == "openai/policy"
    assert config["environment"]["env"] == {
        "PAGER": "cat",
        "MANPAGER": "cat",
        "A": "b",
        "DONE_MESSAGE": mini_swe_agent.DONE_MESSAGE,
        "OPENAI_API_KEY": "",
    }


def test_empty_templates_leave_minis_own() -> None:
    model = json.loads(MiniSweAgent().plan(spec(mode="text")).files[0][1])["model"]
    assert not {"observation_template", "format_error_template", "action_regex"} & set(model)
    model = json.loads(MiniSweAgent().plan(spec(mode="text", action_regex="x", observation_template="o")).files[0][1])["model"]
    assert (model["action_regex"], model["observation_template"], model["model_class"]) == ("x", "o", "litellm_textbased")


def test_wrong_settings_name_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean step_limit"):
        MiniSweAgent().plan(spec(steps_limit=5))
    with pytest.raises(ConfigurationError, match="mode"):
        MiniSweAgent().plan(spec(mode="tools"))


def test_every_setting_is_documented() -> None:
    assert set(field_docs(MiniSettings)) == set(MiniSettings.__struct_fields__)


def record(status: str, calls: int = 3, submission: str = "") -> bytes:
    info = {"exit_status": status, "submission": submission, "model_stats": {"api_calls": calls, "instance_cost": 0.0}}
    return json.dumps({"info": info, "messages": [], "trajectory_format": "mini-swe-agent-1.1"}).encode()


@pytest.mark.parametrize(
    ("code", "trajectory", "expected"),
    [
        (0, record("Submitted", submission="42"), HarnessResult(exit_status="Submitted", steps=3, message="42")),
        (0, record("LimitsExceeded"), HarnessResult(exit_status="LimitsExceeded", steps=3, ran_out="budget")),
        (1, record("ContextWindowExceededError"), HarnessResult(exit_status="ContextWindowExceededError", steps=3)),
        (
            1,
            record("AuthenticationError"),
            HarnessResult(exit_status="AuthenticationError", steps=3, crashed=True, message="end"),
        ),
        (1, None, HarnessResult(exit_status="Exit1", crashed=True, message="end")),
        (124, record(""), HarnessResult(exit_status="TimedOut", steps=3, message="ended at its time limit", ran_out="time")),
        (124, record("Submitted"), HarnessResult(exit_status="Submitted", steps=3)),
        (-9, record(""), HarnessResult(exit_status="Exit-9", steps=3, crashed=True, message="end")),
    ],
)
def test_minis_record_says_how_it_ended(code: int, trajectory: bytes | None, expected: HarnessResult) -> None:
    assert MiniSweAgent().result(code, "end", trajectory) == expected


def test_a_broken_record_is_a_crash() -> None:
    result = MiniSweAgent().result(0, "", b'{"info": ')
    assert result.crashed and result.exit_status == "BrokenTrajectory"


def test_the_interpreter_is_what_the_sandbox_must_show() -> None:
    shown = MiniSweAgent().read_only
    assert all(host == inside and not host.startswith("/usr/") for host, inside in shown)
    if not sys.prefix.startswith("/usr"):
        assert (sys.prefix, sys.prefix) in shown and (sys.base_prefix, sys.base_prefix) in shown


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_swe_agent, "VERSION", "0.0.1")
    with pytest.raises(HarnessError, match=r"0\.0\.1 is wanted, 2\.4\.6 is installed"):
        MiniSweAgent().plan(spec())


def test_its_trajectory_becomes_a_document_with_the_turns_that_it_dropped() -> None:
    def response(text: str | None, *calls: tuple[str, str]) -> dict[str, object]:
        made = [{"id": f"c{n}", "function": {"name": "bash", "arguments": given}} for n, given in calls]
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
        message = {"content": text, "tool_calls": made, "reasoning_content": "hm"}
        return {"response": {"choices": [{"message": message}], "usage": usage}}

    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": None, "extra": response(None, ("1", '{"command": "ls"}'))},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "user", "content": "That was no JSON.", "extra": response("x", ("2", '{"command": '))},
        {"role": "user", "content": "That broke.", "extra": {"response": "ModelResponse(...)"}},
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    ]
    data = json.dumps({"info": {}, "messages": messages}).encode()
    account = MiniSweAgent().account("", {"/run/x/trajectory.json": data})
    assert account is not None
    told = read_trajectory(account)
    assert [(step.source, step.message) for step in told.steps] == [
        ("system", "S"),
        ("user", "go"),
        ("agent", ""),
        ("agent", "x"),
        ("user", "That was no JSON."),
        ("user", "That broke."),
    ]
    first, dropped = (step for step in told.steps if step.source == "agent")
    assert first.observation is not None and first.observation.results[0].content == "a.txt"
    assert first.metrics == Metrics(prompt_tokens=9, completion_tokens=4, cached_tokens=2) and first.reasoning_content == "hm"
    assert dropped.tool_calls is not None and dropped.tool_calls[0].extra == {"arguments": '{"command": '}
    assert MiniSweAgent().account("", {}) is None
