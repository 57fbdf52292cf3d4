"""An agent that is a Python function: `def solve(context)`, with whatever client or framework it likes inside.

In a pool host the function runs on a thread, in this Python, and its commands run in the attempt's sandbox. In process mode it
runs inside the sandbox, one process per attempt, by a Python of its own if the settings name one. What it is given is the same
(callable_context.Context), so an agent moves from one to the other without a change.

Invariants (tests/harnesses/test_callable_adapter.py, test_callable_live.py):
- the key is given in the context alone: not on a command line, in a file, or in the environment of commands;
- a function that cannot be found is a ConfigurationError in a pool host, and a crash with its reason in process mode;
- both modes send the same requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from whippletree import sandboxes
from whippletree.configuration import convert
from whippletree.errors import ConfigurationError, HarnessError, WhippletreeError
from whippletree.harnesses import callable_context
from whippletree.harnesses.callable_context import Context, Ending, Output, Runner
from whippletree.harnesses.ends import crashed, last_words
from whippletree.harnesses.packages import HOME, Adapter, interpreter, read_settings
from whippletree.harnesses.python_config import CallableSettings
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, SandboxHandle
from whippletree.traces.atif import read_trajectory

OUTPUT = "/logs/agent"
FOLDER = "/opt/agent"  # where the settings' path is inside
TRAJECTORY = "trajectory.json"
_SOURCE = Path(callable_context.__file__)


class PythonCallable(Adapter):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "callable"
    version = "1"
    settings = CallableSettings
    facts = HarnessFacts(
        dialects=("chat", "responses", "messages", "gemini"),
        streams=False,
        launches=("pool", "process"),
        sampled_turn="as it sends it",
        exit_code="0 when the function returned, 75 when it was out of steps, 1 when it raised",
        variations=("steps",),
        notes=("What it sends is the function's affair: see what was captured of its first attempts before training on it.",),
    )

    def __init__(self, chosen: CallableSettings | None = None) -> None:
        self.read_only = _shown(chosen) if chosen else ()

    def configured(self, settings: Mapping[str, object]) -> PythonCallable:
        """The adapter with these settings. Raises ConfigurationError."""
        return PythonCallable(_checked(convert(CallableSettings, dict(settings), "harness callable")))

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """Process mode: this package's file for it, and a request without the key. Raises ConfigurationError."""
        chosen = _checked(read_settings(CallableSettings, spec, self.name))
        request = {
            "function": chosen.function,
            "path": FOLDER if chosen.path else "",
            "instruction": spec.instruction,
            "base_url": spec.base_url,
            "model": spec.model,
            "workdir": spec.workdir,
            "seconds": spec.timeout,
            "step_limit": chosen.step_limit,
            "command_seconds": chosen.command_seconds,
            "options": chosen.options,
        }
        program, path = f"{OUTPUT}/{_SOURCE.name}", f"{OUTPUT}/request.json"
        return LaunchPlan(
            argv=(_python(chosen), "-B", program, path),
            environment={"HOME": HOME, callable_context.KEY: spec.api_key, "PYTHONUNBUFFERED": "1"},
            files=((program, _SOURCE.read_text(encoding="utf-8")), (path, json.dumps(request))),
            trajectory=f"{OUTPUT}/{TRAJECTORY}",
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """Process mode: its exit code decides; its last line says how many steps it took."""
        ending = _ending(output)
        if exit_code == 0:
            return _result(ending or Ending(status="Returned", steps=0, message=""))
        if exit_code == callable_context.OUT_OF_STEPS:
            return _result(ending or Ending(status="OutOfSteps", steps=0, message=""))
        return crashed(_raised(output) or f"Exit{exit_code}", 0, last_words(output))

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """The ATIF file that the function left as trajectory.json in its output_dir, if it did. Raises HarnessError."""
        for path, record in records.items():
            if path.rpartition("/")[2] == TRAJECTORY:
                read_trajectory(record, path)
                return record
        return None

    def load(self) -> None:
        """Pool mode: nothing is known yet of what to import; the first attempt does it."""

    def run(self, spec: AttemptSpec) -> HarnessResult:
        """Pool mode: call the function on this thread; its commands run in spec.sandbox.

        Raises ConfigurationError when it cannot be found, SandboxError when the sandbox fails, HarnessError without a sandbox.
        """
        chosen = _checked(read_settings(CallableSettings, spec, self.name))
        if spec.sandbox is None:
            raise HarnessError(f"rollout {spec.rollout_id} has no sandbox", "give the attempt one: commands must run in it")
        try:
            function = callable_context.find(chosen.function, _folder(chosen))
        except (ImportError, AttributeError) as error:
            cause = f"harness callable: {chosen.function} cannot be found: {error}"
            raise ConfigurationError(cause, "check `function` and `path`, or set launch and `python`") from error
        context = Context(
            instruction=spec.instruction,
            base_url=spec.base_url,
            api_key=spec.api_key,
            model=spec.model,
            workdir=spec.workdir,
            output_dir=spec.output_dir,
            step_limit=chosen.step_limit,
            deadline=time.monotonic() + spec.timeout,
            options=dict(chosen.options),
            command_seconds=chosen.command_seconds,
            runner=_in_sandbox(spec.sandbox, spec.workdir),
        )
        try:
            return _result(callable_context.call(function, context))
        except (WhippletreeError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  (whatever ended the function is the attempt's result, with its class)
            told = last_words("".join(traceback.format_exception(error)))
            return crashed(type(error).__name__, context.steps, told)


def _checked(chosen: CallableSettings) -> CallableSettings:
    if not chosen.function:
        raise ConfigurationError("harness callable: function is missing", 'name it as "module:function" in the settings')
    return chosen


def _result(ending: Ending) -> HarnessResult:
    return HarnessResult(
        exit_status=ending.status,
        steps=ending.steps,
        message=ending.message,
        ran_out="budget" if ending.status == "OutOfSteps" else "",
    )


def _ending(output: str) -> Ending | None:
    """What the last line says; None where something else was printed last."""
    line = output.rstrip("\n").rpartition("\n")[2]
    try:
        return msgspec.json.decode(line.removeprefix(callable_context.ENDING), type=Ending)
    except msgspec.MsgspecError:
        return None


def _raised(output: str) -> str:
    """The class that the last line of a traceback names; "" where there is none."""
    name = output.rstrip("\n").rpartition("\n")[2].partition(":")[0].rpartition(".")[2]
    return name if "Traceback" in output and name.isidentifier() else ""


def _in_sandbox(handle: SandboxHandle, workdir: str) -> Runner:
    execute = sandboxes.attach(handle).exec

    def run(argv: Sequence[str], timeout: float) -> Output:
        done = execute(argv, timeout=timeout, cwd=workdir)
        return Output(done.exit_code, done.output, done.timed_out)

    return run


def _folder(chosen: CallableSettings) -> str:
    return str(Path(chosen.path).resolve()) if chosen.path else ""


def _python(chosen: CallableSettings) -> str:
    return os.path.abspath(chosen.python) if chosen.python else sys.executable  # noqa: PTH100  (links of an environment stay)


def _shown(chosen: CallableSettings) -> tuple[tuple[str, str], ...]:
    """The agent's folder, and what its Python needs. Raises ConfigurationError where one of them is not there."""
    if chosen.path and not Path(chosen.path).is_dir():
        raise ConfigurationError(
            f"harness callable: path {chosen.path!r} is no folder", "it is taken from the working directory"
        )
    python = Path(_python(chosen))
    if not python.is_file():
        raise ConfigurationError(f"harness callable: there is no python {chosen.python!r}", "name the file, or leave it out")
    folder = ((_folder(chosen), FOLDER),) if chosen.path else ()
    return (*folder, *interpreter(*_prefixes(python)))


def _prefixes(python: Path) -> list[Path]:
    """The folders that this Python runs from: of a virtual environment, its own and the one that it is made from."""
    found, settings = [python.resolve().parent.parent], python.parent.parent / "pyvenv.cfg"
    if settings.is_file():
        lines = dict(line.split(" = ", 1) for line in settings.read_text(encoding="utf-8").splitlines() if " = " in line)
        found += [settings.parent, Path(lines.get("home", python.parent)).parent]
    return found
