"""Reading a harness's own account of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from whippletree.errors import HarnessError
from whippletree.traces import read_account, read_trajectory
from whippletree.traces.atif import content_text

EVERYTHING: dict[str, Any] = {
    "schema_version": "ATIF-v1.8",
    "session_id": "run-1",
    "trajectory_id": "main",
    "agent": {"name": "a", "version": "1", "model_name": "m", "tool_definitions": [{"type": "function"}], "extra": {"k": 1}},
    "notes": "n",
    "steps": [
        {"step_id": 1, "source": "system", "message": "be brief", "timestamp": "2026-01-02T03:04:05Z"},
        {
            "step_id": 2,
            "source": "user",
            "message": [
                {"type": "text", "text": "see "},
                {"type": "image", "source": {"media_type": "image/png", "path": "1.png"}},
                {"type": "audio", "source": {"media_type": "audio/wav", "path": "1.wav", "duration_sec": 1.5}},
            ],
            "is_copied_context": True,
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": "",
            "model_name": "m",
            "reasoning_effort": 0.5,
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": "t1", "function_name": "bash", "arguments": {"command": "ls"}, "extra": {"x": 1}}],
            "observation": {
                "results": [
                    {"source_call_id": "t1", "content": "a.txt", "extra": {"y": 2}},
                    {"subagent_trajectory_ref": [{"trajectory_id": "sub", "session_id": "run-1"}]},
                ]
            },
            "metrics": {
                "prompt_tokens": 12,
                "completion_tokens": 3,
                "cached_tokens": 4,
                "cost_usd": 0.1,
                "prompt_token_ids": [1, 2],
                "completion_token_ids": [3, 4, 5],
                "logprobs": [-0.1, -0.2, -0.3],
                "extra": {"reasoning_tokens": 1},
            },
            "llm_call_count": 1,
            "extra": {"z": 3},
        },
    ],
    "final_metrics": {"total_prompt_tokens": 12, "total_completion_tokens": 3, "total_cached_tokens": 4, "total_steps": 3},
    "extra": {"e": 1},
    "subagent_trajectories": [
        {"schema_version": "ATIF-v1.8", "trajectory_id": "sub", "agent": {"name": "a", "version": "1"}, "steps": []}
    ],
}


def document(**changes: Any) -> bytes:
    return msgspec.json.encode({"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": [], **changes})


def test_all_that_the_format_has_is_read_and_written_back_equal() -> None:
    read = read_trajectory(msgspec.json.encode(EVERYTHING))
    assert msgspec.to_builtins(read) == EVERYTHING
    assert content_text(read.steps[1].message) == "see [image][audio]"
    assert content_text(None) == ""


def test_older_documents_and_unknown_fields_are_read() -> None:
    step = {"step_id": 1, "source": "agent", "message": "hi", "novel": True}
    read = read_trajectory(document(schema_version="ATIF-v1.4", steps=[step], unheard_of=1))
    assert (read.schema_version, read.steps[0].message) == ("ATIF-v1.4", "hi")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "t.json is no ATIF document"),
        (b"[]", "t.json is no ATIF document"),
        (document(steps=[{"step_id": 1, "source": "robot", "message": ""}]), r"steps\[0\]\.source"),
        (document(schema_version="2.0"), "t.json has version '2.0'"),
        (document(steps=[{"step_id": 2, "source": "user", "message": ""}]), "step 1 calls itself 2"),
    ],
)
def test_a_document_that_cannot_be_used_names_the_file_and_the_place(data: bytes, words: str) -> None:
    with pytest.raises(HarnessError, match=words):
        read_trajectory(data, "t.json")


def refer(path: str) -> dict[str, Any]:
    result = {"subagent_trajectory_ref": [{"trajectory_path": path}]}
    return {"step_id": 1, "source": "agent", "message": "", "observation": {"results": [result]}}


def test_continuations_and_subagents_are_followed(tmp_path: Path) -> None:
    inner = {"schema_version": "ATIF-v1.8", "trajectory_id": "deep", "agent": {"name": "a", "version": "1"}, "steps": []}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s.json").write_bytes(document(session_id="s", subagent_trajectories=[inner]))
    (tmp_path / "two.json").write_bytes(document(session_id="two", steps=[refer("sub/s.json")]))
    (tmp_path / "one.json").write_bytes(
        document(session_id="one", continued_trajectory_ref="two.json", steps=[refer("not-there.json")])
    )
    account = read_account(tmp_path / "one.json")
    assert [segment.session_id for segment in account.segments] == ["one", "two"]
    assert [sub.session_id or sub.trajectory_id for sub in account.subagents] == ["s", "deep"]


@pytest.mark.parametrize("name", ["../secret.json", "/etc/hostname", "sub/../../secret.json"])
def test_files_outside_the_documents_folder_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret.json").write_bytes(document())
    for changes in ({"continued_trajectory_ref": name}, {"steps": [refer(name)]}):
        (tmp_path / "run" / "t.json").write_bytes(document(**changes))
        with pytest.raises(HarnessError, match="outside its folder"):
            read_account(tmp_path / "run" / "t.json")


def test_documents_that_continue_each_other_for_ever_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(document(continued_trajectory_ref="two.json"))
    (tmp_path / "two.json").write_bytes(document(continued_trajectory_ref="one.json"))
    with pytest.raises(HarnessError, match="do not end"):
        read_account(tmp_path / "one.json")
    with pytest.raises(HarnessError, match="cannot read"):
        read_account(tmp_path / "none.json")
