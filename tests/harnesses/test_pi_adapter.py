"""whippletree/harnesses/pi.py; the record is of a real run"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adapter_parts import KEY, RECORDS, attempt, placed, read, turns

from whippletree.errors import ConfigurationError
from whippletree.harnesses.pi import DIRECTORY, EXTENSION, SESSION, Pi
from whippletree.protocols import HarnessResult


@pytest.fixture
def pi(tmp_path: Path) -> Pi:
    return placed(Pi, tmp_path)


def test_a_plan_keeps_the_key_off_the_command_line_and_out_of_files(pi: Pi) -> None:
    plan = pi.plan(attempt(system_prompt="S", system_append="A", step_limit=4))
    assert not any(KEY in word for word in plan.argv) and not any(KEY in text for _, text in plan.files)
    assert plan.environment["WHIPPLETREE_KEY"] == KEY and plan.environment["PI_OFFLINE"] == "1"
    assert (plan.environment["HOME"], plan.environment["PI_CODING_AGENT_DIR"]) == ("/home/agent", DIRECTORY)
    assert (plan.stdin, plan.trajectory) == (attempt().instruction, SESSION)
    files = dict(plan.files)
    assert (files[f"{DIRECTORY}/system-prompt.md"], files[f"{DIRECTORY}/append-system-prompt.md"]) == ("S", "A")
    assert "turns >= 4" in files[EXTENSION] and plan.argv[-2:] == ("--extension", EXTENSION)


@pytest.mark.parametrize(
    ("dialect", "api", "base"),
    [
        ("chat", "openai-completions", "http://127.0.0.1:8000/v1"),
        ("responses", "openai-responses", "http://127.0.0.1:8000/v1"),
        ("messages", "anthropic-messages", "http://127.0.0.1:8000"),
        ("gemini", "google-generative-ai", "http://127.0.0.1:8000/v1beta"),
    ],
)
def test_each_dialect_has_its_address(pi: Pi, dialect: str, api: str, base: str) -> None:
    files = dict(pi.plan(attempt(dialect=dialect, reasoning=True, context_tokens=9, output_tokens=3)).files)
    (provider,) = json.loads(files[f"{DIRECTORY}/models.json"])["providers"].values()
    (model,) = provider["models"]
    assert (provider["api"], provider["baseUrl"], provider["apiKey"]) == (api, base, "WHIPPLETREE_KEY")
    assert (model["id"], model["reasoning"], model["contextWindow"], model["maxTokens"]) == ("policy", True, 9, 3)


def test_tools_retries_and_compaction(pi: Pi) -> None:
    plan = pi.plan(attempt(tools=["bash", "ls"], compaction=False, request_retries=0, arguments=["--thinking", "low"]))
    assert plan.argv[plan.argv.index("--tools") + 1] == "bash,ls" and plan.argv[-2:] == ("--thinking", "low")
    settings = json.loads(dict(plan.files)[f"{DIRECTORY}/settings.json"])
    assert (settings["compaction"]["enabled"], settings["retry"]["enabled"]) == (False, False)
    assert "--no-tools" in pi.plan(attempt(tools=[])).argv


def test_wrong_settings_are_named(pi: Pi) -> None:
    with pytest.raises(ConfigurationError, match=r"harness pi: dialect is 'gemin' .*gemini"):
        pi.plan(attempt(dialect="gemin"))


def session(*messages: dict[str, object]) -> bytes:
    return "\n".join(json.dumps({"type": "message", "timestamp": "t", "message": message}) for message in messages).encode()


def turn(reason: str, text: str = "", error: str = "") -> dict[str, object]:
    message = {"role": "assistant", "stopReason": reason, "content": [{"type": "text", "text": text}]}
    return message | ({"errorMessage": error} if error else {})


@pytest.mark.parametrize(
    ("code", "left", "expected"),
    [
        (0, session(turn("toolUse"), turn("stop", "Done.")), HarnessResult(exit_status="Completed", steps=2, message="Done.")),
        (
            0,  # the exit code lies
            session(turn("toolUse"), turn("error", error="500 the engine is gone")),
            HarnessResult(exit_status="ApiError", steps=1, message="500 the engine is gone", crashed=True),
        ),
        (
            1,
            session(turn("toolUse"), turn("error", error="400 This model's maximum context length is 10 tokens.")),
            HarnessResult(
                exit_status="ContextWindowExceeded",
                steps=1,
                message="400 This model's maximum context length is 10 tokens.",
                ran_out="budget",
            ),
        ),
        (
            0,
            session(turn("toolUse"), turn("toolUse"), turn("aborted")),
            HarnessResult(exit_status="StepLimit", steps=2, ran_out="budget"),
        ),
        (1, session(turn("stop", "x")), HarnessResult(exit_status="Exit1", steps=1, message="said", crashed=True)),
        (1, None, HarnessResult(exit_status="Exit1", message="said", crashed=True)),
        (
            124,
            session(turn("toolUse")),
            HarnessResult(exit_status="TimedOut", steps=1, message="ended at its time limit", ran_out="time"),
        ),
    ],
)
def test_what_its_end_means(pi: Pi, code: int, left: bytes | None, expected: HarnessResult) -> None:
    assert pi.result(code, "said", left) == expected


def test_its_session_becomes_a_document(pi: Pi) -> None:
    told = read(pi.account("", {SESSION: (RECORDS / "pi.jsonl").read_bytes()}))
    assert turns(told) == [
        ("I look twice.", ["bash", "bash"], 3015, 86),
        ("Done, the file is written.", [], 3173, 8),
    ]
    step = next(step for step in told.steps if step.source == "agent")
    assert step.reasoning_content == "two commands" and step.observation is not None
    assert [(one.content, one.extra) for one in step.observation.results] == [
        ("one\n", None),
        ("(no output)\n\nCommand exited with code 3", {"is_error": True}),
    ]


def test_turns_that_were_not_sampled_are_no_steps_and_summaries_are_the_systems(pi: Pi) -> None:
    lines = (
        session(turn("error", error="500"), turn("stop", "b")) + b'\n{"type":"compaction","summary":"So far."}\n{"type":"mess'
    )
    told = read(pi.account("", {SESSION: lines}))
    assert [(step.source, step.message) for step in told.steps] == [("agent", "b"), ("system", "So far.")]


def test_without_a_session_there_is_no_account(pi: Pi) -> None:
    assert pi.account("anything", {}) is None
