"""Qwen Code, unmodified: chat completions by default, or another of the four dialects, streamed.

It needs Node 22, which is installed beside it. Its record is the session file that it writes while it works, one JSON line per
message in Gemini's parts, whatever the dialect.

Invariants (tests/harnesses/test_qwen_code_adapter.py): the key is in the environment alone; every turn of the model in the
record is one step of the account; sub-agents are trajectories of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.config import QwenSettings
from whippletree.harnesses.ends import crashed, last_words, out_of_context, timed_out
from whippletree.harnesses.gemini_cli import parts_text
from whippletree.harnesses.packages import HOME, Packaged, read_settings, root_of
from whippletree.harnesses.reading import TIMED_OUT, json_lines, overflowed
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent, StepToolCall, Trajectory

VERSION = "0.24.4"
CHATS = f"{HOME}/.qwen/projects/*/chats/*"
SUBAGENT_CHATS = f"{HOME}/.qwen/projects/*/subagents/*/*"
_TURN_LIMIT = 53
_BUDGET = 55
_BESIDES = (
    *("agent", "cron_create", "cron_delete", "cron_list", "enter_worktree", "exit_worktree", "get_goal", "list_agents"),
    *("loop_wakeup", "monitor", "read_mcp_resource", "record_artifact", "report_findings", "send_message", "skill"),
    *("task_stop", "tool_call", "tool_search", "update_goal", "web_fetch", "zoom_image"),
)
_KINDS = {"chat": "openai", "responses": "openai-responses", "messages": "anthropic", "gemini": "gemini"}
_NAMES = {"chat": "OPENAI", "responses": "OPENAI", "messages": "ANTHROPIC", "gemini": "GEMINI"}


class _End(msgspec.Struct):
    """The parts of its lines of output that are read here; most are the last one's."""

    type: str = ""
    parent_tool_use_id: str | None = None
    subtype: str = ""
    is_error: bool = False
    num_turns: int = 0
    result: str = ""
    error: dict[str, Any] = {}


def _turns(events: list[_End]) -> int:
    """The main agent's turns: each is one line, or several in a row. Its limit of turns ends it without a count."""
    main = [event.type for event in events if not event.parent_tool_use_id]
    return sum(kind == "assistant" and before != "assistant" for before, kind in zip(["", *main], main, strict=False))


