"""Claude Code, unmodified: Anthropic's Messages, streamed.

Its record is the transcript that it writes below its configuration folder while it works, one JSON line per block of a turn;
each sub-agent has a transcript of its own. Blocks of one turn share the id of its message.

Invariants (tests/harnesses/test_claude_code_adapter.py): the key is in the environment alone; every turn that the model sampled
is one step of the account; sub-agents are trajectories of their own, referred to by the step that started them; an error of the
API is a crash, whatever the exit code and the subtype say, but a prompt that no longer fits is a budget that ran out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from whippletree.harnesses.atif_steps import Steps, counts
from whippletree.harnesses.config import ClaudeCodeSettings
from whippletree.harnesses.ends import crashed, last_words, out_of_context, timed_out, turn_too_long
from whippletree.harnesses.packages import HOME, Packaged, read_settings, root_of
from whippletree.harnesses.reading import TIMED_OUT, json_lines, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent

VERSION = "2.1.332"
CONFIG = f"{HOME}/.claude"
TRANSCRIPTS = f"{CONFIG}/projects/**/*.jsonl"
LEAN_TOOLS = ("Bash", "Read", "Edit", "Write")
_SUBAGENT = "agent-"  # what names of sub-agents' transcripts begin with
_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE",
    "CLAUDE_CODE_DISABLE_FEEDBACK_SURVEY",
    "DISABLE_AUTOUPDATER",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_INSTALLATION_CHECKS",
    "DISABLE_GROWTHBOOK",
    "IS_SANDBOX",
)
_LEAN = (
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY",
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
    "DISABLE_PROMPT_CACHING",
)
_CUT = "output token maximum"  # in its own words
_SYNTHETIC = "<synthetic>"  # the model of a turn that the harness wrote itself


class _Outcome(msgspec.Struct):
    """The object that it prints at its end."""

    type: str = ""
    subtype: str = ""
    is_error: bool = False
    num_turns: int = 0
    result: str = ""
    terminal_reason: str = ""
    api_error_status: int | str | None = None
    errors: list[str] = []


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class _Message(msgspec.Struct):
    id: str = ""
    role: str = ""
    model: str = ""
    content: str | list[dict[str, Any]] = ""
    usage: _Usage | None = None


class _Line(msgspec.Struct):
    """The parts of a line of a transcript that are read here."""

    type: str = ""
    timestamp: str = ""
    message: _Message = msgspec.field(default_factory=_Message)
    isApiErrorMessage: bool = False
    toolUseResult: Any = None


class ClaudeCode(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "claude-code"
    version = VERSION
    package = Package(kind="npm", name="@anthropic-ai/claude-code", version=VERSION, size_mb=384)
    settings = ClaudeCodeSettings
    facts = HarnessFacts(
        dialects=("messages",),
        streams=True,
        shell_tool="Bash",
        shell_extra={"description": "run a command"},
        second_request="normalised",
        thread_headers=("X-Claude-Code-Session-Id", "x-claude-code-agent-id"),
        subagents=True,
        compacts=True,
        exit_code="0: the turn ended; 1: an error or a limit; its output says which, with a subtype that may say success",
        variations=("tools", "system", "steps"),
        fixed_prompt_chars=12_000,
        record_differs=("arguments",),
        probe=Probe(
            subagent_tool="Agent",
            subagent_arguments={"description": "one command", "prompt": "{prompt}", "subagent_type": "general-purpose"},
            subagent_settings={"profile": "full", "environment": {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}},
            compaction={"context_tokens": 100_000},
        ),
        notes=(
            "the system prompt holds today's date, the working directory and facts of the machine and the git repository",
            "a 400 makes it drop features and change its tools, in up to six requests at once",
            "profile full: a line of the system prompt changes with each request, and marks for caches move (both normalised)",
            "transcripts count no tokens of a turn that was cut off",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction on standard input, texts as files, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(ClaudeCodeSettings, spec, self.name)
        argv = [
            *self.binary("claude"),
            "-p",
            "--output-format",
            "json",
            "--dangerously-skip-permissions",
            "--strict-mcp-config",
        ]
        tools = settings.tools or (() if settings.profile == "full" else LEAN_TOOLS)
        argv += ["--bare"] if settings.profile == "bare" else []
        argv += ["--tools", ",".join(tools)] if tools else []
        argv += ["--max-turns", str(settings.step_limit)] if settings.step_limit else []
        files = []
        for option, text in (("system-prompt", settings.system_prompt), ("append-system-prompt", settings.system_append)):
            if text:
                files.append((f"{CONFIG}/{option}.md", text))
                argv += [f"--{option}-file", f"{CONFIG}/{option}.md"]
        return LaunchPlan(
            argv=(*argv, *settings.arguments),
            environment=environment(settings, spec),
            files=tuple(files),
            stdin=spec.instruction,
            records=(TRANSCRIPTS,),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """The object that it printed last decides."""
        end = next((one for one in json_lines(output, _Outcome) if one.type == "result"), None)
        steps = end.num_turns if end is not None else 0
        if exit_code == TIMED_OUT:
            return timed_out(steps)
        if end is None:
            return crashed(f"Exit{exit_code}", steps, last_words(output))
        said = last_words(end.result or "\n".join(end.errors))
        if end.subtype in ("error_max_turns", "error_max_budget_usd"):
            return HarnessResult(exit_status="TurnLimit", steps=max(0, steps - 1), message=said, ran_out="budget")
        if end.terminal_reason == "prompt_too_long":
            return out_of_context(steps, said)
        if end.is_error and _CUT in said:
            return turn_too_long(steps, said)
        if end.is_error or end.subtype != "success" or exit_code != 0:
            status = "ApiError" if end.is_error and end.subtype == "success" else end.subtype or f"Exit{exit_code}"
            return crashed(status, steps, said or last_words(output))
        return HarnessResult(exit_status="Completed", steps=steps, message=said)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its transcripts as one document: the main one, and one trajectory for each sub-agent."""
        agent = Agent(name=self.name, version=self.version)
        told = {PurePosixPath(path).stem: _tell(list(json_lines(records[path], _Line))) for path in sorted(records)}
        main = next((name for name in told if not name.startswith(_SUBAGENT)), None)
        if main is None:
            return None
        for steps, started in told.values():
            for call_id, name in started:
                steps.refer(call_id, name)
        below = [steps.trajectory(agent, trajectory_id=name) for name, (steps, _) in told.items() if name.startswith(_SUBAGENT)]
        return msgspec.json.encode(told[main][0].trajectory(agent, main, subagents=below))


