"""Codex, unmodified: OpenAI's Responses, streamed.

Its record is the rollout file that it writes while it works, one JSON line per item; a record of token usage ends each turn of
the model. Each sub-agent has a rollout file of its own. The native program is started, not the script around it, so that no
Node is needed inside.

Invariants (tests/harnesses/test_codex_adapter.py): the key is in the environment alone, and commands are started without it;
every turn that the model sampled is one step of the account; sub-agents are trajectories of their own, referred to by the step
that started them.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import msgspec

from whippletree.configuration import toml_value
from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.config import CodexSettings
from whippletree.harnesses.ends import crashed, last_words, out_of_context, timed_out, turn_too_long
from whippletree.harnesses.packages import HOME, Packaged, read_settings
from whippletree.harnesses.reading import TIMED_OUT, json_lines, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent, StepToolCall

VERSION = "0.171.0"
CODEX_HOME = f"{HOME}/.codex"
SESSIONS = f"{CODEX_HOME}/sessions/**/*.jsonl"
INSTRUCTIONS = f"{CODEX_HOME}/instructions.md"
KEY = "WHIPPLETREE_KEY"
_OVERFLOW = "ran out of room in the model's context window"  # in its own words
_CUT = "reason: max_output_tokens"
_MACHINES = {"x86_64": ("x64", "x86_64"), "aarch64": ("arm64", "aarch64")}
_LEAN_FEATURES = dict.fromkeys(
    ("plugins", "apps", "goals", "remote_plugin", "view_image", "image_generation", "tool_suggest", "hooks", "sleep_tool"),
    False,
)
_LEAN: dict[str, Any] = {
    "web_search": "disabled",
    "agents": {"enabled": False},
    "skills": {"include_instructions": False, "bundled": {"enabled": False}},
    "tools": {"experimental_request_user_input": {"enabled": False}},
    "include_permissions_instructions": False,
    "include_collaboration_mode_instructions": False,
}


class _Error(msgspec.Struct):
    message: str = ""


class _Item(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Event(msgspec.Struct):
    """The parts of a line of its output that are read here."""

    type: str = ""
    item: _Item = msgspec.field(default_factory=_Item)
    error: _Error | None = None
    message: str = ""


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0


class _Payload(msgspec.Struct):
    """An item of a rollout file: a message, a thought, a call, what it gave, a count of tokens, or the file's own head."""

    type: str = ""
    id: str = ""
    role: str = ""
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None
    name: str = ""
    namespace: str = ""
    arguments: str = ""
    input: str = ""
    call_id: str = ""
    output: Any = None
    usage: _Usage | None = None
    message: str = ""
    parent_thread_id: str = ""


class _Line(msgspec.Struct):
    type: str = ""
    timestamp: str = ""
    payload: _Payload = msgspec.field(default_factory=_Payload)


