"""The loop of the harness `whitebox`: ask the model, run what it calls, show the result, until it is done.

    [system, task] ─► model ─┬─ calls the shell tool ─► run ─► result ─► model ─► …
                             │        after `compact_every` turns: [system, task + summary] ─► model ─► …
                             └─ no call: the answer, the end

Standard library only: in process mode this very file is copied into the sandbox and run there; in pool mode it is imported.
Invariants (tests/harnesses/test_whitebox_loop.py):
- it imports nothing but the standard library;
- the history goes back to the model as the model wrote it, word for word; only a compaction replaces it;
- after a compaction the system prompt and the task are still there;
- what ends a run is one of OUTCOMES, or a ModelError in words; the key is in no record and in no command's environment.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DONE_MESSAGE = "WHITEBOX_TASK_DONE"  # first line of a command's output that ends the run
OUTCOMES = ("Submitted", "Answered", "StepLimit", "TimeLimit", "ContextFull")
READ_LIMIT = 1_000_000  # bytes of a command's output that are looked at
FIRST_PAUSE = 0.3  # seconds before the first repeat of a failed request; doubles
BAD_REQUEST, TOO_MANY, SERVER_ERROR = 400, 429, 500
Message = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """What can be set; WhiteboxSettings (harnesses/config.py) documents each and has the defaults."""

    system_prompt: str
    task: str
    tool_name: str
    tool_description: str
    tool_argument: str
    observation: str
    observation_limit: int
    reminder: str
    step_limit: int
    compact_every: int
    summary: str
    summary_step: str
    summary_message: str
    summary_request: str
    command_seconds: int
    environment: dict[str, str]
    quick_retries: int


@dataclass(frozen=True)
class Ran:
    """How a command ended. `exit_code`: negative for a signal, 124 at the time limit."""

    output: str
    exit_code: int


Shell = Callable[[str, float], Ran]


@dataclass
class Turn:
    """One answer of the model. `calls` and `results` are parallel; `summary`: it was asked for as one."""

    content: str
    calls: list[dict[str, str]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    summary: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Record:
    """The run's own account. `steps` counts model calls."""

    system: str = ""
    task: str = ""
    exit_status: str = ""
    message: str = ""
    steps: int = 0
    compactions: int = 0
    turns: list[Turn] = field(default_factory=list)


