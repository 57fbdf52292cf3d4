"""`whippletree tasks inject` and `tasks make bugs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.cli.main import main
from whippletree.tasks.suites.bugs import make_repository


def test_a_repository_becomes_tasks_and_a_second_call_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    repository = make_repository("roman", tmp_path)
    words = ["tasks", "inject", str(repository), "--to", str(tmp_path / "out"), "--count", "2", "--sandbox", "process"]
    assert main([*words, "--seconds", "20"]) == 0
    out = capsys.readouterr().out
    assert out.count("kept    roman-") == 2 and f"2 kept in {tmp_path / 'out'}; " in out
    assert main([*words, "--seconds", "20"]) == 0
    assert "kept    roman-" not in capsys.readouterr().out
    assert main([*words, "--seconds", "30"]) == 2
    assert "journal of other work" in capsys.readouterr().err


def test_no_task_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    repository = make_repository("roman", tmp_path)
    words = ["tasks", "inject", str(repository), "--to", str(tmp_path / "out"), "--sandbox", "process", "--sources", "x.py"]
    assert main(words) == 1
    assert "0 kept in" in capsys.readouterr().out
    assert main([*words, "--framework", "nose"]) == 2
    assert "testing.framework is 'nose'" in capsys.readouterr().err


def test_bugs_are_a_kind_of_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "make", "bugs", str(tmp_path), "--train", "1", "--heldout", "0", "--sandbox", "process"]) == 0
    out = capsys.readouterr().out
    assert f"1 training tasks and 0 held-out tasks in {tmp_path}" in out and "kept    caching-" in out