class Codex(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "codex"
    version = VERSION
    package = Package(kind="npm", name="@openai/codex", version=VERSION, size_mb=424)
    settings = CodexSettings
    facts = HarnessFacts(
        dialects=("responses",),
        streams=True,
        shell_tool="exec_command",
        shell_argument="cmd",
        sampled_turn="exact with item ids, reasoning encrypted",
        thread_headers=("session-id", "thread-id", "x-codex-parent-thread-id", "x-openai-subagent", "x-codex-turn-metadata"),
        subagents=True,
        compacts=True,
        exit_code="0: the turn ended; 1: an error; its last event says which",
        variations=("tools", "system"),
        fixed_prompt_chars=20_000,
        ends_at=("overflow",),
        probe=Probe(compaction={"compact_tokens": 40_000}),
        notes=(
            "a message holds today's date and the working directory (environment_context)",
            "a lost connection is tried again in rising pauses; a stream that broke is asked for again with an equal body",
            "a command that runs longer than ten seconds goes on in the background, and the model is shown a session of it",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction on standard input, its configuration as a file, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(CodexSettings, spec, self.name)
        argv = (*self.binary("codex"), "exec", "--json", "--color", "never", "--skip-git-repo-check")
        files = [(f"{CODEX_HOME}/config.toml", configuration(settings, spec))]
        if settings.system_prompt:
            files.append((INSTRUCTIONS, settings.system_prompt))
        return LaunchPlan(
            argv=(*argv, "--dangerously-bypass-approvals-and-sandbox", *settings.arguments, "-"),
            environment={"HOME": HOME, "CODEX_HOME": CODEX_HOME, "NO_COLOR": "1", KEY: spec.api_key},
            files=tuple(files),
            stdin=spec.instruction,
            records=(SESSIONS,),
        )

    def binary(self, name: str) -> tuple[str, ...]:
        """The native program of this machine's kind; the script that npm installs where there is none."""
        short, long = _MACHINES.get(platform.machine(), ("", ""))
        native = f"node_modules/@openai/codex-linux-{short}/vendor/{long}-unknown-linux-musl/bin/{name}"
        return (f"{self.inside}/{native}",) if (self.folder / native).is_file() else super().binary(name)

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """The last event of a turn's end decides."""
        events = list(json_lines(output, _Event))
        items = [event.item for event in events if event.type == "item.completed"]
        steps = sum(item.type not in ("agent_message", "reasoning", "error") for item in items) + 1 if events else 0
        if exit_code == TIMED_OUT:
            return timed_out(steps)
        said = next((item.text for item in reversed(items) if item.type == "agent_message"), "")
        end = next((event for event in reversed(events) if event.type in ("turn.completed", "turn.failed")), None)
        if end is not None and end.type == "turn.completed" and exit_code == 0:
            return HarnessResult(exit_status="Completed", steps=steps, message=last_words(said))
        if end is not None and end.error is not None and _OVERFLOW in end.error.message:
            return out_of_context(steps, end.error.message)
        if end is not None and end.error is not None and _CUT in end.error.message:
            return turn_too_long(steps, end.error.message)
        if end is not None and end.error is not None:
            return crashed("TurnFailed", steps, last_words(end.error.message))
        return crashed(f"Exit{exit_code}", steps, last_words(output))

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its rollout files as one document: the main one, and one trajectory for each sub-agent."""
        agent = Agent(name=self.name, version=self.version)
        told = [_Rollout(records[path]) for path in sorted(records)]
        main = next((rollout for rollout in told if not rollout.parent), None)
        if main is None:
            return None
        names = {rollout.name for rollout in told}
        for rollout in told:
            rollout.refer(names)
        below = [rollout.steps.trajectory(agent, trajectory_id=rollout.name) for rollout in told if rollout.parent]
        return msgspec.json.encode(main.steps.trajectory(agent, main.name, subagents=below))


def configuration(settings: CodexSettings, spec: AttemptSpec) -> str:
    """Its config.toml for an attempt; the key is named by its environment variable."""
    provider = {
        "name": "whippletree",
        "base_url": spec.base_url,
        "env_key": KEY,
        "wire_api": "responses",
        "request_max_retries": settings.request_retries,
        "stream_max_retries": settings.request_retries,
        "stream_idle_timeout_ms": 1000 * settings.stream_seconds,
    }
    top: dict[str, Any] = {
        "model": settings.model or spec.model,
        "model_provider": "whippletree",
        "model_providers": {"whippletree": provider},
        "model_context_window": settings.context_tokens,
        "model_auto_compact_token_limit": settings.compact_tokens or settings.context_tokens * 9 // 10,
        "include_environment_context": settings.environment_context,
        "shell_environment_policy": {"exclude": [KEY]},
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "history": {"persistence": "none"},
    }
    features = {"daemon_auto_start": False}
    if settings.profile == "lean":
        top |= _LEAN
        features |= _LEAN_FEATURES
    top["features"] = features | settings.features
    if settings.system_prompt:
        top["model_instructions_file"] = INSTRUCTIONS
    if settings.system_append:
        top["developer_instructions"] = settings.system_append
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in (top | settings.options).items())


class _Rollout:
    """One rollout file. What the model wrote is held back until the count of its tokens says that the turn is over."""

    def __init__(self, data: bytes) -> None:
        self.name = self.parent = ""
        self.steps = Steps()
        self._turn: list[_Payload] = []
        self._given: list[_Payload] = []
        self._results: list[tuple[str, str]] = []
        for line in json_lines(data, _Line):
            self._take(line)
        self._close(None, "")

    def refer(self, names: set[str]) -> None:
        """Refer to the sub-agents that its calls started, whose ids are in what they gave."""
        for call_id, text in self._results:
            for name in names:
                if name in text and f'"agent_id":"{name}"' in text.replace(" ", ""):
                    self.steps.refer(call_id, name)

    def _take(self, line: _Line) -> None:
        item = line.payload
        if line.type == "session_meta" and not self.name:
            self.name, self.parent = item.id, item.parent_thread_id
        elif line.type == "token_usage_record":
            self._close(item.usage, line.timestamp)
        elif line.type == "compacted":
            self._close(None, line.timestamp)
            self.steps.say("system", item.message, line.timestamp or None)
        elif line.type == "response_item":
            self._item(item, line.timestamp)

    def _item(self, item: _Payload, timestamp: str) -> None:
        if item.type.endswith("_output"):
            self._given.append(item)
            if not self._turn:
                self._observe()
        elif item.role in ("user", "developer", "system"):
            self._close(None, timestamp)
            self.steps.say("user" if item.role == "user" else "system", _text(item.content), timestamp or None)
        elif item.role == "assistant" or item.type == "reasoning" or item.type.endswith("_call"):
            self._turn.append(item)

    def _close(self, usage: _Usage | None, timestamp: str) -> None:
        """The turn is over; without a count it is one that was not sampled to its end."""
        if self._turn:
            self.steps.turn(
                "".join(_text(item.content) for item in self._turn if item.role == "assistant"),
                [_call(item) for item in self._turn if item.type.endswith("_call")],
                None if usage is None else counts(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens),
                reasoning="".join(_text(item.summary) for item in self._turn if item.type == "reasoning"),
                timestamp=timestamp or None,
            )
            self._turn = []
        self._observe()

    def _observe(self) -> None:
        for item in self._given:
            text = text_of(item.output) if item.output is not None else ""
            self.steps.observe(item.call_id, text)
            self._results.append((item.call_id, text))
        self._given = []


def _call(item: _Payload) -> StepToolCall:
    """A call with the name that the gateway gives it; a tool with a grammar of its own takes text, not JSON."""
    name = f"{item.namespace}__{item.name}" if item.namespace else item.name
    return tool_call(item.call_id, name, item.arguments or item.input)


def _text(content: list[dict[str, Any]] | None) -> str:
    return "".join(str(part.get("text", "")) for part in content or ())
