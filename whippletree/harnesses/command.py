"""Any program that takes a base URL and a key, described in the run file instead of in an adapter.

    [sources.harness]
    name = "command"
    [sources.harness.settings]
    argv = ["/opt/agent/run", "--model", "{model}", "{instruction}"]
    read_only = [["/srv/agent", "/opt/agent"]]

The program finds the gateway and its key in the variables that clients of its dialect read (OPENAI_BASE_URL and OPENAI_API_KEY,
ANTHROPIC_..., GEMINI_...), or wherever the settings put them.

Invariants (tests/harnesses/test_command_adapter.py):
- the key is on no command line and in no standard input; settings that would put it there are refused;
- what stands in for a placeholder is never read for placeholders again: an instruction cannot ask for the key;
- one object is as its settings make it (`configured`); without settings it can only be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses.packages import HOME, Adapter, read_settings, root_of
from whippletree.harnesses.python_config import CommandSettings
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan
from whippletree.traces.atif import read_trajectory

OUTPUT = "/logs/agent"
MESSAGE_LIMIT = 2000  # characters of a program's output that its result keeps
_PLACEHOLDER = re.compile(r"\{(instruction|base_url|root_url|model|workdir|output_dir|api_key)\}")
_VARIABLES = {
    "chat": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "responses": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "messages": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    "gemini": ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
}


class Command(Adapter):
    """The adapter. One object serves any number of attempts with its settings, from any thread."""

    name = "command"
    version = "1"
    settings = CommandSettings
    facts = HarnessFacts(
        dialects=("chat", "responses", "messages", "gemini"),
        streams=False,
        sampled_turn="as it sends it",
        exit_code="as the settings success_codes, crash_codes and budget_codes say",
        notes=("What it sends is the program's affair: see what was captured of its first attempts before training on it.",),
    )

    def __init__(self, chosen: CommandSettings | None = None) -> None:
        self._chosen = chosen
        self.read_only = chosen.read_only if chosen else ()

    def configured(self, settings: Mapping[str, object]) -> Command:
        """The adapter with these settings. Raises ConfigurationError."""
        return Command(_checked(convert(CommandSettings, dict(settings), "harness command")))

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The settings' command, with what the attempt puts in its placeholders. Raises ConfigurationError."""
        chosen = _checked(read_settings(CommandSettings, spec, self.name))
        values = _values(chosen, spec)
        url, key = _VARIABLES[chosen.dialect]
        environment = {"HOME": HOME, url: values["base_url"], key: spec.api_key}
        return LaunchPlan(
            argv=tuple(_filled(word, values) for word in chosen.argv),
            environment=environment | {name: _filled(text, values) for name, text in chosen.environment.items()},
            files=tuple((path, _filled(text, values)) for path, text in chosen.files.items()),
            stdin=_filled(chosen.stdin, values),
            trajectory=chosen.trajectory,
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """What the settings say of the exit code; the message is the end of the program's output."""
        chosen = self._settings()
        steps, message = _turns(trajectory), output[-MESSAGE_LIMIT:]
        if exit_code in chosen.success_codes:
            return HarnessResult(exit_status="Done", steps=steps, message=message)
        status = f"Exit{exit_code}"
        if exit_code in chosen.budget_codes:
            return HarnessResult(exit_status=status, steps=steps, message=message, ran_out="budget")
        crashed = exit_code in chosen.crash_codes or not chosen.crash_codes
        return HarnessResult(exit_status=status, steps=steps, message=message, crashed=crashed)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """The program's own ATIF file, where the settings name one and it wrote it. Raises HarnessError for any other file."""
        record = records.get(self._settings().trajectory)
        if record is not None:
            read_trajectory(record, self._settings().trajectory)
        return record

    def _settings(self) -> CommandSettings:
        if self._chosen is None:
            raise HarnessError("harness command has no settings", "use the object that configured(settings) gives")
        return self._chosen


def _checked(chosen: CommandSettings) -> CommandSettings:
    if not chosen.argv:
        raise ConfigurationError(
            "harness command: argv is missing", "write the program's command line in the harness's settings"
        )
    return chosen


def _values(chosen: CommandSettings, spec: AttemptSpec) -> dict[str, str]:
    root = root_of(spec.base_url)
    return {
        "instruction": spec.instruction,
        "base_url": spec.base_url if chosen.dialect in ("chat", "responses") else root,
        "root_url": root,
        "model": spec.model,
        "workdir": spec.workdir,
        "output_dir": OUTPUT,
        "api_key": spec.api_key,
    }


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


class _AgentStep(msgspec.Struct):
    source: str


class _Steps(msgspec.Struct):
    steps: list[_AgentStep]


def _turns(trajectory: bytes | None) -> int:
    """Model turns of an ATIF file; 0 where there is none that can be read."""
    try:
        steps = msgspec.json.decode(trajectory or b'{"steps": []}', type=_Steps).steps
    except msgspec.MsgspecError:
        return 0
    return sum(step.source == "agent" for step in steps)
