"""Mistral Vibe, unmodified and headless: chat, Responses or Messages, by the style of the provider that it is given.

It writes how it ended to export.json, and beside it the journal of its session: every model call as it was asked for and as it
was answered. Both are read here.

Invariants (tests/harnesses/test_mistral_vibe_adapter.py): the key is in the environment alone; export.json decides, where there
is one; every model call of the agent in the journal is one step of the account, and calls for other purposes (a summary, a
title) are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.ends import crashed, last_words, out_of_context
from whippletree.harnesses.packages import HOME, Packaged, read_settings, root_of
from whippletree.harnesses.python_config import VibeSettings
from whippletree.harnesses.reading import json_lines, overflowed, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package
from whippletree.traces.atif import Agent, Trajectory

VERSION = "3.0.2"
FOLDER = f"{HOME}/.vibe"
OUTPUT = "/logs/agent/vibe"
KEY = "WHIPPLETREE_KEY"
_END_SECONDS = 5  # before the attempt's limit, so that it can write its export
_STYLES = {"chat": "openai", "responses": "openai-responses", "messages": "anthropic"}
_LIMITS = frozenset({"turn_limit", "token_limit", "price_limit"})
_STOPPED = frozenset({"length", "refusal"})
_JOURNALS = (f"{OUTPUT}/session/journal/*.jsonl", f"{OUTPUT}/subagents/*/journal/*.jsonl")


class MistralVibe(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "mistral-vibe"
    version = VERSION
    package = Package(kind="pip", name="mistral-vibe", version=VERSION, size_mb=400, python="3.12")
    settings = VibeSettings
    facts = HarnessFacts(
        dialects=("chat", "responses", "messages"),
        streams=True,
        shell_tool="bash",
        subagents=True,
        compacts=True,
        ends_at=("overflow",),
        exit_code="0: it finished; 1: it could not start; 2: the model could not be reached or refused; 3: a limit ended it.",
        variations=("system", "steps"),
        fixed_prompt_chars=33_000,
        notes=(
            "A prompt that does not fit the model's context ends it, as an infrastructure failure in its own words.",
            "It waits up to ten seconds for the login shell's profile before its first request.",
            "Only its own additions (todo, scratchpad) can be taken from the tools; files, shell and TypeScript stay.",
            "Sub-agents are started from TypeScript that the model writes, not by a tool of their own.",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction and the configuration as files, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(VibeSettings, spec, self.name)
        prompt = f"{FOLDER}/instruction.txt"
        argv = [*self.binary("vibe"), "--trust", "--auto-approve", "--output", "text", "--output-dir", OUTPUT]
        argv += ["--prompt-file", prompt, "--time-limit", str(max(1, int(spec.timeout) - _END_SECONDS))]
        if settings.step_limit:
            argv += ["--max-turns", str(settings.step_limit)]
        files = [(prompt, spec.instruction), (f"{FOLDER}/config.toml", configuration(settings, spec))]
        if settings.system_prompt:
            files.append((f"{FOLDER}/prompts/whippletree.md", settings.system_prompt))
        return LaunchPlan(
            argv=tuple(argv),
            environment={
                "HOME": HOME,
                "VIBE_HOME": FOLDER,
                KEY: spec.api_key,
                "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
            },
            files=tuple(files),
            trajectory=f"{OUTPUT}/export.json",
            records=_JOURNALS,
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """What its export says; without one it crashed."""
        try:
            export = msgspec.json.decode(trajectory or b"", type=_Export)
        except msgspec.MsgspecError:
            return crashed(f"Exit{exit_code}", 0, last_words(output))
        steps, told = export.steps or 0, export.error.message if export.error else last_words(output)
        if export.outcome in _LIMITS:
            return HarnessResult(exit_status=export.outcome, steps=steps, message=told, ran_out="budget")
        if export.outcome in ("deadline", "terminated"):
            return HarnessResult(exit_status=export.outcome, steps=steps, message=told, ran_out="time")
        if export.error is not None and overflowed(export.error.message):
            return out_of_context(steps, told)
        did = export.outcome == "finished" or export.outcome in _STOPPED
        return HarnessResult(exit_status=export.outcome, steps=steps, message=told, crashed=not did)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its journals as one document, sub-agents as trajectories of their own."""
        sessions: dict[str, list[bytes]] = {}
        for path, data in sorted(records.items()):
            if path.startswith(f"{OUTPUT}/") and path.endswith(".jsonl"):
                sessions.setdefault(path.removeprefix(f"{OUTPUT}/").rpartition("/journal/")[0], []).append(data)
        main = sessions.pop("session", None)
        if main is None:
            return None
        agent = Agent(name=self.name, version=self.version)
        below = [_told(journal, agent, name.rpartition("/")[2]) for name, journal in sessions.items()]
        return msgspec.json.encode(_told(main, agent, None, below))


