"""The adapter of whitebox without running it: its plan, what an end means, its account, its settings."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import Any

import msgspec
import pytest
from adapter_parts import KEY, attempt

from whippletree.configuration import field_docs
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import load_harness, shipped_settings
from whippletree.harnesses.config import WhiteboxSettings
from whippletree.harnesses.whitebox import RECORD, Whitebox
from whippletree.harnesses.whitebox_loop import OUTCOMES, Rules
from whippletree.protocols import HarnessResult, PoolHarness
from whippletree.traces import atif

spec = partial(attempt, 'Say "hi" {output}')


def test_it_is_registered_with_its_settings() -> None:
    assert isinstance(load_harness("whitebox"), PoolHarness)
    assert shipped_settings()["whitebox"] is WhiteboxSettings
    assert set(field_docs(WhiteboxSettings)) == set(WhiteboxSettings.__struct_fields__)
    assert set(WhiteboxSettings.__struct_fields__) == set(Rules.__dataclass_fields__)


def test_the_plan_hides_the_key_and_carries_the_loop_and_its_rules() -> None:
    plan = Whitebox().plan(spec(step_limit=5, tool_name="run"))
    files = dict(plan.files)
    assert plan.argv[0] == sys.executable and plan.argv[3:] == (*files, plan.trajectory)
    assert KEY not in " ".join(plan.argv) and not any(KEY in text for text in files.values())
    assert plan.environment == {"OPENAI_API_KEY": KEY}
    config = json.loads(files[plan.argv[4]])
    rules = Rules(**config["rules"])
    assert (rules.step_limit, rules.tool_name, rules.compact_every) == (5, "run", 0)
    assert config["task"] == spec().instruction


def test_wrong_settings_name_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean step_limit"):
        Whitebox().plan(spec(steps_limit=5))
    with pytest.raises(ConfigurationError, match="summary"):
        Whitebox().plan(spec(summary="none"))


def record(status: str, **more: Any) -> bytes:
    return json.dumps({"exit_status": status, "steps": 3, "message": "m"} | more).encode()


@pytest.mark.parametrize(
    ("code", "found", "expected"),
    [
        (0, record("Submitted"), HarnessResult(exit_status="Submitted", steps=3, message="m")),
        (0, record("Answered"), HarnessResult(exit_status="Answered", steps=3, message="m")),
        (0, record("StepLimit"), HarnessResult(exit_status="StepLimit", steps=3, message="m", ran_out="budget")),
        (0, record("TimeLimit"), HarnessResult(exit_status="TimeLimit", steps=3, message="m", ran_out="time")),
        (0, record("ContextFull"), HarnessResult(exit_status="ContextFull", steps=3, message="m")),
        (1, record("ModelError"), HarnessResult(exit_status="ModelError", steps=3, message="m", crashed=True)),
        (1, None, HarnessResult(exit_status="Exit1", crashed=True, message="end")),
        (124, record(""), HarnessResult(exit_status="TimedOut", steps=3, message="ended at its time limit", ran_out="time")),
        (124, record("Submitted"), HarnessResult(exit_status="Submitted", steps=3, message="m")),
    ],
)
def test_the_loops_record_says_how_it_ended(code: int, found: bytes | None, expected: HarnessResult) -> None:
    assert Whitebox().result(code, "end", found) == expected


def test_a_broken_record_is_a_crash_and_no_account() -> None:
    result = Whitebox().result(0, "", b'{"turns": 3}')
    assert result.crashed and result.exit_status == "BrokenTrajectory"
    with pytest.raises(HarnessError, match="no record of whitebox"):
        Whitebox().account("", {RECORD: b'{"turns": 3}'})
    assert Whitebox().account("", {}) is None


def test_the_account_is_atif() -> None:
    turns = [
        {
            "content": "look",
            "calls": [{"id": "c1", "name": "shell", "arguments": '{"command": "ls"}'}, {"id": "c2", "name": "shell"}],
            "results": ["a.txt", "error"],
            "prompt_tokens": 40,
            "completion_tokens": 6,
        },
        {"content": "found a.txt", "summary": True},
        {"content": "done"},
    ]
    found = Whitebox().account("", {RECORD: record("Answered", system="S", task="T", turns=turns)})
    assert found is not None
    trajectory = msgspec.json.decode(found, type=atif.Trajectory)
    assert trajectory.schema_version == atif.VERSION and trajectory.agent.name == "whitebox"
    assert [(step.source, step.message) for step in trajectory.steps] == [
        ("system", "S"),
        ("user", "T"),
        ("agent", "look"),
        ("agent", "found a.txt"),
        ("agent", "done"),
    ]
    looked = trajectory.steps[2]
    assert looked.tool_calls is not None and looked.observation is not None and looked.metrics is not None
    assert [(call.tool_call_id, call.arguments) for call in looked.tool_calls] == [("c1", {"command": "ls"}), ("c2", {})]
    assert [result.content for result in looked.observation.results] == ["a.txt", "error"]
    assert (looked.metrics.prompt_tokens, looked.metrics.completion_tokens) == (40, 6)
    assert trajectory.steps[3].extra == {"summary": True}


def test_outcomes_are_no_crashes() -> None:
    for status in OUTCOMES:
        assert not Whitebox().result(0, "", record(status)).crashed


def test_the_interpreter_is_what_the_sandbox_must_show() -> None:
    shown = Whitebox().read_only
    assert all(host == inside and not host.startswith("/usr/") for host, inside in shown)
    if not sys.prefix.startswith("/usr"):
        assert (sys.prefix, sys.prefix) in shown and (sys.base_prefix, sys.base_prefix) in shown


def test_importing_it_loads_no_heavy_package() -> None:
    heavy = "litellm openai torch transformers minisweagent aiohttp pydantic httpx"
    code = f"import sys, whippletree.harnesses.whitebox; print([n for n in '{heavy}'.split() if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
