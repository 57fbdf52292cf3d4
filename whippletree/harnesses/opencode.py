"""OpenCode, unmodified: any of the four dialects, by the provider package that it is given.

Its record is its database (SQLite), which holds every session: the main one, and one for each sub-agent, with their messages
in parts. An assistant's message is one model call.

Invariants (tests/harnesses/test_opencode_adapter.py): the key is in the environment alone; every turn of the model in the
record is one step of the account; sub-agents are trajectories of their own.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from whippletree.errors import HarnessError
from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.config import OpenCodeSettings
from whippletree.harnesses.ends import crashed, last_words, out_of_context, timed_out
from whippletree.harnesses.packages import HOME, Packaged, read_settings, root_of
from whippletree.harnesses.reading import TIMED_OUT, json_lines, overflowed
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent, StepToolCall, Trajectory

VERSION = "1.18.33"
DATABASE = f"{HOME}/.local/share/opencode/opencode.db"
PROVIDER = "whippletree"
_PACKAGES = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
    "gemini": "@ai-sdk/google",
}
_PLUGIN = f"{HOME}/.config/opencode/plugin/step-limit.js"
_OUT_OF_STEPS = "whippletree: the step limit is reached"
_STEP_LIMIT = """// Refuses the main agent's model call after so many, by OpenCode's own interface for plugins.
export const StepLimit = async () => {
  let calls = 0;
  return {
    "chat.params": async (input) => {
      const agent = input.agent?.name ?? input.agent;
      if (agent === "build" && ++calls > %d) throw new Error("%s");
    },
  };
};
"""
_SWITCHES = (
    "AUTOUPDATE",
    "MODELS_FETCH",
    "LSP_DOWNLOAD",
    "DEFAULT_PLUGINS",
    "SHARE",
    "CLAUDE_CODE",
    "EXTERNAL_SKILLS",
    "EMBEDDED_WEB_UI",
)


class _Event(msgspec.Struct):
    """The parts of a line of its JSON output that are read here."""

    type: str = ""
    part: dict[str, Any] = {}
    error: dict[str, Any] = {}


def _installed_plugins() -> tuple[tuple[str, str], ...]:
    """Files by which it takes the package of plugin types to be in its configuration's folder, and so fetches none."""
    folder = f"{HOME}/.config/opencode"
    locked = {"lockfileVersion": 3, "packages": {"": {"dependencies": {"@opencode-ai/plugin": VERSION}}}}
    return (f"{folder}/package-lock.json", json.dumps(locked)), (f"{folder}/node_modules/.keep", "")


def _step_limit(limit: int) -> tuple[tuple[str, str], ...]:
    """Its own `steps` asks the model to answer without tools; of a model that calls one it goes on. This ends it."""
    return ((_PLUGIN, _STEP_LIMIT % (limit, _OUT_OF_STEPS)),) if limit else ()