class QwenCode(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "qwen-code"
    version = VERSION
    package = Package(kind="npm", name="@qwen-code/qwen-code", version=VERSION, size_mb=330, node="22.23.5")
    settings = QwenSettings
    facts = HarnessFacts(
        dialects=("chat", "responses", "messages", "gemini"),
        streams=True,
        shell_tool="run_shell_command",
        shell_extra={"description": "run a command", "is_background": False},
        sampled_turn="arguments re-serialised",
        subagents=True,
        compacts=True,
        exit_code="0: the turn ended; 53: its limit of turns; 55: its limit of tool calls or time; 1: an error",
        variations=("tools", "system", "steps"),
        fixed_prompt_chars=79_000,
        record_differs=("arguments",),
        probe=Probe(
            subagent_tool="agent",
            subagent_arguments={
                "description": "one command",
                "prompt": "{prompt}",
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
            compaction={"context_tokens": 130_000},
        ),
        notes=(
            "the first message holds today's date, so prompts differ from day to day",
            "a word of the instruction that begins with @ and names a file is replaced by that file",
            "no header names its threads: they are told apart by system prompt, tools and first message",
            "a stream that breaks is answered by a request that keeps the partial text and asks to go on",
            "it ends before its last turn is in its record where the machine is very busy; the captured calls have it",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction on standard input, settings as a file, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(QwenSettings, spec, self.name)
        name = _NAMES[settings.dialect]
        where = "GOOGLE_GEMINI_BASE_URL" if name == "GEMINI" else f"{name}_BASE_URL"
        environment = {
            "HOME": HOME,
            f"{name}_API_KEY": spec.api_key,
            where: spec.base_url if name == "OPENAI" else root_of(spec.base_url),
            f"{name}_MODEL": spec.model,
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
            "QWEN_CODE_NO_RELAUNCH": "true",
            "QWEN_DISABLE_AUTO_TITLE": "1",
            "QWEN_CODE_SKIP_UPDATE_CHECK_ONCE": "1",
            "NO_COLOR": "1",
        }
        argv = [*self.binary("qwen"), "--auth-type", _KINDS[settings.dialect], "--model", spec.model]
        argv += ["--approval-mode", "yolo", "--output-format", "stream-json"]
        if settings.system_prompt:
            argv += ["--system-prompt", settings.system_prompt]
        if settings.step_limit:
            argv += ["--max-session-turns", str(settings.step_limit)]
        return LaunchPlan(
            argv=tuple(argv),
            environment=environment,
            files=((f"{HOME}/.qwen/settings.json", json.dumps(configuration(settings, spec))),),
            stdin=spec.instruction,
            records=(CHATS, SUBAGENT_CHATS),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """The last line of its streamed output decides; its exit code where there is none."""
        events = list(json_lines(output, _End))
        end = next((event for event in reversed(events) if event.type == "result"), _End())
        steps, message = end.num_turns or _turns(events), last_words(end.result or str(end.error.get("message", "")))
        if exit_code in (_TURN_LIMIT, _BUDGET) or end.subtype == "error_max_turns":
            return HarnessResult(exit_status="TurnLimit", steps=steps, message=message, ran_out="budget")
        if end.subtype == "success" and not end.is_error and exit_code == 0:
            return HarnessResult(exit_status="Completed", steps=steps, message=message)
        if exit_code == TIMED_OUT:
            return timed_out(steps)
        if overflowed(message):
            return out_of_context(steps, message)
        status = end.subtype if end.is_error and end.subtype else f"Exit{exit_code}"
        return crashed(status, steps, message or last_words(output))

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its session files as one document: the main one, and one trajectory for each sub-agent."""
        agent = Agent(name=self.name, version=self.version)
        main: list[Trajectory] = []
        below: list[Trajectory] = []
        for path in sorted(records):
            if not path.endswith(".jsonl"):
                continue
            inside = "/subagents/" in path
            found = read_session(records[path], agent, path.rpartition("/")[2].removesuffix(".jsonl") if inside else None)
            if found is not None:
                (below if inside else main).append(found)
        if not main:
            return None
        return msgspec.json.encode(msgspec.structs.replace(main[0], subagent_trajectories=below or None))


def configuration(settings: QwenSettings, spec: AttemptSpec) -> dict[str, Any]:
    """Its settings.json for an attempt; no secret is in it."""
    generation: dict[str, Any] = {"maxRetries": settings.request_retries, "timeout": int(spec.timeout * 1000)}
    if settings.context_tokens:
        generation["contextWindowSize"] = settings.context_tokens
    tools: dict[str, Any] = {"shell": {"enableInteractiveShell": False, "showColor": False}, "toolSearch": {"enabled": False}}
    if settings.tools:
        tools["core"] = list(settings.tools)
        tools["exclude"] = [name for name in _BESIDES if name not in settings.tools]  # which the list of core tools leaves
    return {
        "security": {"auth": {"selectedType": _KINDS[settings.dialect]}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "showSessionRecap": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "ide": {"enabled": False},
        "ui": {"enableFollowupSuggestions": False, "enableSpeculation": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
        "model": {"skipNextSpeakerCheck": True, "generationConfig": generation},
        "tools": tools,
    }


def read_session(data: bytes, agent: Agent, trajectory_id: str | None = None) -> Trajectory | None:
    """A session file; None where it is none. A last line that was cut off is passed over."""
    steps, name = Steps(), ""
    for record in _joined(data):
        if "sessionId" not in record:
            return None
        name = str(record["sessionId"])
        message = record.get("message") or {}
        if record.get("type") == "assistant":
            _add_turn(steps, record)
        elif record.get("type") == "user" and parts_text(message.get("parts")):
            steps.say("user", parts_text(message.get("parts")), record.get("timestamp"))
        elif record.get("type") == "tool_result":
            _add_results(steps, record)
    return steps.trajectory(agent, name, trajectory_id=trajectory_id) if name else None


def _joined(data: bytes) -> Iterator[dict[str, Any]]:
    """The records of a session. A sub-agent's turn is written in several of them, of which the first alone has counts."""
    held: dict[str, Any] | None = None
    for line in data.splitlines():
        try:
            record = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue
        if not isinstance(record, dict):
            return
        both = held is not None and held.get("type") == record.get("type") == "assistant"
        if held is not None and both and "agentId" in record and not record.get("usageMetadata"):
            message = record.get("message") or {}
            held.setdefault("message", {}).setdefault("parts", []).extend(message.get("parts") or [])
            continue
        if held is not None:
            yield held
        held = record
    if held is not None:
        yield held


def _add_results(steps: Steps, record: dict[str, Any]) -> None:
    for part in (record.get("message") or {}).get("parts") or []:
        if "functionResponse" in part:
            response = part["functionResponse"]
            given = response.get("response") or {}
            failed = (record.get("toolCallResult") or {}).get("status") == "error"
            steps.observe(str(response.get("id", "")), text_of(given.get("output", given)), failed=failed)


def _add_turn(steps: Steps, record: dict[str, Any]) -> None:
    parts = (record.get("message") or {}).get("parts") or []
    usage = record.get("usageMetadata") or {}
    metrics = None
    if usage:
        prompt = int(usage.get("promptTokenCount", 0))
        metrics = counts(
            prompt, int(usage.get("totalTokenCount", prompt)) - prompt, int(usage.get("cachedContentTokenCount", 0))
        )
    called = [part["functionCall"] for part in parts if "functionCall" in part]
    calls = [
        StepToolCall(tool_call_id=str(call.get("id", "")), function_name=str(call["name"]), arguments=call.get("args") or {})
        for call in called
    ]
    steps.turn(
        parts_text(parts),
        calls,
        metrics,
        reasoning="".join(str(part.get("text", "")) for part in parts if part.get("thought")),
        timestamp=record.get("timestamp"),
        model=record.get("model"),
    )
