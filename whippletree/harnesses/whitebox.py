"""Our own minimal tool loop, for baselines: one shell tool over a chat-completions endpoint, all that the model sees a setting.

The loop itself is harnesses/whitebox_loop.py. Process mode copies that file into the sandbox and runs it with the standard
library alone; pool mode imports it and runs a thread per attempt, commands through the attempt's sandbox. With `compact_every`
a rollout falls into several samples: the artificially split harness.

Invariants (tests/harnesses/test_whitebox_adapter.py, test_whitebox_live.py): the two modes send equal requests and see equal
command results; the key is neither on a command line, nor in a file or record, nor in the environment of commands; importing
this takes a fraction of a second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from whippletree import sandboxes
from whippletree.errors import HarnessError
from whippletree.harnesses import whitebox_loop as loop
from whippletree.harnesses.config import WhiteboxSettings
from whippletree.harnesses.ends import crashed, last_words, timed_out
from whippletree.harnesses.packages import Adapter, interpreter, read_settings
from whippletree.harnesses.reading import record_ending, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, SandboxHandle
from whippletree.traces import atif
from whippletree.types import Struct

VERSION = "1"
FOLDER = "/logs/agent"
RECORD = f"{FOLDER}/trajectory.json"
_TIMED_OUT = 124
_RAN_OUT: dict[str, Literal["", "time", "budget"]] = {"StepLimit": "budget", "TimeLimit": "time"}


class CallRecord(Struct):
    """A tool call in the loop's record. Example: CallRecord(id="call_1", name="shell", arguments='{"command": "ls"}')"""

    id: str = ""
    name: str = ""
    arguments: str = ""


class TurnRecord(Struct):
    """One answer of the model. Example: TurnRecord(calls=(CallRecord(name="shell"),), results=("a.txt",), prompt_tokens=40)"""

    content: str = ""
    calls: tuple[CallRecord, ...] = ()
    results: tuple[str, ...] = ()
    summary: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


class RunRecord(Struct):
    """What the loop writes down (whitebox_loop.Record). Example: RunRecord(exit_status="Submitted", steps=3, compactions=1)"""

    system: str = ""
    task: str = ""
    exit_status: str = ""
    message: str = ""
    steps: int = 0
    compactions: int = 0
    turns: tuple[TurnRecord, ...] = ()


