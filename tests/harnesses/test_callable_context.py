"""What a function is given, and how it is called, without a gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whippletree.harnesses import callable_context
from whippletree.harnesses.callable_context import Context, Ending, OutOfSteps, Output, call, find, run_here

SCRIPT = Path(callable_context.__file__)


def context(**fields: Any) -> Context:
    given: dict[str, Any] = {
        "instruction": "go",
        "base_url": "http://127.0.0.1:8000/v1",
        "api_key": "wt-secret-key",
        "model": "policy",
        "workdir": "/",
        "output_dir": "/tmp",
        "step_limit": 2,
        "deadline": time.monotonic() + 60,
        "options": {},
        "command_seconds": 50,
        "runner": run_here("/"),
    }
    return Context(**(given | fields))


def test_its_text_form_hides_the_key() -> None:
    assert "wt-secret-key" not in repr(context())
    assert context().root_url == "http://127.0.0.1:8000"


def test_functions_and_coroutines_end_alike() -> None:
    async def later(given: Context) -> str:
        given.step()
        return "later"

    assert call(lambda given: None, context()) == Ending("Returned", 0, "")
    assert call(lambda given: 7, context()) == Ending("Returned", 0, "7")
    assert call(later, context()) == Ending("Returned", 1, "later")


def test_the_step_limit_ends_it_and_zero_is_none() -> None:
    def endless(given: Context) -> None:
        for _ in range(100):
            given.step()

    assert call(endless, context()) == Ending("OutOfSteps", 2, "2 steps were made")
    assert call(endless, context(step_limit=0)) == Ending("Returned", 100, "")
    with pytest.raises(OutOfSteps):
        endless(context())
    with pytest.raises(ZeroDivisionError):
        call(lambda given: 1 / 0, context())


def test_commands_run_with_their_limits(tmp_path: Path) -> None:
    run = context(runner=run_here(str(tmp_path)), workdir=str(tmp_path)).run
    assert run("printf hi; printf there >&2; exit 3") == Output(3, "hithere")
    assert run(("printf", "%s", "$HOME")) == Output(0, "$HOME")
    assert run("pwd").output.strip() == str(tmp_path)
    assert run("kill -9 $$").exit_code == -9
    slow = run("(sleep 60; touch late) & echo $!; sleep 60", 3)
    assert (slow.exit_code, slow.timed_out) == (124, True)
    while not _dead(int(slow.output)):  # a signal takes a moment; the test's own limit ends this
        time.sleep(0.01)
    left = run("sleep 60 & echo $!")  # the command has ended, what it left has not: no time limit is met
    os.kill(int(left.output), signal.SIGKILL)
    assert (left.exit_code, left.timed_out) == (0, False)


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_command_ends_by_the_attempts_deadline() -> None:
    seen: list[float] = []

    def runner(argv: Any, timeout: float) -> Output:
        seen.append(timeout)
        return Output(0, "")

    deadline = time.monotonic() + 10
    given = context(runner=runner, command_seconds=30, deadline=deadline)
    given.run("x")
    assert max(deadline - time.monotonic(), 1.0) <= seen[0] <= 10
    context(runner=runner, command_seconds=30, deadline=time.monotonic() + 1000).run("x", 2)
    context(runner=runner, deadline=time.monotonic() - 5).run("x")
    assert seen[1:] == [2, 1.0]
    assert context(deadline=time.monotonic() - 5).remaining() == 0.0


def test_a_module_is_found_in_its_folder_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "wt_agent_here.py").write_text(
        "class Nested:\n    @staticmethod\n    def solve(context): return 'found'\nvalue = 3\n"
    )
    assert find("wt_agent_here:Nested.solve", str(tmp_path))(context()) == "found"
    assert find("json:dumps", "") is json.dumps
    with pytest.raises(ImportError, match="imported before"):
        find("json:dumps", str(tmp_path))
    with pytest.raises(AttributeError, match="not a function"):
        find("wt_agent_here:value", str(tmp_path))
    with pytest.raises(AttributeError):
        find("wt_agent_here:missing", str(tmp_path))
    with pytest.raises(ImportError):
        find("wt_agent_missing:solve", str(tmp_path))


def process(tmp_path: Path, body: str, **request: Any) -> subprocess.CompletedProcess[str]:
    (tmp_path / "wt_agent_process.py").write_text(body)
    given = {
        "function": "wt_agent_process:solve",
        "path": str(tmp_path),
        "instruction": "go",
        "base_url": "http://127.0.0.1:8000/v1",
        "model": "policy",
        "workdir": str(tmp_path),
        "seconds": 60,
        "step_limit": 2,
        "command_seconds": 50,
        "options": {"word": "amber"},
    }
    (tmp_path / "request.json").write_text(json.dumps(given | request))
    environment = {"PATH": os.environ["PATH"], callable_context.KEY: "wt-secret-key"}
    argv = [sys.executable, str(SCRIPT), str(tmp_path / "request.json")]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_as_a_process_it_tells_its_ending_and_hides_the_key_from_commands(tmp_path: Path) -> None:
    body = """
from callable_context import Context
def solve(context):
    assert isinstance(context, Context) and context.api_key == "wt-secret-key"
    context.step()
    print("hello")
    return context.options["word"] + context.run("env | grep -c WHIPPLETREE").output
"""
    done = process(tmp_path, body)
    assert done.returncode == 0, done.stderr
    hello, _, ending = done.stdout.strip().partition("\n")
    assert hello == "hello"
    told = json.loads(ending.removeprefix(callable_context.ENDING))
    assert told == {"status": "Returned", "steps": 1, "message": "amber0\n"}


def test_as_a_process_a_crash_and_the_end_of_steps_have_their_codes(tmp_path: Path) -> None:
    crashed = process(tmp_path, "def solve(context):\n    raise LookupError('gone')\n")
    assert crashed.returncode == callable_context.CRASHED and "LookupError: gone" in crashed.stderr
    missing = process(tmp_path, "")
    assert missing.returncode == callable_context.CRASHED and "AttributeError" in missing.stderr
    out = process(tmp_path, "async def solve(context):\n    while True: context.step()\n")
    assert out.returncode == callable_context.OUT_OF_STEPS and '"OutOfSteps", "steps": 2' in out.stdout
