"""pi, unmodified: four dialects, four tools, a small prompt.

Its record is the session file that it writes while it works, one JSON line per entry. Its exit code says little (in JSON mode
it is 0 after an API error), so the last entry of the session decides how it ended.

Invariants (tests/harnesses/test_pi_adapter.py): the key is in the environment alone; every turn that the model sampled is one
step of the account, also those of a part of the history that was compacted; an error of the API is a crash, but a prompt that
no longer fits is a budget that ran out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from whippletree.harnesses.atif_steps import Steps, counts
from whippletree.harnesses.config import PiSettings
from whippletree.harnesses.ends import crashed, last_words, out_of_context, timed_out
from whippletree.harnesses.packages import HOME, Packaged, read_settings, root_of
from whippletree.harnesses.reading import TIMED_OUT, json_lines, overflowed, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package
from whippletree.traces.atif import Agent

VERSION = "0.73.1"
DIRECTORY = f"{HOME}/.pi/agent"
SESSION = f"{HOME}/.pi/session.jsonl"
EXTENSION = f"{HOME}/.pi/step-limit.js"
KEY = "WHIPPLETREE_KEY"
_STEP_LIMIT = """// Ends the run after so many turns of the model, by pi's own interface for extensions.
export default function (pi) {
  let turns = 0;
  pi.on("turn_end", (event, context) => {
    turns += 1;
    if (turns >= %d && event.toolResults.length > 0) context.abort();
  });
}
"""
_NOT_SAMPLED = ("error", "aborted")
_APIS = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
    "gemini": "google-generative-ai",
}


class _Usage(msgspec.Struct):
    input: int = 0
    output: int = 0
    cacheRead: int = 0
    cacheWrite: int = 0


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[dict[str, Any]] = ""
    usage: _Usage = msgspec.field(default_factory=_Usage)
    stopReason: str = ""
    errorMessage: str = ""
    toolCallId: str = ""
    isError: bool = False


class _Entry(msgspec.Struct):
    """The parts of a line of its session file that are read here."""

    type: str = ""
    timestamp: str = ""
    message: _Message = msgspec.field(default_factory=_Message)
    summary: str = ""


class Pi(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "pi"
    version = VERSION
    package = Package(kind="npm", name="@mariozechner/pi-coding-agent", version=VERSION, size_mb=204)
    settings = PiSettings
    facts = HarnessFacts(
        dialects=("chat", "responses", "messages", "gemini"),
        streams=True,
        shell_tool="bash",
        sampled_turn="arguments re-serialised",
        exit_code="0: the turn ended (in its JSON mode also after an error); 1: an error; the session file decides",
        variations=("tools", "system", "steps"),
        fixed_prompt_chars=5_500,
        ends_at=("overflow",),
        record_differs=("arguments", "overflow"),
        notes=(
            "the system prompt holds today's date and the working directory",
            "it compacts between instructions: in a run with one, after its end, by a side call whose summary nothing uses",
            "after a prompt that does not fit its record ends; it may compact and go on in calls that are captured alone",
            "arguments that are no JSON are repaired in its history and its record",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction on standard input, provider and settings as files, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(PiSettings, spec, self.name)
        model = settings.model or spec.model
        files = [
            (f"{DIRECTORY}/models.json", json.dumps(provider(settings, spec))),
            (f"{DIRECTORY}/settings.json", json.dumps(configuration(settings))),
        ]
        argv = [*self.binary("pi"), "-p", "--session", SESSION, "--provider", "whippletree", "--model", model]
        argv += ["--tools", ",".join(settings.tools)] if settings.tools else ["--no-tools"]
        argv += ["--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes"]
        for option, text in (("system-prompt", settings.system_prompt), ("append-system-prompt", settings.system_append)):
            if text:
                files.append((f"{DIRECTORY}/{option}.md", text))
                argv += [f"--{option}", f"{DIRECTORY}/{option}.md"]
        if settings.step_limit:
            files.append((EXTENSION, _STEP_LIMIT % settings.step_limit))
            argv += ["--extension", EXTENSION]
        return LaunchPlan(
            argv=(*argv, *settings.arguments),
            environment={
                "HOME": HOME,
                "PI_CODING_AGENT_DIR": DIRECTORY,
                "PI_OFFLINE": "1",
                "PI_SKIP_VERSION_CHECK": "1",
                "PI_TELEMETRY": "0",
                "NO_COLOR": "1",
                KEY: spec.api_key,
            },
            files=tuple(files),
            trajectory=SESSION,
            stdin=spec.instruction,
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """The last turn of its session decides."""
        turns = [e.message for e in json_lines(trajectory or b"", _Entry) if e.message.role == "assistant"]
        steps = sum(turn.stopReason not in _NOT_SAMPLED for turn in turns)
        if exit_code == TIMED_OUT:
            return timed_out(steps)
        last = turns[-1] if turns else None
        if last is not None and last.stopReason in ("stop", "length") and exit_code == 0:
            return HarnessResult(exit_status="Completed", steps=steps, message=last_words(_text(last.content)))
        if last is not None and last.stopReason == "aborted":
            return HarnessResult(exit_status="StepLimit", steps=steps, ran_out="budget")
        if last is not None and overflowed(last.errorMessage):
            return out_of_context(steps, last.errorMessage)
        message = (last.errorMessage if last is not None else "") or last_words(output)
        status = "ApiError" if last is not None and last.stopReason == "error" else f"Exit{exit_code}"
        return crashed(status, steps, message)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its session file: every turn that was sampled, in order."""
        data = records.get(SESSION)
        if data is None:
            return None
        steps = Steps()
        for entry in json_lines(data, _Entry):
            message = entry.message
            if message.role == "assistant" and message.stopReason not in _NOT_SAMPLED:
                _add_turn(steps, message, entry.timestamp)
            elif message.role == "toolResult":
                steps.observe(message.toolCallId, _text(message.content), failed=message.isError)
            elif message.role == "user":
                steps.say("user", _text(message.content), entry.timestamp or None)
            elif entry.type == "compaction":
                steps.say("system", entry.summary, entry.timestamp or None)
        return msgspec.json.encode(steps.trajectory(Agent(name=self.name, version=self.version)))