def environment(settings: ClaudeCodeSettings, spec: AttemptSpec) -> dict[str, str]:
    """The variables of its process."""
    found = {
        "HOME": HOME,
        "CLAUDE_CONFIG_DIR": CONFIG,
        "ANTHROPIC_BASE_URL": root_of(spec.base_url),
        "ANTHROPIC_API_KEY": spec.api_key,
        "CLAUDE_CODE_MAX_RETRIES": str(settings.request_retries),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(settings.output_tokens),
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(settings.context_tokens),
        "BASH_DEFAULT_TIMEOUT_MS": str(1000 * settings.command_seconds),
        **dict.fromkeys(_MODELS, settings.model or spec.model),
        **dict.fromkeys(_QUIET, "1"),
    }
    if settings.profile != "full":
        found |= {**dict.fromkeys(_LEAN, "1"), "CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}
    if not settings.compaction:
        found["DISABLE_AUTO_COMPACT"] = "1"
    return found | settings.environment


def _tell(lines: Sequence[_Line]) -> tuple[Steps, list[tuple[str, str]]]:
    """The steps of one transcript, and which tool calls of it started which sub-agents."""
    steps, started = Steps(), []
    turns: dict[str, list[_Line]] = {}
    for line in lines:
        if line.type == "assistant":
            turns.setdefault(line.message.id, []).append(line)
    for line in lines:
        if line.type == "assistant" and line is turns[line.message.id][0]:
            _add_turn(steps, turns[line.message.id])
        elif line.type == "user":
            _add_message(steps, line)
            call_id = next((part.get("tool_use_id") for part in _parts(line.message, "tool_result")), None)
            name = line.toolUseResult.get("agentId") if isinstance(line.toolUseResult, dict) else None
            if call_id and name:
                started.append((str(call_id), f"{_SUBAGENT}{name}"))
    return steps, started


def _add_turn(steps: Steps, lines: Sequence[_Line]) -> None:
    """One turn from the lines of its blocks."""
    last = lines[-1].message
    own = last.model == _SYNTHETIC or lines[-1].isApiErrorMessage or last.usage is None
    usage = last.usage or _Usage()
    prompt = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    steps.turn(
        "".join(_text(line.message) for line in lines),
        [
            tool_call(str(part.get("id", "")), str(part.get("name", "")), part.get("input") or {})
            for line in lines
            for part in _parts(line.message, "tool_use")
        ],
        None if own else counts(prompt, usage.output_tokens, usage.cache_read_input_tokens),
        reasoning="".join(str(part.get("thinking", "")) for line in lines for part in _parts(line.message, "thinking")),
        timestamp=lines[0].timestamp or None,
        model=last.model or None,
    )


def _add_message(steps: Steps, line: _Line) -> None:
    """What tools gave, or what the user said."""
    for part in _parts(line.message, "tool_result"):
        content = part.get("content")
        text = content if isinstance(content, str) else "".join(str(one.get("text", "")) for one in content or ())
        steps.observe(str(part.get("tool_use_id", "")), text, failed=bool(part.get("is_error")))
    if text := _text(line.message):
        steps.say("user", text, line.timestamp or None)


def _parts(message: _Message, kind: str) -> list[dict[str, Any]]:
    return [part for part in message.content if part.get("type") == kind] if isinstance(message.content, list) else []


def _text(message: _Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(str(part.get("text", "")) for part in _parts(message, "text"))
