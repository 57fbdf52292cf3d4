"""What a judge is shown of an attempt: a real store with calls of several kinds, and files beside the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_parts import record_said, rubric

from whippletree.control.rubrics.config import RubricConfig
from whippletree.control.rubrics.evidence import _within, evidence_of
from whippletree.control.rubrics.prompt import Part
from whippletree.errors import StoreError, VerifierError
from whippletree.files import write_json
from whippletree.store import SqliteStore, open_store
from whippletree.tasks.artifacts import Collected, Manifest
from whippletree.types import (
    Attempt,
    Message,
    ParsedMessage,
    RolloutSpec,
    ToolCall,
    VerifierResult,
)

SPEC = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path / "store") as opened:
        opened.create_rollouts([SPEC]).result()
        opened.claim("w", 1).result()
        yield opened


def attempt(**scores: float) -> Attempt:
    return Attempt(
        rollout_id="r", attempt=1, started=0.0, result=VerifierResult(reward=None, scores=scores, output="two of three pass\n")
    )


def look(store: SqliteStore, tmp_path: Path, **settings: Any) -> dict[str, list[str]]:
    """Texts by title."""
    found = evidence_of(seeing(**settings), store, attempt(correct=0.5), "Do it.", tmp_path / "artifacts")
    texts: dict[str, list[str]] = {"instruction": [found.instruction]}
    for part in found.parts:
        texts.setdefault(part.title, []).append(part.text)
    return texts


def seeing(**settings: Any) -> RubricConfig:
    return rubric("http://127.0.0.1:1/v1", **settings)


def talk(store: SqliteStore) -> None:
    """Two main calls with a sub-agent's between them, and a title that was asked for aside."""
    call = ToolCall(id="c1", name="bash", arguments='{"command": "ls"}')
    first = [Message(role="system", content="SECRET RULES"), Message(role="user", content="Do it.")]
    record_said(store, "r", 0, first, ParsedMessage(content="I look.", reasoning="HIDDEN THOUGHT", tool_calls=(call,)), tools=1)
    record_said(
        store, "r", 1, [Message(role="user", content="SUB TASK")], ParsedMessage(content="SUB ANSWER"), role="subagent", tools=1
    )
    record_said(store, "r", 2, [Message(role="user", content="TITLE?")], ParsedMessage(content="TITLE"), role="side")
    rest = [Message(role="tool", content="a.txt \x1b[31m", tool_call_id="c1")]
    record_said(
        store, "r", 3, rest, ParsedMessage(content="It is done."), base_call_id="c-r-0", parent_call_id="c-r-0", tools=1
    )


def test_the_last_message_and_the_instruction_are_what_is_seen_by_default(store: SqliteStore, tmp_path: Path) -> None:
    talk(store)
    assert look(store, tmp_path) == {"instruction": ["Do it."], "last message": ["It is done."]}


def test_the_conversation_is_the_main_one_without_thinking_and_system_prompts(store: SqliteStore, tmp_path: Path) -> None:
    talk(store)
    seen = look(store, tmp_path, sees=("transcript", "verifier"))
    assert seen == {
        "instruction": [""],
        "user": ["Do it."],
        "assistant": ['I look.\nbash {"command": "ls"}', "It is done."],
        "tool": ["a.txt \\x1b[31m"],
        "output and scores of the tests": ["two of three pass\n\ncorrect = 0.5"],
    }


def test_an_attempt_that_said_nothing_has_an_answer_that_says_so(store: SqliteStore, tmp_path: Path) -> None:
    assert look(store, tmp_path)["last message"] == ["(it said nothing)"]


def test_parts_are_within_the_limit(store: SqliteStore, tmp_path: Path) -> None:
    record_said(store, "r", 0, [Message(role="user", content="u" * 5000)], ParsedMessage(content="a" * 5000))
    seen = look(store, tmp_path, characters=1000, sees=("instruction", "answer", "transcript"))
    (answer,) = seen["last message"]
    assert answer == f"{'a' * 500}\n[4000 characters are left out here]\n{'a' * 500}"
    assert sum(text.count("u") for text in seen["user"]) == 251  # a quarter, and the u of "out"


@given(sizes=st.lists(st.integers(0, 30), max_size=12), limit=st.integers(1, 80))
def test_a_long_conversation_loses_its_middle_and_says_how_much(sizes: list[int], limit: int) -> None:
    parts = [Part(title=str(number), text="x" * size) for number, size in enumerate(sizes)]
    kept = _within(parts, limit)
    numbers = [int(part.title) for part in kept if part.title != "note"]
    notes = [part for part in kept if part.title == "note"]
    assert numbers == sorted(numbers)
    assert sum(min(size, max(1, limit // 4)) for number, size in enumerate(sizes) if number in numbers) <= limit
    left = len(parts) - len(numbers)
    assert [note.text for note in notes] == ([f"({left} messages are left out here)"] if left else [])
    if notes and len(numbers) > 1:
        assert numbers[0] == 0 and numbers[-1] == len(parts) - 1


def test_files_are_those_of_the_artifacts_and_no_others(store: SqliteStore, tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    (folder / "app" / "out").mkdir(parents=True)
    (folder / "app" / "out" / "report.md").write_bytes(b"fine \xff")
    (tmp_path / "secret").write_text("SECRET")
    (folder / "app" / "out" / "link").symlink_to(tmp_path / "secret")
    write_json(folder / "manifest.json", Manifest(step="", artifacts=(Collected(source="/app/out", path="app/out"),)))
    names = ("/app/out/report.md", "/app/out/link", "/app/out/../../../secret", "/app/other", "/app/out")
    seen = look(store, tmp_path, sees=("answer",), files=names)
    assert seen["file /app/out/report.md"] == ["fine \ufffd"]
    assert all(seen[f"file {name}"] == ["(it is not there)"] for name in names[1:])
    assert look(store, tmp_path / "nothing", sees=("answer",), files=names[:1])["file /app/out/report.md"] == [
        "(it is not there)"
    ]


def test_a_conversation_that_is_gone_or_broken_is_an_error(store: SqliteStore, tmp_path: Path) -> None:
    record_said(store, "r", 0, [], b"no json")
    with pytest.raises(VerifierError, match="call c-r-0: its reply cannot be read"):
        look(store, tmp_path)
    store.release(["r"])
    with pytest.raises(StoreError, match="released"):
        look(store, tmp_path)
