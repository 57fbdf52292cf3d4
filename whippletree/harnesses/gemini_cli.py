"""Gemini CLI, unmodified: Gemini's generateContent, streamed.

Its record is the session file that it writes while it works, one JSON line per message; a message that is written again under
its id replaces the earlier one, and `$set` replaces the whole history.

Invariants (tests/harnesses/test_gemini_cli_adapter.py): the key is in the environment alone; every turn of the model that the
record ever held is one step of the account; sub-agents are trajectories of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.config import GeminiSettings
from whippletree.harnesses.ends import crashed, last_words, out_of_context, timed_out
from whippletree.harnesses.packages import HOME, Packaged, read_settings, root_of
from whippletree.harnesses.reading import TIMED_OUT, json_lines, overflowed
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent, StepToolCall, Trajectory

VERSION = "0.61.0"
SYSTEM = f"{HOME}/.gemini/system.md"
CHATS = f"{HOME}/.gemini/tmp/*/chats/*"
SUBAGENT_CHATS = f"{HOME}/.gemini/tmp/*/chats/*/*"
_TURN_LIMIT = 53


class _Stats(msgspec.Struct):
    total_requests: int = 0


class _Event(msgspec.Struct):
    """The parts of a line of its streamed output that are read here."""

    type: str = ""
    status: str = ""
    role: str = ""
    content: str = ""
    error: dict[str, Any] = {}


class GeminiCli(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "gemini-cli"
    version = VERSION
    package = Package(kind="npm", name="@google/gemini-cli", version=VERSION, size_mb=100)
    settings = GeminiSettings
    facts = HarnessFacts(
        dialects=("gemini",),
        streams=True,
        shell_tool="run_shell_command",
        shell_extra={"description": "run a command"},
        sampled_turn="thought text dropped",
        subagents=True,
        exit_code="0: the turn ended; 53: its limit of turns; 42: the prompt was refused; else an error's status, modulo 256",
        variations=("tools", "system", "steps"),
        fixed_prompt_chars=49_000,
        ends_at=("drop", "overflow"),
        probe=Probe(
            subagent_tool="invoke_agent",
            subagent_arguments={"agent_name": "generalist", "prompt": "{prompt}"},
            subagent_finish="complete_task",
            subagent_finish_arguments={"result": {"response": "{report}"}},
        ),
        notes=(
            "the first message holds today's date, so prompts differ from day to day",
            "a word of the instruction that begins with @ and names a file is replaced by that file",
            "it compresses what came before the latest instruction, so in a run with one instruction it compresses nothing",
            "no header names its threads: they are told apart by system prompt, tools and first message",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction on standard input, settings as a file, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(GeminiSettings, spec, self.name)
        environment = {
            "HOME": HOME,
            "GEMINI_API_KEY": spec.api_key,
            "GOOGLE_GEMINI_BASE_URL": root_of(spec.base_url),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "NO_COLOR": "1",
        }
        files = [(f"{HOME}/.gemini/settings.json", json.dumps(configuration(settings)))]
        if settings.system_prompt:
            environment["GEMINI_SYSTEM_MD"] = SYSTEM
            files.append((SYSTEM, settings.system_prompt))
        argv = (*self.binary("gemini"), "--model", settings.model or spec.model, "--approval-mode", "yolo")
        return LaunchPlan(
            argv=(*argv, "--output-format", "stream-json"),
            environment=environment,
            files=tuple(files),
            stdin=spec.instruction,
            records=(CHATS, SUBAGENT_CHATS),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """The last line of its streamed output decides; its exit code where there is none."""
        events = list(json_lines(output, _Event))
        steps = sum(event.type == "tool_use" for event in events) + 1 if events else 0
        end = next((event for event in reversed(events) if event.type == "result"), None)
        if exit_code == _TURN_LIMIT:
            return HarnessResult(
                exit_status="TurnLimit", steps=max(0, steps - 1), ran_out="budget"
            )  # no turn came after the tools
        if end is not None and end.status == "success" and exit_code == 0:
            tools = [place for place, event in enumerate(events) if event.type in ("tool_use", "tool_result")]
            last = events[tools[-1] + 1 if tools else 0 :]
            said = "".join(event.content for event in last if event.type == "message" and event.role == "assistant")
            return HarnessResult(exit_status="Completed", steps=steps, message=last_words(said))
        if exit_code == TIMED_OUT:
            return timed_out(steps)
        status = str(end.error.get("type", "")) if end is not None else ""
        message = str(end.error.get("message", "")) if end is not None else ""
        if overflowed(message):
            return out_of_context(steps, message)
        status = status or f"Exit{exit_code}"
        return crashed(status, steps, message or last_words(output))

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its session files as one document: the main one, and one trajectory for each sub-agent."""
        sessions = [session for path in sorted(records) if (session := read_session(records[path])) is not None]
        main = [session for session in sessions if session.kind != "subagent"]
        if not main:
            return None
        agent = Agent(name=self.name, version=self.version)
        below = [_trajectory(session, agent, session.name) for session in sessions if session.kind == "subagent"]
        whole = _trajectory(main[0], agent)
        return msgspec.json.encode(msgspec.structs.replace(whole, subagent_trajectories=below or None))


