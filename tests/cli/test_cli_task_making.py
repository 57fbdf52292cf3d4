"""`whippletree tasks make`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from whippletree.cli.main import main
from whippletree.loop.sources import GeneratedTasks
from whippletree.tasks.suites.generated import FAMILIES


def test_every_generated_kind_of_a_run_file_can_be_made():
    assert {kind.__struct_config__.tag for kind in get_args(GeneratedTasks)} == set(FAMILIES)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_second_call_leaves_what_the_first_wrote(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["tasks", "make", kind, str(tmp_path), "--train", "3", "--heldout", "2"]
    assert main(words) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert capsys.readouterr().out.count(f"3 training tasks and 2 held-out tasks in {tmp_path}") == 2
    assert main([*words, "--seed", "9"]) == 2
    assert "exists with other content" in capsys.readouterr().err


def test_families_and_grades_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["tasks", "make", "shell", str(tmp_path), "--train", "4", "--heldout", "0", "--families", "text", "--grades"]
    assert main([*words, "1", "2"]) == 0
    assert {path.name.rpartition("-")[0] for path in (tmp_path / "train").iterdir()} == {
        "shell-train-text-1",
        "shell-train-text-2",
    }
    assert main([*words, "5"]) == 2
    assert main([*words[:-2], "texts"]) == 2
    assert "did you mean text" in capsys.readouterr().err
