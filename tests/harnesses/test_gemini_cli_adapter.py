"""whippletree/harnesses/gemini_cli.py; the record is of a real run"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adapter_parts import KEY, RECORDS, attempt, placed, read, turns

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses.gemini_cli import CHATS, SUBAGENT_CHATS, SYSTEM, GeminiCli, read_session
from whippletree.protocols import HarnessResult

FOLDER = "/home/agent/.gemini/tmp/app/chats"
SESSION = (RECORDS / "gemini-cli-session.jsonl").read_bytes()


@pytest.fixture
def gemini(tmp_path: Path) -> GeminiCli:
    return placed(GeminiCli, tmp_path)


def test_a_plan_keeps_the_key_in_the_environment_alone(gemini: GeminiCli) -> None:
    plan = gemini.plan(attempt(system_prompt="S"))
    assert not any(KEY in word for word in plan.argv) and not any(KEY in text for _, text in plan.files)
    assert plan.environment["GEMINI_API_KEY"] == KEY and plan.environment["HOME"] == "/home/agent"
    assert plan.environment["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:8000"
    assert plan.environment["GEMINI_SYSTEM_MD"] == SYSTEM and dict(plan.files)[SYSTEM] == "S"
    assert (plan.stdin, plan.records) == (attempt().instruction, (CHATS, SUBAGENT_CHATS))
    assert plan.argv[:3] == ("/opt/harnesses/gemini-cli/node_modules/.bin/gemini", "--model", "policy")


def test_settings_reach_its_settings_file(gemini: GeminiCli) -> None:
    plan = gemini.plan(attempt(model="gemini-2.5-pro", tools=["read_file"], step_limit=4, request_attempts=2))
    (settings,) = [json.loads(text) for path, text in plan.files if path.endswith("settings.json")]
    assert plan.argv[2] == "gemini-2.5-pro" and "GEMINI_SYSTEM_MD" not in plan.environment
    assert settings["tools"]["core"] == ["read_file"] and settings["model"]["maxSessionTurns"] == 4
    assert settings["general"]["maxAttempts"] == 2 and settings["general"]["enableAutoUpdate"] is False
    assert settings["telemetry"] == {"enabled": False} and settings["privacy"] == {"usageStatisticsEnabled": False}
    (default,) = [json.loads(text) for path, text in gemini.plan(attempt()).files if path.endswith("settings.json")]
    assert "core" not in default["tools"] and "maxSessionTurns" not in default["model"]


def test_what_is_wrong_is_named(gemini: GeminiCli, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"harness gemini-cli: .*step_limits.*step_limit"):
        gemini.plan(attempt(step_limits=4))
    with pytest.raises(HarnessError, match="harness install gemini-cli"):
        GeminiCli(tmp_path / "elsewhere").plan(attempt())


def lines(*events: dict[str, object]) -> str:
    return "YOLO mode is enabled.\n" + "\n".join(json.dumps(event) for event in events) + "\n{cut"


def test_the_last_event_and_the_exit_code_say_how_it_ended() -> None:
    init = {"type": "init", "session_id": "s", "model": "policy"}
    used = {"type": "tool_use", "tool_name": "run_shell_command", "tool_id": "1"}
    said = {"type": "message", "role": "assistant", "content": "Done, ", "delta": True}
    done = {"type": "result", "status": "success", "stats": {}}
    failed = {"type": "result", "status": "error", "error": {"type": "unknown", "message": "[API Error: terminated]"}}
    result = GeminiCli().result
    first = said | {"content": "I look."}
    assert result(0, lines(init, first, used, said, said | {"content": "all."}, done), None) == HarnessResult(
        exit_status="Completed", steps=2, message="Done, all."
    )
    assert result(1, lines(init, failed), None) == HarnessResult(
        exit_status="unknown", steps=1, crashed=True, message="[API Error: terminated]"
    )
    full = {"type": "result", "status": "error", "error": {"message": "exceeds the maximum number of tokens allowed"}}
    assert result(144, lines(init, full), None).exit_status == "ContextWindowExceeded"
    assert result(53, lines(init, used), None) == HarnessResult(exit_status="TurnLimit", steps=1, ran_out="budget")
    assert result(124, lines(init), None).ran_out == "time"
    assert result(42, "no input", None) == HarnessResult(exit_status="Exit42", crashed=True, message="no input")


def test_its_session_file_is_its_account() -> None:
    told = read(GeminiCli().account("", {f"{FOLDER}/session-1.jsonl": SESSION, f"{FOLDER}/notes.txt": b"plain"}))
    assert turns(told) == [
        ("I write the file.", ["run_shell_command"], 24843, 92),
        ("Done, the file is written.", [], 25015, 10),
    ]
    first = next(step for step in told.steps if step.source == "agent")
    assert first.reasoning_content == "the file is missing" and first.observation is not None
    (result,) = first.observation.results
    assert result.source_call_id == (first.tool_calls or [])[0].tool_call_id and "Output: (empty)" in str(result.content)
    assert [step.source for step in told.steps] == ["user", "user", "agent", "agent"] and told.subagent_trajectories is None


def test_a_sub_agent_is_a_trajectory_of_its_own_and_without_a_main_session_there_is_none() -> None:
    child = SESSION.replace(b'"kind":"main"', b'"kind":"subagent"').replace(b"aa53cf66", b"bb53cf66")
    told = read(GeminiCli().account("", {f"{FOLDER}/a.jsonl": SESSION, f"{FOLDER}/aa53/b.jsonl": child}))
    (below,) = told.subagent_trajectories or []
    assert below.trajectory_id == below.session_id != told.session_id and len(turns(below)) == 2
    assert GeminiCli().account("", {f"{FOLDER}/b.jsonl": child}) is None and GeminiCli().account("", {}) is None


def test_turns_of_a_history_that_was_replaced_are_kept_and_a_cut_line_is_passed_over() -> None:
    replaced = {"$set": {"messages": [{"id": "new", "type": "user", "content": [{"text": "a summary"}]}]}}
    session = read_session(SESSION + json.dumps(replaced).encode() + b'\n{"id": "cut')
    assert session is not None and [message["type"] for message in session.messages].count("gemini") == 2
    assert session.messages[-1]["id"] == "new"
    assert read_session(b"[1]\n") is None and read_session(b"") is None