def configuration(settings: GeminiSettings) -> dict[str, Any]:
    """Its settings.json for an attempt; no secret is in it."""
    model: dict[str, Any] = {"skipNextSpeakerCheck": True}
    if settings.step_limit:
        model["maxSessionTurns"] = settings.step_limit
    tools: dict[str, Any] = {"shell": {"enableInteractiveShell": False, "showColor": False}, "disableLLMCorrection": True}
    if settings.tools:
        tools["core"] = list(settings.tools)
    return {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": settings.request_attempts,
            "retryFetchErrors": True,
            "sessionRetention": {"enabled": False},
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "ide": {"enabled": False},
        "model": model,
        "context": {"includeDirectoryTree": settings.directory_tree},
        "tools": tools,
    }


class Session(msgspec.Struct):
    """One session file: its kind ("main", "subagent"), its id, and its messages in the order in which they first appeared."""

    kind: str
    name: str
    messages: list[dict[str, Any]]


def read_session(data: bytes) -> Session | None:
    """A session file; None where it is none. A last line that was cut off is passed over."""
    kind = name = ""
    messages: dict[str, dict[str, Any]] = {}
    for line in data.splitlines():
        try:
            record = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue
        if not isinstance(record, dict):
            return None
        kind, name = str(record.get("kind", kind)), str(record.get("sessionId", name))
        changed = record.get("$set")
        replaced = changed.get("messages") if isinstance(changed, dict) else None
        for message in replaced if isinstance(replaced, list) else [record]:
            if "id" in message and "type" in message:
                messages[str(message["id"])] = message
    return Session(kind=kind or "main", name=name, messages=list(messages.values())) if name else None


def _trajectory(session: Session, agent: Agent, trajectory_id: str | None = None) -> Trajectory:
    steps = Steps()
    for message in session.messages:
        if message["type"] == "gemini":
            _add_turn(steps, message)
        elif message["type"] == "user":
            text = parts_text(message.get("content"))
            if text:
                steps.say("user", text, message.get("timestamp"))
    return steps.trajectory(agent, session.name, trajectory_id=trajectory_id)


def _add_turn(steps: Steps, message: dict[str, Any]) -> None:
    tokens = message.get("tokens") or {}
    metrics = None
    if tokens:
        prompt = int(tokens.get("input", 0))
        metrics = counts(prompt, int(tokens.get("total", prompt)) - prompt, int(tokens.get("cached", 0)))
    told = message.get("toolCalls") or []
    calls = [
        StepToolCall(tool_call_id=str(call["id"]), function_name=str(call["name"]), arguments=call.get("args") or {})
        for call in told
    ]
    thoughts = "\n".join(str(thought.get("description", "")) for thought in message.get("thoughts") or [])
    steps.turn(
        parts_text(message.get("content")),
        calls,
        metrics,
        reasoning=thoughts,
        timestamp=message.get("timestamp"),
        model=message.get("model"),
    )
    for call in told:
        for part in call.get("result") or []:
            response = part.get("functionResponse") if isinstance(part, dict) else None
            if response is not None:
                given = response.get("response") or {}
                failed = call.get("status") == "error"
                steps.observe(str(call["id"]), text_of(given.get("output", given)), failed=failed)


def parts_text(content: Any) -> str:
    """The text of Gemini's parts; thoughts, calls and what tools gave are no text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part and not part.get("thought"))
