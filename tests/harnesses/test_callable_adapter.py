"""The adapter of Python functions: plans, what their end means, and refusals."""

from __future__ import annotations

import json
import os
import sys
import venv
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from adapter_parts import KEY, attempt

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import callable_context, load_harness
from whippletree.harnesses.python_callable import FOLDER, PythonCallable
from whippletree.protocols import ConfiguredHarness, HarnessResult, PoolHarness, SandboxHandle
from whippletree.traces.atif import Agent, Step, Trajectory

spec = partial(attempt, "go")


def test_it_runs_in_pools_and_processes() -> None:
    harness = load_harness("callable")
    assert isinstance(harness, PoolHarness) and isinstance(harness, ConfiguredHarness)
    assert harness.facts.launches == ("pool", "process")


def test_the_plan_holds_the_key_in_one_variable_only(tmp_path: Path) -> None:
    plan = PythonCallable().plan(spec(function="agent:solve", path=str(tmp_path), options={"a": 1}, step_limit=3))
    assert plan.argv[0] == sys.executable and plan.environment[callable_context.KEY] == KEY
    assert KEY not in " ".join(plan.argv) and not any(KEY in text for _, text in plan.files)
    files = dict(plan.files)
    assert files[plan.argv[2]] == Path(callable_context.__file__).read_text()
    request = json.loads(files[plan.argv[3]])
    assert (request["path"], request["function"], request["step_limit"], request["options"]) == (
        FOLDER,
        "agent:solve",
        3,
        {"a": 1},
    )


def test_its_folder_and_its_python_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    (tmp_path / "agent").mkdir()
    monkeypatch.chdir(tmp_path)
    harness = PythonCallable().configured({"function": "agent:solve", "path": "agent", "python": "env/bin/python"})
    shown = dict(harness.read_only)
    assert shown[str(tmp_path / "agent")] == FOLDER and shown[str(tmp_path / "env")] == str(tmp_path / "env")
    base = Path(os.path.realpath(sys.executable)).parent.parent
    assert str(base) in shown or str(base).startswith("/usr")
    plan = harness.plan(spec(function="agent:solve", path="agent", python="env/bin/python"))
    assert plan.argv[0] == str(tmp_path / "env/bin/python")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "function is missing"),
        ({"function": "agent"}, 'write it as "module:function"'),
        ({"function": "agent:sol ve"}, 'write it as "module:function"'),
        ({"function": "a:b", "step_limit": -1}, "step_limit: Expected `int` >= 0"),
        ({"function": "a:b", "functoin": 1}, "function"),
        ({"function": "a:b", "path": "/nowhere/at/all"}, "is no folder"),
        ({"function": "a:b", "python": "/nowhere/python"}, "there is no python"),
    ],
)
def test_wrong_settings_are_refused_with_their_names(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"harness callable") as refused:
        PythonCallable().configured(settings)
    assert words in str(refused.value)


def ending(**fields: Any) -> str:
    return f"some output\n{callable_context.ENDING}{json.dumps(fields)}\n"


def test_exit_codes_and_the_last_line_tell_the_end() -> None:
    result = PythonCallable().result
    returned = ending(status="Returned", steps=3, message="done")
    assert result(0, returned, None) == HarnessResult(exit_status="Returned", steps=3, message="done")
    assert result(0, "what a tool printed", None) == HarnessResult(exit_status="Returned")
    spent = ending(status="OutOfSteps", steps=2, message="2 steps were made")
    assert result(75, spent, None) == HarnessResult(
        exit_status="OutOfSteps", steps=2, message="2 steps were made", ran_out="budget"
    )
    told = 'Traceback (most recent call last):\n  File "x"\nopenai.NotFoundError: no such model\n'
    assert result(1, told, None) == HarnessResult(exit_status="NotFoundError", crashed=True, message=told)
    assert result(-9, "", None) == HarnessResult(exit_status="Exit-9", crashed=True)


def test_a_trajectory_that_it_leaves_is_its_account() -> None:
    steps = [Step(step_id=1, source="agent", message="ok")]
    record = msgspec.json.encode(Trajectory(schema_version="ATIF-v1.8", agent=Agent(name="x", version="1"), steps=steps))
    harness = PythonCallable()
    assert harness.account("", {"/host/run/r0/trajectory.json": record, "/host/run/r0/agent.log": b""}) == record
    assert harness.account("", {"/host/run/r0/agent.log": b""}) is None
    with pytest.raises(HarnessError):
        harness.account("", {"/logs/agent/trajectory.json": b"{}"})


def test_a_pool_attempt_that_cannot_begin_says_why(tmp_path: Path) -> None:
    harness = PythonCallable()
    with pytest.raises(HarnessError, match="has no sandbox"):
        harness.run(spec(function="json:dumps"))
    box = SandboxHandle(backend="process", sandbox_id="x", pid=1, root=str(tmp_path), workdir="/app")
    there = msgspec.structs.replace(spec(function="wt_agent_nowhere:solve"), sandbox=box)
    with pytest.raises(ConfigurationError, match="wt_agent_nowhere:solve cannot be found"):
        harness.run(there)