def configuration(settings: VibeSettings, spec: AttemptSpec) -> str:
    """Its config.toml: one provider, one model, nothing that looks elsewhere. No secret is in it."""
    base = root_of(spec.base_url) if settings.dialect == "messages" else spec.base_url
    top: dict[str, object] = {
        "active_model": spec.model,
        "system_prompt_id": "whippletree" if settings.system_prompt else settings.prompt,
        "include_project_context": settings.project_context,
        "enable_subagents": settings.subagents,
        "enable_background_processes": settings.background_processes,
        **dict.fromkeys(("enable_telemetry", "enable_update_checks", "enable_auto_update", "enable_notifications"), False),
        **dict.fromkeys(("enable_connectors", "enable_mcp", "enable_otel"), False),
    }
    model: dict[str, object] = {"name": spec.model, "provider": "whippletree", "alias": spec.model}
    if settings.context_tokens:
        model["max_context_length"] = settings.context_tokens
    if settings.compact_at:
        model["auto_compact_threshold"] = settings.compact_at
    provider: dict[str, object] = {
        "name": "whippletree",
        "api_base": base,
        "api_key_env_var": KEY,
        "api_style": _STYLES[settings.dialect],
        "backend": "generic",
    }
    tables: list[tuple[str, dict[str, object]]] = [
        ("", top),
        ("[experiments]", {"enable": False}),
        ("[session_logging]", {"generate_titles": False}),
        ("[[providers]]", provider),
        ("[[models]]", model),
    ]
    return "\n".join("\n".join([head, *(f"{key} = {_toml(value)}" for key, value in table.items())]) for head, table in tables)


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


class _Error(msgspec.Struct):
    message: str = ""


class _Export(msgspec.Struct):
    """The parts of export.json that are read here."""

    outcome: str
    steps: int | None = None
    error: _Error | None = None


class _Part(msgspec.Struct):
    """Of a message or an answer: text, reasoning (text in `content`), or a tool call (as an answer, or as history, has it)."""

    type: str = ""
    text: str = ""
    content: list[dict[str, Any]] = []
    id: str = ""
    name: str = ""
    arguments_json: str = ""


class _Message(msgspec.Struct):
    role: str = ""
    content: list[_Part] = []
    tool_call_id: str = ""
    outcome: str = ""


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0


class _Answer(msgspec.Struct):
    parts: list[_Part] = []
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Result(msgspec.Struct):
    type: str = ""
    result: _Answer | None = None


class _Messages(msgspec.Struct):
    messages: list[_Message] = []


class _Input(msgspec.Struct):
    messages: _Messages = msgspec.field(default_factory=_Messages)


class _Request(msgspec.Struct):
    purpose: str = ""
    model_input: _Input = msgspec.field(default_factory=_Input)


class _Payload(msgspec.Struct):
    action_id: str = ""
    kind: str = ""
    request: _Request | None = None
    result: _Result | None = None


class _Line(msgspec.Struct):
    """A line of the journal; its type decides what is in the payload."""

    type: str
    payload: _Payload


class _Kind(msgspec.Struct):
    type: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")


def _told(journal: Sequence[bytes], agent: Agent, name: str | None, below: list[Trajectory] | None = None) -> Trajectory:
    """A session's journal as a trajectory."""
    steps, agents, said = Steps(), set[str](), set[tuple[str, str]]()
    for line in _lines(journal):
        payload = line.payload
        if line.type == "action_intent" and payload.request is not None and payload.request.purpose == "agent":
            agents.add(payload.action_id)
            _hear(steps, payload.request.model_input.messages.messages, said)
        elif payload.action_id in agents and payload.result is not None and payload.result.result is not None:
            _speak(steps, payload.result.result)
    return steps.trajectory(agent, name, trajectory_id=name, subagents=below)


def _lines(journal: Iterable[bytes]) -> Iterable[_Line]:
    """What was asked of the model and what it answered, in order. Other lines have other shapes."""
    for data in journal:
        for line in json_lines(data, _Kind):
            if line.type in ("action_intent", "action_result"):
                yield from json_lines(b'{"type":"' + line.type.encode() + b'","payload":' + bytes(line.payload) + b"}", _Line)


def _hear(steps: Steps, messages: Sequence[_Message], said: set[tuple[str, str]]) -> None:
    """What is new in a request: instructions, and what tools gave. Its own turns have been told from its answers."""
    for message in messages:
        text = "".join(part.text for part in message.content)
        mark = (message.tool_call_id or message.role, text)
        if message.role == "assistant" or mark in said:
            continue
        said.add(mark)
        if message.role == "tool":
            steps.observe(message.tool_call_id, text, failed=message.outcome not in ("", "success"))
        else:
            steps.say("user" if message.role == "user" else "system", text)


def _speak(steps: Steps, answer: _Answer) -> None:
    parts, usage = answer.parts, answer.usage
    steps.turn(
        "".join(part.text for part in parts if part.type == "text"),
        [tool_call(part.id, part.name, part.arguments_json) for part in parts if part.type == "tool_call"],
        counts(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens),
        reasoning="".join(
            text_of(piece.get("text", "")) for part in parts if part.type == "reasoning" for piece in part.content
        ),
    )
