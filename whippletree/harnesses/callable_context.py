"""What an agent that is a Python function is given, and how it is called. Needs nothing but Python's own library.

A pool host imports this file; in process mode a copy of it runs inside the sandbox, by whatever Python the agent needs:
`python callable_context.py REQUEST.json` with the key in WHIPPLETREE_KEY. The function sees the same context in both.

Invariants (tests/harnesses/test_callable_context.py):
- commands of `Context.run` do not see the key, and end at their time limit with all that they started;
- what the function raises ends the attempt as crashed; OutOfSteps ends it as out of budget;
- the context's text form does not show the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

KEY = "WHIPPLETREE_KEY"
ENDING = "whippletree-ending: "
CRASHED, OUT_OF_STEPS = 1, 75  # exit codes
MESSAGE_LIMIT = 2000  # characters of what a function returns that are kept
TIMED_OUT = 124
OUTPUT_LIMIT = 1_000_000  # bytes of a command's output that are kept


class OutOfSteps(Exception):
    """The function asked for a step beyond its limit."""


@dataclasses.dataclass(frozen=True)
class Output:
    """A command's end: stdout and stderr together; the exit code is negative for a signal, and 124 at the time limit."""

    exit_code: int
    output: str
    timed_out: bool = False


Runner = Callable[[Sequence[str], float], Output]


@dataclasses.dataclass
class Context:
    """One attempt, as the function sees it.

    `base_url` ends in /v1 (for clients of OpenAI's dialects; `root_url` for the others), `api_key` is this attempt's own,
    `model` is the name to ask for. `deadline` is in seconds of time.monotonic(). `trajectory.json` that the function leaves in
    `output_dir`, in ATIF, is compared with what was captured. `options` are the settings' own.
    """

    instruction: str
    base_url: str
    api_key: str = dataclasses.field(repr=False)
    model: str
    workdir: str
    output_dir: str
    step_limit: int
    deadline: float
    options: dict[str, Any]
    command_seconds: float
    runner: Runner = dataclasses.field(repr=False)
    steps: int = 0

    @property
    def root_url(self) -> str:
        """The gateway without /v1: what clients of Anthropic's and Gemini's dialects want."""
        return self.base_url.removesuffix("/").removesuffix("/v1")

    def remaining(self) -> float:
        """Seconds until the attempt's time is up, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def step(self) -> int:
        """Count a model call that is about to be made; its number, from 1. Raises OutOfSteps beyond `step_limit` (0: none)."""
        if self.step_limit and self.steps >= self.step_limit:
            raise OutOfSteps(f"{self.step_limit} steps were made")
        self.steps += 1
        return self.steps

    def run(self, command: str | Sequence[str], timeout: float = 0.0) -> Output:
        """Run a command (text: by the shell) in the sandbox, in `workdir`. `timeout` in seconds, 0: the settings' limit."""
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
        return self.runner(argv, min(timeout or self.command_seconds, max(1.0, self.remaining())))


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a function ended: `status` is "Returned", "OutOfSteps" or the class of what it raised."""

    status: str
    steps: int
    message: str


_importing = threading.Lock()


def find(name: str, path: str) -> Callable[[Context], Any]:
    """The function "module:function", with the folder `path` searched first. Raises ImportError or AttributeError."""
    module_name, _, attribute = name.partition(":")
    with _importing:
        if path and path not in sys.path:
            sys.path.insert(0, path)
        module = importlib.import_module(module_name)
    if path and not os.path.realpath(module.__file__ or "").startswith(os.path.realpath(path) + os.sep):
        raise ImportError(f"module {module_name} is {module.__file__}, which was imported before the one in {path}")
    found = module
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise AttributeError(f"{name} is not a function")
    return found


def call(function: Callable[[Context], Any], context: Context) -> Ending:
    """Call it, a coroutine function on an event loop of its own. Raises what it raises, but OutOfSteps."""
    try:
        value = function(context)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except OutOfSteps as error:
        return Ending("OutOfSteps", context.steps, str(error))
    return Ending("Returned", context.steps, "" if value is None else str(value)[:MESSAGE_LIMIT])


async def _awaited(value: Any) -> Any:
    return await value


def run_here(workdir: str) -> Runner:
    """Commands of this machine: those of process mode, which is inside the sandbox already."""

    def run(argv: Sequence[str], timeout: float) -> Output:
        timed_out = False
        with tempfile.TemporaryFile() as file:  # not a pipe: what it leaves in the background delays nothing
            process = subprocess.Popen(
                argv, cwd=workdir, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            file.seek(0)
            text = file.read(OUTPUT_LIMIT).decode("utf-8", errors="replace")
        return Output(TIMED_OUT if timed_out else process.returncode, text, timed_out)

    return run


def main(argv: list[str]) -> int:
    """Process mode: one attempt from a request file; its last line of output is its ending."""
    with open(argv[1], encoding="utf-8") as file:  # noqa: PTH123 (this file needs few imports: it starts in every attempt)
        request = json.load(file)
    context = Context(
        instruction=request["instruction"],
        base_url=request["base_url"],
        api_key=os.environ.pop(KEY),
        model=request["model"],
        workdir=request["workdir"],
        output_dir=os.path.dirname(os.path.abspath(argv[1])),  # noqa: PTH100, PTH120
        step_limit=request["step_limit"],
        deadline=time.monotonic() + request["seconds"],
        options=request["options"],
        command_seconds=request["command_seconds"],
        runner=run_here(request["workdir"]),
    )
    sys.modules["callable_context"] = sys.modules["__main__"]  # an agent may import it by its own name
    ending = call(find(request["function"], request["path"]), context)
    sys.stdout.flush()
    print(ENDING + json.dumps(dataclasses.asdict(ending)), flush=True)  # noqa: T201 (it is what the adapter reads)
    return 0 if ending.status == "Returned" else OUT_OF_STEPS


if __name__ == "__main__":
    sys.exit(main(sys.argv))