def provider(settings: PiSettings, spec: AttemptSpec) -> dict[str, Any]:
    """Its models.json for an attempt: one provider with one model; the key is named by its environment variable."""
    base = {"messages": root_of(spec.base_url), "gemini": f"{root_of(spec.base_url)}/v1beta"}.get(
        settings.dialect, spec.base_url
    )
    name = settings.model or spec.model
    model = {
        "id": name,
        "name": name,
        "reasoning": settings.reasoning,
        "input": ["text"],
        "contextWindow": settings.context_tokens,
        "maxTokens": settings.output_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    one = {"baseUrl": base, "apiKey": KEY, "api": _APIS[settings.dialect], "models": [model]}
    return {"providers": {"whippletree": one}}


def configuration(settings: PiSettings) -> dict[str, Any]:
    """Its settings.json for an attempt."""
    return {
        "enableInstallTelemetry": False,
        "quietStartup": True,
        "compaction": {"enabled": settings.compaction},
        "retry": {"enabled": settings.request_retries > 0, "maxRetries": settings.request_retries, "baseDelayMs": 500},
    }


def _add_turn(steps: Steps, message: _Message, timestamp: str) -> None:
    parts = message.content if isinstance(message.content, list) else []
    usage = message.usage
    steps.turn(
        _text(message.content),
        [
            tool_call(str(part.get("id", "")), str(part.get("name", "")), part.get("arguments") or {})
            for part in parts
            if part.get("type") == "toolCall"
        ],
        counts(usage.input + usage.cacheRead + usage.cacheWrite, usage.output, usage.cacheRead),
        reasoning="".join(str(part.get("thinking", "")) for part in parts if part.get("type") == "thinking"),
        timestamp=timestamp or None,
    )


def _text(content: str | list[dict[str, Any]]) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
