"""The OpenHands SDK, unmodified: its agent, tools and conversation, started by a small file of ours (openhands_driver.py).

The SDK keeps every event of a conversation as a file; the agent's actions and messages among them name the model's response
that they came from, and its token counts are in the ending that our file writes.

Invariants (tests/harnesses/test_openhands_adapter.py): the key is in the environment alone, and not in that of commands; the
ending decides; every response of the model that the events name is one step of the account.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from whippletree.errors import ConfigurationError
from whippletree.harnesses import openhands_driver
from whippletree.harnesses.atif_steps import Steps, counts, text_of
from whippletree.harnesses.ends import crashed, last_words, out_of_context
from whippletree.harnesses.packages import HOME, Packaged, read_settings
from whippletree.harnesses.python_config import OpenHandsSettings
from whippletree.harnesses.reading import overflowed, tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent, StepToolCall

VERSION = "1.58.2"
FOLDER = "/logs/agent/openhands"
_SOURCE = Path(openhands_driver.__file__)
_EVENTS = f"{FOLDER}/conversation/*/events/*.json"
_OUT_OF_STEPS = "MaxIterationsReached"
_OVERFLOWS = ("LLMContextWindowExceedError", "LLMContextWindowTooSmallError")
_SWITCHES = {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}


class OpenHands(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "openhands"
    version = VERSION
    package = Package(
        kind="pip",
        name="openhands-sdk",
        version=VERSION,
        size_mb=657,
        also=(f"openhands-tools=={VERSION}",),
        python="3.12",
    )
    settings = OpenHandsSettings
    facts = HarnessFacts(
        dialects=("chat",),
        streams=False,
        shell_tool="terminal",
        second_request="breaks",
        sampled_turn="arguments re-serialised, reasoning dropped",
        thread_headers=("x-litellm-session-id",),
        compacts=True,
        exit_code="0: the agent finished; 3: an error, a limit or a loop ended it; 1: it could not start.",
        variations=("tools", "system", "steps"),
        fixed_prompt_chars=33_000,
        record_differs=("arguments",),
        probe=Probe(compaction={"condense_at": 12}, extending={"treat_as": "kimi-k2-thinking"}),
        notes=(
            "Reasoning is not sent back, which breaks the prefix of a model that thinks; with treat_as it is.",
            "A turn without a tool call ends the conversation like a call of `finish`.",
            "A tool result holds the working directory, the Python in use and the exit code.",
            "It waits 8 to 64 seconds before it repeats a failed request, five times.",
            "It stops as `stuck` when the model repeats itself.",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """Our file and a request without the key. Raises HarnessError where it is not installed, ConfigurationError."""
        self.check_installed()
        settings = read_settings(OpenHandsSettings, spec, self.name)
        unknown = set(settings.tools) - {"terminal", "file_editor", "task_tracker", *openhands_driver.BUILT_IN}
        if unknown:
            known = "terminal, file_editor, task_tracker, finish and think"
            raise ConfigurationError(f"harness openhands: tools has {sorted(unknown)[0]!r}", f"it has {known}")
        request = {
            "instruction": spec.instruction,
            "workdir": spec.workdir,
            "llm": _model(settings, spec),
            "tools": settings.tools,
            "system_prompt": settings.system_prompt,
            "condense_at": settings.condense_at,
            "step_limit": settings.step_limit,
        }
        program, path = f"{FOLDER}/{_SOURCE.name}", f"{FOLDER}/request.json"
        return LaunchPlan(
            argv=(*self.binary("python"), "-B", program, path),
            environment=_SWITCHES | {"HOME": HOME, openhands_driver.KEY: spec.api_key},
            files=((program, _SOURCE.read_text(encoding="utf-8")), (path, json.dumps(request))),
            trajectory=f"{FOLDER}/{openhands_driver.ENDING}",
            records=(_EVENTS,),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """What its ending says; without one it crashed."""
        try:
            ending = msgspec.json.decode(trajectory or b"", type=_Ending)
        except msgspec.MsgspecError:
            return crashed(f"Exit{exit_code}", 0, last_words(output))
        steps, message = len(ending.usages), last_words(ending.detail)
        if ending.error == _OUT_OF_STEPS:
            return HarnessResult(exit_status=_OUT_OF_STEPS, steps=steps, message=message, ran_out="budget")
        if ending.error in _OVERFLOWS or (ending.error and overflowed(ending.detail)):
            return out_of_context(steps, message)
        if ending.error or ending.status == "error":
            return crashed(ending.error or "error", steps, message)
        return HarnessResult(exit_status=ending.status, steps=steps, message=message)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its events as one document. Raises msgspec.MsgspecError where an event cannot be read."""
        events = [data for path, data in sorted(records.items()) if "/events/event-" in path]
        if not events:
            return None
        ending = records.get(f"{FOLDER}/{openhands_driver.ENDING}")
        told = msgspec.json.decode(ending, type=_Ending) if ending else _Ending(status="")
        return msgspec.json.encode(
            _told([msgspec.json.decode(data, type=_Event) for data in events], told.usages + told.summing_up).trajectory(
                Agent(name=self.name, version=self.version)
            )
        )