class Whitebox(Adapter):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "whitebox"
    version = VERSION
    settings = WhiteboxSettings
    facts = HarnessFacts(
        dialects=("chat",),
        streams=False,
        launches=("process", "pool"),
        shell_tool="shell",
        exit_code="1 where the model's server failed, otherwise 0; its record says how it ended.",
        variations=("tools", "system", "steps"),
        ends_at=("overflow",),
        fixed_prompt_chars=400,
        notes=("With compact_every it replaces its history by a summary, so that a rollout falls into several samples.",),
    )

    def __init__(self) -> None:
        self.read_only = interpreter(sys.prefix, sys.base_prefix)

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """Process mode: the loop's file and its configuration, the key in the environment. Raises ConfigurationError."""
        program, config = f"{FOLDER}/whitebox_loop.py", f"{FOLDER}/whitebox.json"
        given = {
            "rules": msgspec.to_builtins(settings_of(spec)),
            "task": spec.instruction,
            "base_url": spec.base_url,
            "model": spec.model,
            "timeout": spec.timeout,
        }
        return LaunchPlan(
            argv=(sys.executable, "-I", "-S", program, config, RECORD),
            environment={"OPENAI_API_KEY": spec.api_key},
            files=((program, Path(loop.__file__).read_text(encoding="utf-8")), (config, json.dumps(given))),
            trajectory=RECORD,
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """Process mode: the loop's record decides; without one, the end of its output is the message."""
        try:
            record = msgspec.json.decode(trajectory or b"{}", type=RunRecord)
        except msgspec.MsgspecError as error:
            return crashed("BrokenTrajectory", 0, str(error))
        status, steps = record.exit_status, record.steps
        if status in loop.OUTCOMES:
            return _result(status, steps, record.message)
        if exit_code == _TIMED_OUT:
            return timed_out(steps)
        return _result(status or f"Exit{exit_code}", steps, record.message or last_words(output))

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """The loop's record as ATIF; None where there is none. Raises HarnessError for one that cannot be read."""
        found = record_ending(records, "trajectory.json")
        if found is None:
            return None
        try:
            record = msgspec.json.decode(found, type=RunRecord)
        except msgspec.MsgspecError as error:
            raise HarnessError(f"{RECORD} is no record of whitebox: {error}", "look at agent.log of the attempt") from error
        return msgspec.json.encode(_trajectory(record))

    def load(self) -> None:
        """Pool mode: nothing to import."""

    def run(self, spec: AttemptSpec) -> HarnessResult:
        """Pool mode: one attempt on the calling thread; commands run in spec.sandbox, the record is in spec.output_dir.

        Raises SandboxError when the sandbox fails, HarnessError without one.
        """
        if spec.sandbox is None:
            raise HarnessError(
                f"rollout {spec.rollout_id} has no sandbox", "give the attempt a sandbox: commands must run in one"
            )
        settings = settings_of(spec)
        rules = loop.Rules(**msgspec.to_builtins(settings))
        model = loop.Model(spec.base_url, spec.api_key, spec.model, retries=rules.quick_retries, timeout=spec.timeout)
        path = Path(spec.output_dir) / "trajectory.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        shell = _sandbox_shell(spec, spec.sandbox, settings)
        agent = loop.Agent(rules, model, shell, lambda record: loop.write_record(record, path))
        try:
            record = agent.run(spec.instruction, time.monotonic() + spec.timeout)
        except loop.ModelError as error:
            agent.record.exit_status, agent.record.message = "ModelError", str(error)
            loop.write_record(agent.record, path)
            return _result("ModelError", agent.record.steps, last_words(str(error)))
        finally:
            model.close()
        return _result(record.exit_status, record.steps, record.message)


def settings_of(spec: AttemptSpec) -> WhiteboxSettings:
    """The attempt's settings, checked. Raises ConfigurationError."""
    return read_settings(WhiteboxSettings, spec, "whitebox")


def _sandbox_shell(spec: AttemptSpec, sandbox: SandboxHandle, settings: WhiteboxSettings) -> loop.Shell:
    """Runs commands in the attempt's sandbox."""
    client = sandboxes.attach(sandbox)
    environment = settings.environment | {"DONE_MESSAGE": loop.DONE_MESSAGE}

    def shell(command: str, seconds: float) -> loop.Ran:
        done = client.exec(
            ("/bin/sh", "-c", command), timeout=seconds, environment=environment, cwd=spec.workdir, user=spec.user
        )
        return loop.Ran(done.output, done.exit_code)

    return shell


def _result(status: str, steps: int, message: str) -> HarnessResult:
    crashed = status not in loop.OUTCOMES
    return HarnessResult(exit_status=status, steps=steps, crashed=crashed, message=message, ran_out=_RAN_OUT.get(status, ""))


def _trajectory(record: RunRecord) -> atif.Trajectory:
    opening = [("system", record.system)] if record.system else []
    steps = [
        atif.Step(step_id=number, source="system" if source == "system" else "user", message=text)
        for number, (source, text) in enumerate([*opening, ("user", record.task)], 1)
    ]
    for turn in record.turns:
        calls = [tool_call(call.id, call.name, call.arguments) for call in turn.calls]
        results = [
            atif.ObservationResult(source_call_id=call.id, content=shown)
            for call, shown in zip(turn.calls, turn.results, strict=False)
        ]
        steps.append(
            atif.Step(
                step_id=len(steps) + 1,
                source="agent",
                message=turn.content,
                tool_calls=calls or None,
                observation=atif.Observation(results=results) if results else None,
                metrics=atif.Metrics(prompt_tokens=turn.prompt_tokens, completion_tokens=turn.completion_tokens),
                llm_call_count=1,
                extra={"summary": True} if turn.summary else None,
            )
        )
    return atif.Trajectory(schema_version=atif.VERSION, agent=atif.Agent(name="whitebox", version=VERSION), steps=steps)
