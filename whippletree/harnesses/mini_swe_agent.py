"""mini-SWE-agent, unmodified, by its own configuration: as a process inside the sandbox, or many at once in a pool host.

Process mode runs `python -m minisweagent.run.mini` with a configuration file; commands run by mini's own local environment,
next to it. Pool mode imports mini once and runs its default agent on a thread per attempt; mini's two plug-in points, the model
class and the environment class, point at `mini_model` and `mini_environment`, which differ from mini's own only in where the
key comes from and where commands run. Both modes send the same requests.

Mini ends when a command prints COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT first. Tasks ship a `submit` command that prints
DONE_MESSAGE where that is set; commands here have it set.

Invariants (tests/harnesses/): the two modes send equal requests and see equal command results; the key is neither on a command
line, nor in the configuration, nor in the trajectory, nor in the environment of commands; nothing but the gateway is contacted.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from whippletree.errors import HarnessError, SandboxError
from whippletree.harnesses.atif_steps import Steps, counts
from whippletree.harnesses.config import MiniSettings
from whippletree.harnesses.ends import crashed, last_words, timed_out
from whippletree.harnesses.packages import Adapter, interpreter, read_settings
from whippletree.harnesses.reading import record_ending, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent

if TYPE_CHECKING:
    from whippletree.harnesses.mini_model import Connection

VERSION = "2.4.6"
DONE_MESSAGE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FOLDER = "/logs/agent"
_RAN_OUT: dict[str, Literal["", "time", "budget"]] = {"LimitsExceeded": "budget", "TimeExceeded": "time"}
_OUTCOMES = frozenset({"Submitted", "LimitsExceeded", "TimeExceeded", "RepeatedFormatError", "ContextWindowExceededError"})
_TIMED_OUT = 124
_ATTEMPTS = "3"
_SWITCHES = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": _ATTEMPTS,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
}


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct):
    id: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


class _Spoken(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Spoken = msgspec.field(default_factory=_Spoken)


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached = msgspec.field(default_factory=_Cached)


class _Response(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Extra(msgspec.Struct):
    response: _Response | str | None = None


class _Message(msgspec.Struct):
    """A message of the history. Where a turn could not be used, it is in `extra` of the message that says so."""

    role: str = ""
    content: Any = None
    tool_call_id: str = ""
    extra: _Extra | None = None


class _Stats(msgspec.Struct):
    api_calls: int = 0


class _Info(msgspec.Struct):
    exit_status: str = ""
    submission: str = ""
    model_stats: _Stats = msgspec.field(default_factory=_Stats)


class _Trajectory(msgspec.Struct):
    """The parts of mini's trajectory file that are read here."""

    info: _Info = msgspec.field(default_factory=_Info)


class _History(msgspec.Struct):
    """The messages of mini's trajectory file."""

    messages: list[_Message] = []