class ModelError(Exception):
    """The model's server refused or failed. `full`: because the prompt no longer fits."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        lowered = message.lower()
        self.full = status == BAD_REQUEST and ("context_length_exceeded" in lowered or "context length" in lowered)


class Model:
    """A chat-completions endpoint, over one connection that is kept. For one thread."""

    def __init__(self, base_url: str, key: str, name: str, *, retries: int, timeout: float) -> None:
        parts = urlsplit(base_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        self._path = f"{parts.path.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "User-Agent": "whitebox"}
        self._name = name
        self._retries = retries

    def ask(self, messages: list[Message], tools: list[Message]) -> dict[str, Any]:
        """The decoded response. A failure that may pass is tried again, the request unchanged. Raises ModelError."""
        body = json.dumps({"model": self._name, "messages": messages, "tools": tools})
        for number in range(self._retries + 1):
            try:
                self._connection.request("POST", self._path, body, self._headers)
                with self._connection.getresponse() as response:
                    status, text = response.status, response.read().decode("utf-8", errors="replace")
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                status, text = 0, f"no answer: {type(error).__name__}: {error}"
            if status and status < BAD_REQUEST:
                return _decoded(text)
            if number == self._retries or (status and status < SERVER_ERROR and status != TOO_MANY):
                raise ModelError(status, text[-2000:])
            time.sleep(FIRST_PAUSE * 2**number)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def _decoded(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        message = found["choices"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(0, f"the answer is no chat completion: {error!r}: {text[:200]}") from error
    if not isinstance(message, dict):
        raise ModelError(0, f"the answer has no message: {text[:200]}")
    return dict(found)


def tool_of(rules: Rules) -> Message:
    """The shell tool, as the model is offered it."""
    argument = {"type": "string", "description": "The command line."}
    schema = {"type": "object", "properties": {rules.tool_argument: argument}, "required": [rules.tool_argument]}
    return {
        "type": "function",
        "function": {"name": rules.tool_name, "description": rules.tool_description, "parameters": schema},
    }


def filled(template: str, **values: object) -> str:
    """The template with {name} replaced for each of `values`, once; other braces stay as they are."""
    pattern = "|".join(re.escape(f"{{{name}}}") for name in values)
    return re.sub(pattern, lambda match: str(values[match[0][1:-1]]), template)


def observed(rules: Rules, output: str, exit_code: int) -> str:
    """What the model is shown of a command's end; the middle of a long output is left out."""
    limit = rules.observation_limit
    if limit and len(output) > limit:
        head, tail = output[: limit - limit // 2], output[len(output) - limit // 2 :]
        output = f"{head}\n[{len(output) - limit} characters left out]\n{tail}"
    return filled(rules.observation, output=output, exit_code=exit_code)


def opening(rules: Rules, task: str, notes: str = "") -> list[Message]:
    """The history that a run begins with, or goes on from after a compaction (`notes`: the summary)."""
    asked = filled(rules.task, task=task)
    said = filled(rules.summary_message, task=asked, summary=notes) if notes else asked
    return [
        *([{"role": "system", "content": rules.system_prompt}] if rules.system_prompt else []),
        {"role": "user", "content": said},
    ]


def notes_of(rules: Rules, steps: list[tuple[str, str]]) -> str:
    """The harness's own summary: each command with what the model was shown of it, in order."""
    return "".join(filled(rules.summary_step, command=command, observation=shown) for command, shown in steps)


class Agent:
    """One run. `done` is called with the record after every turn and at the end."""

    def __init__(self, rules: Rules, model: Model, shell: Shell, done: Callable[[Record], None] = lambda _: None) -> None:
        self.rules = rules
        self.record = Record(system=rules.system_prompt)
        self._model = model
        self._shell = shell
        self._done = done
        self._tools = [tool_of(rules)]
        self._steps: list[tuple[str, str]] = []
        self._since = 0

    def run(self, task: str, deadline: float) -> Record:
        """To its end. `deadline`: monotonic time, looked at between turns. Raises ModelError, and what the shell raises."""
        self.record.task = task
        status, message = self._work(task, deadline)
        self.record.exit_status, self.record.message = status, message
        self._done(self.record)
        return self.record

    def _work(self, task: str, deadline: float) -> tuple[str, str]:
        history = opening(self.rules, task)
        while True:
            try:
                if self.rules.compact_every and self._since >= self.rules.compact_every:
                    history = self._compacted(task, history)
                if self.rules.step_limit and self.record.steps >= self.rules.step_limit:
                    return "StepLimit", ""
                if time.monotonic() > deadline:
                    return "TimeLimit", ""
                said = self._ask(history)
            except ModelError as error:
                if error.full:
                    return "ContextFull", str(error)
                raise
            history.append(said)
            calls = said.get("tool_calls") or []
            if not calls and not self.rules.reminder:
                return "Answered", said.get("content") or ""
            if not calls:
                history.append({"role": "user", "content": self.rules.reminder})
            for call in calls:
                command, shown, submitted = self._run(call)
                if submitted is not None:
                    return "Submitted", submitted
                self._steps.append((command, shown))
                history.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": shown})
            self._since += 1
            self._done(self.record)

    def _ask(self, history: list[Message], *, summary: bool = False) -> Message:
        """The model's next message, its thinking included, in the keys that go back to it as they came."""
        response = self._model.ask(history, self._tools)
        message = response["choices"][0]["message"]
        usage = response.get("usage") or {}
        self.record.steps += 1
        self.record.turns.append(
            Turn(
                content=message.get("content") or "",
                summary=summary,
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
            )
        )
        kept = {name: message[name] for name in ("content", "reasoning_content", "tool_calls") if message.get(name) is not None}
        return {"role": "assistant", "content": ""} | kept

    def _run(self, call: Message) -> tuple[str, str, str | None]:
        """One tool call: its command, what the model is shown, and what was submitted (None: the run goes on)."""
        function = call.get("function") or {}
        name, arguments = str(function.get("name") or ""), str(function.get("arguments") or "")
        command, complaint = self._command(name, arguments)
        ran = None if complaint else self._shell(command, self.rules.command_seconds)
        shown = complaint if ran is None else observed(self.rules, ran.output, ran.exit_code)
        turn = self.record.turns[-1]
        turn.calls.append({"id": str(call.get("id") or ""), "name": name, "arguments": arguments})
        turn.results.append(shown)
        first, _, rest = (ran.output if ran else "").lstrip().partition("\n")
        submitted = ran is not None and ran.exit_code == 0 and first.strip() == DONE_MESSAGE
        return command or arguments, shown, rest if submitted else None

    def _command(self, name: str, arguments: str) -> tuple[str, str]:
        """The command of a call, and what is wrong with the call ("" = nothing)."""
        rules = self.rules
        if name != rules.tool_name:
            return "", f"error: there is no tool {name}; use {rules.tool_name}"
        try:
            found = json.loads(arguments)
        except ValueError as error:
            return "", f"error: the arguments are not valid JSON: {error}"
        command = found.get(rules.tool_argument) if isinstance(found, dict) else None
        if not isinstance(command, str) or not _can_be_run(command):
            return "", f"error: the argument {rules.tool_argument} must be the command line, as text"
        return command, ""

    def _compacted(self, task: str, history: list[Message]) -> list[Message]:
        """A fresh history: the task and a summary, of the harness or of the model. Without the model's words, its own."""
        notes = ""
        if self.rules.summary == "model":
            said = self._ask([*history, {"role": "user", "content": self.rules.summary_request}], summary=True)
            notes = str(said["content"]).strip()
        self.record.compactions += 1
        self._since = 0
        return opening(self.rules, task, notes or notes_of(self.rules, self._steps))


def _can_be_run(command: str) -> bool:
    """Whether a command line can be handed to a shell: no null byte, no half of a surrogate pair."""
    try:
        return "\0" not in command and bool(command.encode())
    except UnicodeEncodeError:
        return False


# --- process mode: this file as a program inside the sandbox -------------------------------------------------------------


def local_shell(environment: dict[str, str], workdir: str | None = None) -> Shell:
    """Runs commands beside this process, in its directory or another. Output goes to a file, so that a process left in the
    background keeps no result."""

    def shell(command: str, seconds: float) -> Ran:
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=workdir,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = child.wait(seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                code = 124
            output.seek(0)
            return Ran(output.read(READ_LIMIT).decode("utf-8", errors="replace"), code)

    return shell


def write_record(record: Record, path: Path) -> None:
    """The record as JSON; a reader sees the old one or the new one."""
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(record, default=lambda found: found.__dict__), encoding="utf-8")
    draft.replace(path)


def main(argv: list[str]) -> int:
    """`python whitebox_loop.py CONFIG RECORD`: CONFIG is JSON with rules, task, base_url, model and timeout (seconds)."""
    started = time.monotonic()
    config = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    key = os.environ.pop("OPENAI_API_KEY", "")
    rules, record_path = Rules(**config["rules"]), Path(argv[1])
    model = Model(config["base_url"], key, config["model"], retries=rules.quick_retries, timeout=config["timeout"])
    environment = dict(os.environ) | rules.environment | {"DONE_MESSAGE": DONE_MESSAGE}
    agent = Agent(rules, model, local_shell(environment), lambda record: write_record(record, record_path))
    try:
        agent.run(config["task"], started + config["timeout"])
    except ModelError as error:
        agent.record.exit_status, agent.record.message = "ModelError", str(error)
        write_record(agent.record, record_path)
        sys.stderr.write(f"the model's server failed: {error}\n")
        return 1
    finally:
        model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