def _model(settings: OpenHandsSettings, spec: AttemptSpec) -> dict[str, Any]:
    """The model as the SDK's LLM takes it, without the key."""
    model: dict[str, Any] = {
        "model": f"openai/{spec.model}",
        "base_url": spec.base_url,
        "timeout": max(1, int(spec.timeout)),
        "num_retries": settings.retries,
    }
    return model | ({"model_canonical_name": settings.treat_as} if settings.treat_as else {})


class _Usage(msgspec.Struct):
    response_id: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_read_tokens: int = 0


class _Ending(msgspec.Struct):
    """What openhands_driver.py writes. `summing_up`: the counts of calls that sum the history up."""

    status: str
    error: str = ""
    detail: str = ""
    usages: list[_Usage] = []
    summing_up: list[_Usage] = []


class _Text(msgspec.Struct):
    text: str = ""


class _Said(msgspec.Struct):
    role: str = ""
    content: list[_Text] = []
    reasoning_content: str | None = None


class _Call(msgspec.Struct):
    id: str = ""
    name: str = ""
    arguments: str = ""


class _Observation(msgspec.Struct):
    content: list[_Text] = []
    is_error: bool = False


class _Event(msgspec.Struct):
    """The parts of an event's file that are read here; its kind decides which of them it has."""

    kind: str
    source: str = ""
    timestamp: str | None = None
    system_prompt: _Text | None = None
    llm_message: _Said | None = None
    llm_response_id: str | None = None
    thought: list[_Text] = []
    reasoning_content: str | None = None
    tool_call: _Call | None = None
    tool_call_id: str | None = None
    observation: _Observation | None = None
    error: str | None = None
    summary: str | None = None


def _text(parts: list[_Text]) -> str:
    return "".join(part.text for part in parts)


def _told(events: list[_Event], usages: list[_Usage]) -> Steps:
    """The conversation. Actions of one response are one turn, whose tool calls may be apart in the events."""
    steps, counted = Steps(), {usage.response_id: usage for usage in usages}
    responses = dict(_responses(events))
    for event in events:
        made = responses.pop(event.llm_response_id, None) if event.llm_response_id else None
        if made is not None:
            text, reasoning, calls = made
            usage = counted.get(event.llm_response_id or "", _Usage(response_id=""))
            spent = counts(usage.prompt_tokens, usage.completion_tokens, usage.cache_read_tokens)
            steps.turn(text, calls, spent, reasoning=reasoning, timestamp=event.timestamp)
        if event.system_prompt is not None:
            steps.say("system", event.system_prompt.text, event.timestamp)
        elif event.kind == "MessageEvent" and event.llm_message is not None and event.source == "user":
            steps.say("user", _text(event.llm_message.content), event.timestamp)
        elif event.observation is not None and event.tool_call_id:
            steps.observe(event.tool_call_id, _text(event.observation.content), failed=event.observation.is_error)
        elif event.kind == "AgentErrorEvent" and event.tool_call_id:
            steps.observe(event.tool_call_id, text_of(event.error), failed=True)
    return steps


def _responses(events: list[_Event]) -> Iterator[tuple[str, tuple[str, str, list[StepToolCall]]]]:
    """Each response's id, its text and reasoning, and its tool calls."""
    for name in dict.fromkeys(event.llm_response_id for event in events if event.llm_response_id):
        mine = [event for event in events if event.llm_response_id == name]
        summary = next((text_of(event.summary) for event in mine if event.kind == "Condensation"), None)
        if summary is not None:
            yield name, (summary, "", [])
            continue
        mine = [event for event in mine if event.source == "agent"]
        text = "".join(_text(event.thought) or _text(event.llm_message.content if event.llm_message else []) for event in mine)
        thought = [
            event.reasoning_content or (event.llm_message and event.llm_message.reasoning_content) or "" for event in mine
        ]
        called = [event.tool_call for event in mine if event.tool_call is not None]
        yield name, (text, "".join(thought[:1]), [tool_call(call.id, call.name, call.arguments) for call in called])
