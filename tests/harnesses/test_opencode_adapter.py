"""whippletree/harnesses/opencode.py; the record is of a real run"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from adapter_parts import KEY, RECORDS, attempt, placed, read, turns

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses.opencode import DATABASE, OpenCode
from whippletree.protocols import HarnessResult

ROWS: dict[str, list[dict[str, Any]]] = json.loads((RECORDS / "opencode-rows.json").read_text())
SCHEMA = """
create table session (id text primary key, parent_id text, time_created integer not null);
create table message (id text primary key, session_id text not null, time_created integer not null, data text not null);
create table part (id text primary key, message_id text not null, session_id text not null, data text not null);
"""


def database(path: Path, rows: dict[str, list[dict[str, Any]]]) -> bytes:
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.executescript(SCHEMA)
        for table, several in rows.items():
            for row in several:
                values = {key: json.dumps(value) if key == "data" else value for key, value in row.items()}
                names, marks = ", ".join(values), ", ".join(f":{key}" for key in values)
                made.execute(f"insert into {table} ({names}) values ({marks})", values)
        made.commit()
    return path.read_bytes()


@pytest.fixture
def opencode(tmp_path: Path) -> OpenCode:
    return placed(OpenCode, tmp_path)


@pytest.mark.parametrize(
    ("dialect", "package", "base"),
    [
        ("chat", "@ai-sdk/openai-compatible", "http://127.0.0.1:8000/v1"),
        ("responses", "@ai-sdk/openai", "http://127.0.0.1:8000/v1"),
        ("messages", "@ai-sdk/anthropic", "http://127.0.0.1:8000/v1"),
        ("gemini", "@ai-sdk/google", "http://127.0.0.1:8000/v1beta"),
    ],
)
def test_each_dialect_has_its_provider_and_the_key_is_one_variable(
    opencode: OpenCode, dialect: str, package: str, base: str
) -> None:
    plan = opencode.plan(attempt(dialect=dialect))
    assert not any(KEY in word for word in (*plan.argv, *(text for _, text in plan.files)))
    assert all(path.startswith("/home/agent/.config/opencode/") for path, _ in plan.files)
    assert [name for name, value in plan.environment.items() if KEY in value] == ["WHIPPLETREE_KEY"]
    provider = json.loads(plan.environment["OPENCODE_CONFIG_CONTENT"])["provider"]["whippletree"]
    assert (provider["npm"], provider["options"]["baseURL"]) == (package, base)
    assert provider["options"]["apiKey"] == "{env:WHIPPLETREE_KEY}" and list(provider["models"]) == ["policy"]
    assert plan.stdin == attempt().instruction and plan.records == (DATABASE, f"{DATABASE}-wal")
    assert plan.argv[-2:] == ("--title", "task") and plan.environment["HOME"] == "/home/agent"


def test_settings_reach_its_configuration(opencode: OpenCode) -> None:
    settings: dict[str, Any] = {"system_prompt": "S", "tools": ["bash"], "step_limit": 4, "title": True, "snapshots": True}
    plan = opencode.plan(attempt(context_tokens=9, output_tokens=3, compaction=False, **settings))
    found = json.loads(plan.environment["OPENCODE_CONFIG_CONTENT"])
    assert found["agent"]["build"] == {"prompt": "S", "steps": 4, "tools": {"*": False, "bash": True}}
    assert found["compaction"]["auto"] is False and found["snapshot"] is True and "--title" not in plan.argv
    assert found["provider"]["whippletree"]["models"]["policy"]["limit"] == {"context": 9, "output": 3}
    (plugin,) = [text for path, text in plan.files if path.endswith("/plugin/step-limit.js")]
    assert "++calls > 4" in plugin and "whippletree: the step limit is reached" in plugin
    assert not any("/plugin/" in path for path, _ in opencode.plan(attempt()).files)
    default = json.loads(opencode.plan(attempt()).environment["OPENCODE_CONFIG_CONTENT"])
    assert (default["agent"], default["autoupdate"], default["share"]) == ({}, False, "disabled")
    with pytest.raises(ConfigurationError, match=r"harness opencode: .*tool"):
        opencode.plan(attempt(tool=["bash"]))


def test_its_output_says_how_it_ended() -> None:
    step = {"type": "step_finish", "part": {"reason": "stop"}}
    text = {"type": "text", "part": {"text": "Done."}}
    error = {"type": "error", "error": {"name": "APIError", "data": {"message": "busy"}}}

    def ended(code: int, *events: dict[str, Any]) -> HarnessResult:
        return OpenCode().result(code, "a note\n" + "\n".join(map(json.dumps, events)), None)

    assert ended(0, step, text, step) == HarnessResult(exit_status="Completed", steps=2, message="Done.")
    assert ended(0, step, error) == HarnessResult(exit_status="APIError", steps=1, crashed=True, message="busy")
    full = {"type": "error", "error": {"name": "APIError", "data": {"message": "prompt is too long: 9001 tokens"}}}
    assert (ended(0, step, full).exit_status, ended(0, step, full).ran_out) == ("ContextWindowExceeded", "budget")
    assert ended(0, error, text, step) == HarnessResult(exit_status="Completed", steps=1, message="Done.")
    assert ended(1, error, text, step).exit_status == "Completed"
    assert ended(1, step).exit_status == "Exit1" and ended(1, step).crashed
    assert ended(0).exit_status == "NoTurn" and ended(0).crashed
    assert ended(124, step).ran_out == "time"
    limit = {"type": "error", "error": {"name": "UnknownError", "data": {"message": "whippletree: the step limit is reached"}}}
    assert ended(1, step, step, limit) == HarnessResult(exit_status="StepLimit", steps=2, ran_out="budget")


def test_its_database_is_its_account(tmp_path: Path) -> None:
    told = read(OpenCode().account("", {DATABASE: database(tmp_path / "db", ROWS)}))
    assert turns(told) == [
        ("I write the file.", ["bash"], 15346, 86),
        ("Done, the file is written.", [], 15470, 10),
    ]
    assert [step.source for step in told.steps] == ["user", "agent", "agent"] and told.subagent_trajectories is None
    first = told.steps[1]
    assert first.reasoning_content == "the file is missing" and first.observation is not None
    assert first.observation.results[0].content == "(no output)" and first.metrics is not None
    assert first.metrics.cached_tokens == 11 and str(first.timestamp).startswith("2026-11-30T03:01:26")


def test_what_is_in_the_log_alone_counts_too(tmp_path: Path) -> None:
    """It is often killed before the write-ahead log is folded into the database."""
    path = tmp_path / "db"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("pragma journal_mode = wal")
        made.execute("pragma wal_autocheckpoint = 0")
        made.executescript(SCHEMA)
        made.execute("insert into session values ('s', null, 1)")
        made.execute("insert into message values ('m', 's', 1, '{\"role\": \"user\"}')")
        made.execute("insert into part values ('p', 'm', 's', '{\"type\": \"text\", \"text\": \"go\"}')")
        made.commit()
        files = {DATABASE: path.read_bytes(), f"{DATABASE}-wal": path.with_name("db-wal").read_bytes()}
    assert [step.message for step in read(OpenCode().account("", files)).steps] == ["go"]


def test_a_sub_agent_is_a_trajectory_of_its_own_and_a_failed_call_is_no_turn_of_the_model(tmp_path: Path) -> None:
    child = {"id": "ses_child", "parent_id": ROWS["session"][0]["id"], "time_created": 2_000_000_000_000}
    failed = {"role": "assistant", "tokens": {"input": 0, "output": 0}, "error": {"name": "APIError"}}
    message = {"id": "msg_child", "session_id": "ses_child", "time_created": 1, "data": failed}
    rows = {"session": [*ROWS["session"], child], "message": [*ROWS["message"], message], "part": ROWS["part"]}
    told = read(OpenCode().account("", {DATABASE: database(tmp_path / "db", rows)}))
    (below,) = told.subagent_trajectories or []
    assert below.trajectory_id == "ses_child" and [step.llm_call_count for step in below.steps] == [0]


def test_without_a_database_there_is_no_account_and_a_damaged_one_is_an_error() -> None:
    assert OpenCode().account("", {}) is None
    with pytest.raises(HarnessError, match="cannot be read"):
        OpenCode().account("", {DATABASE: b"SQLite format 3\0" + b"nonsense" * 100})