class OpenCode(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "opencode"
    version = VERSION
    package = Package(kind="npm", name="opencode-ai", version=VERSION, size_mb=354)
    settings = OpenCodeSettings
    facts = HarnessFacts(
        dialects=("chat", "responses", "messages", "gemini"),
        streams=True,
        shell_tool="bash",
        shell_extra={"description": "run a command"},
        sampled_turn="arguments re-serialised",
        thread_headers=("x-session-id",),
        subagents=True,
        compacts=True,
        exit_code="0: the turn ended, also after an error of the model; 1: it could not start",
        variations=("tools", "system", "steps"),
        fixed_prompt_chars=31_000,
        record_differs=("arguments",),
        probe=Probe(
            subagent_tool="task",
            subagent_arguments={"description": "one command", "prompt": "{prompt}", "subagent_type": "general"},
            compaction={"context_tokens": 60_000, "output_tokens": 4_000},
        ),
        notes=(
            "it needs about half a gigabyte of memory per attempt",
            "the system prompt holds today's date and the working directory, so prompts differ from day to day",
            "a side call asks for a title of the session unless it is given one (setting title)",
            "a call of a tool that there is not comes back as a call of a tool named invalid",
            "with step_limit, the last request tells the model to answer without tools",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction on standard input, the configuration and the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a wrong setting.
        """
        self.check_installed()
        settings = read_settings(OpenCodeSettings, spec, self.name)
        environment = {f"OPENCODE_DISABLE_{name}": "1" for name in _SWITCHES}
        environment |= {
            "HOME": HOME,
            "XDG_CONFIG_HOME": f"{HOME}/.config",
            "XDG_DATA_HOME": f"{HOME}/.local/share",
            "XDG_CACHE_HOME": f"{HOME}/.cache",
            "XDG_STATE_HOME": f"{HOME}/.local/state",
            "OPENCODE_CONFIG_CONTENT": json.dumps(configuration(settings, spec)),
            "WHIPPLETREE_KEY": spec.api_key,
        }
        argv = [*self.binary("opencode"), "run", "--format", "json", "--model", f"{PROVIDER}/{spec.model}"]
        if not settings.title:
            argv += ["--title", "task"]
        return LaunchPlan(
            argv=tuple(argv),
            environment=environment,
            files=_installed_plugins() + _step_limit(settings.step_limit),
            stdin=spec.instruction,
            records=(DATABASE, f"{DATABASE}-wal"),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """Its output decides: it exits with 0 after an error too."""
        events = list(json_lines(output, _Event))
        steps = sum(event.type == "step_finish" for event in events)
        if exit_code == TIMED_OUT:
            return timed_out(steps)
        last = next((event for event in reversed(events) if event.type in ("error", "step_finish")), None)
        error = last.error if last is not None and last.type == "error" else None
        got_over = error is None and last is not None and any(event.type == "error" for event in events)
        if error is not None or (exit_code and not got_over):  # it exits with 1 after an error that it got over too
            said = error or {}
            status = str(said.get("name") or f"Exit{exit_code}")
            message = str((said.get("data") or {}).get("message") or last_words(output))
            if _OUT_OF_STEPS in message:
                return HarnessResult(exit_status="StepLimit", steps=steps, ran_out="budget")
            if overflowed(message):
                return out_of_context(steps, message)
            return crashed(status, steps, message)
        if not steps:
            return crashed("NoTurn", 0, last_words(output))
        said_last = [str(event.part.get("text", "")) for event in events if event.type == "text"]
        return HarnessResult(exit_status="Completed", steps=steps, message=said_last[-1] if said_last else "")

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its database as one document. Raises HarnessError where it cannot be read."""
        if not records.get(DATABASE):
            return None
        agent = Agent(name=self.name, version=self.version)
        with tempfile.TemporaryDirectory(prefix="whippletree-opencode-") as directory:
            for suffix in ("", "-wal"):
                Path(directory, f"opencode.db{suffix}").write_bytes(records.get(DATABASE + suffix, b""))
            try:
                with contextlib.closing(sqlite3.connect(Path(directory, "opencode.db"))) as database:
                    rows = database.execute(_SESSIONS).fetchall()
                    sessions = [_session(database, str(name), str(parent), agent) for name, parent in rows]
            except sqlite3.Error as error:
                cause = f"OpenCode's database cannot be read: {error}"
                raise HarnessError(cause, "look whether the sandbox's disk was full") from error
        main = next((found for parent, found in sessions if not parent), None)
        if main is None:
            return None
        below = [msgspec.structs.replace(found, trajectory_id=found.session_id) for parent, found in sessions if parent]
        return msgspec.json.encode(msgspec.structs.replace(main, subagent_trajectories=below or None))


_SESSIONS = "select id, coalesce(parent_id, '') from session order by time_created, id"
_MESSAGES = "select id, data from message where session_id = ? order by time_created, id"
_PARTS = "select data from part where message_id = ? order by id"


def configuration(settings: OpenCodeSettings, spec: AttemptSpec) -> dict[str, Any]:
    """Its configuration for an attempt; the key is only named."""
    base = spec.base_url if settings.dialect != "gemini" else f"{root_of(spec.base_url)}/v1beta"
    model = {
        "name": spec.model,
        "tool_call": True,
        "limit": {"context": settings.context_tokens, "output": settings.output_tokens},
    }
    agent: dict[str, Any] = {}
    if settings.system_prompt:
        agent["prompt"] = settings.system_prompt
    if settings.step_limit:
        agent["steps"] = settings.step_limit
    if settings.tools:
        agent["tools"] = {"*": False, **dict.fromkeys(settings.tools, True)}
    return {
        "model": f"{PROVIDER}/{spec.model}",
        "small_model": f"{PROVIDER}/{spec.model}",
        "autoupdate": False,
        "share": "disabled",
        "snapshot": settings.snapshots,
        "permission": {"*": "allow"},
        "compaction": {"auto": settings.compaction, "prune": False},
        "agent": {"build": agent} if agent else {},
        "provider": {
            PROVIDER: {
                "npm": _PACKAGES[settings.dialect],
                "name": PROVIDER,
                "options": {"baseURL": base, "apiKey": "{env:WHIPPLETREE_KEY}"},
                "models": {spec.model: model},
            }
        },
    }


def _session(database: sqlite3.Connection, session_id: str, parent: str, agent: Agent) -> tuple[str, Trajectory]:
    steps = Steps()
    for message_id, data in database.execute(_MESSAGES, (session_id,)).fetchall():
        message: dict[str, Any] = json.loads(data)
        parts: list[dict[str, Any]] = [json.loads(row[0]) for row in database.execute(_PARTS, (message_id,)).fetchall()]
        text = "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
        created = (message.get("time") or {}).get("created")
        moment = datetime.fromtimestamp(created / 1000, UTC).isoformat() if created else None
        if message.get("role") == "assistant":
            _add_turn(steps, message, parts, text, moment)
        elif text:
            steps.say("user", text, moment)
    return parent, steps.trajectory(agent, session_id)


def _add_turn(steps: Steps, message: dict[str, Any], parts: list[dict[str, Any]], text: str, moment: str | None) -> None:
    tools = [part for part in parts if part.get("type") == "tool"]
    calls = [
        StepToolCall(
            tool_call_id=str(part.get("callID", "")),
            function_name=str(part.get("tool", "")),
            arguments=(part.get("state") or {}).get("input") or {},
        )
        for part in tools
    ]
    steps.turn(
        text,
        calls,
        _metrics(message),
        reasoning="".join(str(part.get("text", "")) for part in parts if part.get("type") == "reasoning"),
        timestamp=moment,
        model=message.get("modelID"),
    )
    for part in tools:
        state = part.get("state") or {}
        failed = state.get("status") == "error"
        given = state.get("error" if failed else "output", "")
        steps.observe(str(part.get("callID", "")), text_of(given), failed=failed)


def _metrics(message: dict[str, Any]) -> Any:
    """Its counts take apart what engines count together: cached tokens are not in the input, reasoning is not in the output."""
    tokens = message.get("tokens") or {}
    cache = tokens.get("cache") or {}
    prompt = int(tokens.get("input", 0)) + int(cache.get("read", 0)) + int(cache.get("write", 0))
    if not prompt:
        return None
    return counts(prompt, int(tokens.get("output", 0)) + int(tokens.get("reasoning", 0)), int(cache.get("read", 0)))