class MiniSweAgent(Adapter):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "mini-swe-agent"
    version = VERSION
    package = Package(kind="extra", name="mini-swe-agent", version=VERSION, size_mb=754)
    settings = MiniSettings
    facts = HarnessFacts(
        dialects=("chat",),
        streams=False,
        launches=("process", "pool"),
        shell_tool="bash",
        exit_code="0 also where a limit ended it; its trajectory says how it ended.",
        variations=("system", "steps"),
        fixed_prompt_chars=700,
        ends_at=("overflow",),
        probe=Probe(finish_tool="bash", finish_arguments={"command": f"echo {DONE_MESSAGE}"}),
        notes=(
            "A turn whose tool call cannot be read is dropped from the history.",
            "Starting its process costs about eight CPU-seconds; a pool host pays that once.",
        ),
    )

    def __init__(self) -> None:
        self.read_only = interpreter(sys.prefix, sys.base_prefix)
        self._connection: Connection | None = None

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """Process mode: a command line without secrets, the configuration as a file, the key in the environment.

        Raises HarnessError where the pinned package is not installed, ConfigurationError for a wrong setting.
        """
        _check_version()
        settings = settings_of(spec)
        config = configuration(settings, spec)
        config["environment"]["env"] |= {"OPENAI_API_KEY": ""}  # mini hands its own environment on to commands
        path, trajectory = f"{FOLDER}/mini.yaml", f"{FOLDER}/trajectory.json"
        argv = (sys.executable, "-m", "minisweagent.run.mini", "-y", "--exit-immediately", "-c", path, "-o", trajectory)
        return LaunchPlan(
            argv=argv,
            environment=_SWITCHES | {"OPENAI_API_KEY": spec.api_key, "OPENAI_BASE_URL": spec.base_url},
            files=((path, json.dumps(config | {"run": {"task": spec.instruction}})),),
            trajectory=trajectory,
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """Process mode: mini's own record decides; without one, the end of its output is the message."""
        try:
            info = msgspec.json.decode(trajectory or b"{}", type=_Trajectory).info
        except msgspec.MsgspecError as error:
            return crashed("BrokenTrajectory", 0, str(error))
        if exit_code == _TIMED_OUT and info.exit_status not in _OUTCOMES:
            steps = info.model_stats.api_calls
            return timed_out(steps)
        if info.exit_status in _OUTCOMES:
            return HarnessResult(
                exit_status=info.exit_status,
                steps=info.model_stats.api_calls,
                message=info.submission,
                ran_out=_RAN_OUT.get(info.exit_status, ""),
            )
        status = info.exit_status or f"Exit{exit_code}"
        return crashed(status, info.model_stats.api_calls, last_words(output))

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Mini's trajectory; a turn that it dropped from its history is told from the message that says why."""
        data = record_ending(records, "/trajectory.json")
        if data is None:
            return None
        steps = Steps()
        for message in msgspec.json.decode(data, type=_History).messages:
            response = message.extra.response if message.extra is not None else None
            if isinstance(response, _Response) and response.choices:
                _tell(steps, response)
            if message.role in ("system", "user"):
                steps.say("system" if message.role == "system" else "user", _text(message.content))
            elif message.role == "tool":
                steps.observe(message.tool_call_id, _text(message.content))
        return msgspec.json.encode(steps.trajectory(Agent(name=self.name, version=self.version)))

    def load(self) -> None:
        """Import mini: seconds, once per process. Sets mini's switches in this process's environment. Raises HarnessError."""
        if self._connection is not None:
            return
        _check_version()
        os.environ.update(_SWITCHES)
        os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", str(Path(tempfile.gettempdir()) / f"mini-swe-agent-{os.geteuid()}"))
        try:
            from whippletree.harnesses import mini_environment  # noqa: F401  (imported here, so that no attempt pays for it)
            from whippletree.harnesses.mini_model import Connection
        except ImportError as error:
            raise HarnessError(
                f"mini-swe-agent cannot be imported: {error}", "reinstall the extra `whippletree[mini]`"
            ) from error
        self._connection = Connection()

    def run(self, spec: AttemptSpec) -> HarnessResult:
        """Pool mode: one attempt on the calling thread; commands run in spec.sandbox, the trajectory is in spec.output_dir.

        Raises SandboxError when the sandbox fails, HarnessError when `load` was not called or there is no sandbox.
        """
        if self._connection is None:
            raise HarnessError("mini-swe-agent is not loaded", "call load() first")
        if spec.sandbox is None:
            raise HarnessError(
                f"rollout {spec.rollout_id} has no sandbox", "give the attempt a sandbox: commands must run in one"
            )
        settings = settings_of(spec)
        config = configuration(settings, spec)
        agent = self._connection.agent(spec, spec.sandbox, settings, config)
        try:
            outcome = agent.run(spec.instruction)
        except SandboxError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever ended mini is the attempt's result, with its class)
            status = type(error).__name__
            return _result(status, agent.n_calls, last_words(str(error)))
        return _result(str(outcome.get("exit_status", "")), agent.n_calls, str(outcome.get("submission", "")))


def _tell(steps: Steps, response: _Response) -> None:
    spoken, usage = response.choices[0].message, response.usage
    steps.turn(
        spoken.content or "",
        [tool_call(call.id, call.function.name, call.function.arguments) for call in spoken.tool_calls or ()],
        counts(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens or 0),
        reasoning=spoken.reasoning_content or "",
    )


def _text(content: Any) -> str:
    """The text of a message's content, which may be parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _result(status: str, steps: int, message: str) -> HarnessResult:
    ran_out = _RAN_OUT.get(status, "")
    return HarnessResult(exit_status=status, steps=steps, crashed=status not in _OUTCOMES, message=message, ran_out=ran_out)


def settings_of(spec: AttemptSpec) -> MiniSettings:
    """The attempt's settings, checked. Raises ConfigurationError."""
    return read_settings(MiniSettings, spec, "mini-swe-agent")


def configuration(settings: MiniSettings, spec: AttemptSpec) -> dict[str, Any]:
    """Mini's configuration of an attempt, for both modes; no secret is in it."""
    model: dict[str, Any] = {
        "model_class": "litellm_textbased" if settings.mode == "text" else "litellm",
        "model_name": f"openai/{spec.model}",
        "model_kwargs": {"timeout": spec.timeout, "max_retries": settings.quick_retries},
        "cost_tracking": "ignore_errors",
    }
    optional = {
        "observation_template": settings.observation_template,
        "format_error_template": settings.format_error_template,
        "action_regex": settings.action_regex if settings.mode == "text" else "",
    }
    return {
        "agent": {
            "system_template": settings.system_template,
            "instance_template": settings.instance_template,
            "step_limit": settings.step_limit,
            "cost_limit": 0.0,
            "wall_time_limit_seconds": max(1, int(spec.timeout)),
            "max_consecutive_format_errors": settings.format_error_limit,
        },
        "model": model | {key: value for key, value in optional.items() if value},
        "environment": {
            "environment_class": "local",
            "cwd": spec.workdir,
            "timeout": settings.command_seconds,
            "env": {"PAGER": "cat", "MANPAGER": "cat"} | settings.environment | {"DONE_MESSAGE": DONE_MESSAGE},
        },
    }


def _check_version() -> None:
    found = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.version("mini-swe-agent")
    if found != VERSION:
        cause = f"mini-swe-agent {VERSION} is wanted, {found or 'none'} is installed"
        raise HarnessError(cause, "install the extra `whippletree[mini]`")
