"""`whippletree tasks import`."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.cli.main import main


def test_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "rows.jsonl").write_text('{"q": "a?", "a": "b"}\n{"q": "", "a": "b"}\n')
    words = ["tasks", "import", "questions", str(tmp_path / "rows.jsonl"), "--to", str(tmp_path / "out"), "--answer", "a"]
    assert main([*words, "--question", "q"]) == 0
    out = capsys.readouterr().out
    assert "dropped row-000002  empty statement: column q" in out and f"1 kept in {tmp_path / 'out'}; 1 dropped" in out
    assert main([*words[:-4], "--to", str(tmp_path / "none")]) == 2
    assert "has no column question (its columns are a, q)" in capsys.readouterr().err
    assert main([*words[:-4], "--to", str(tmp_path / "none"), "--question", "qq", "--answer", "a"]) == 2
    assert "has no column qq (did you mean q?)" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text('{"q": "", "a": "b"}\n')
    assert main([*words[:-4], "--to", str(tmp_path / "none"), "--question", "q", "--answer", "a"]) == 1
    assert "0 kept" in capsys.readouterr().out


def test_folders_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "make", "trail", str(tmp_path / "t"), "--train", "2", "--heldout", "0"]) == 0
    assert main(["tasks", "import", "harbor", str(tmp_path / "t" / "train"), "--to", str(tmp_path / "out")]) == 0
    assert "2 kept in" in capsys.readouterr().out
    (tmp_path / "rows.jsonl").write_text('{"instance_id": "a", "problem_statement": ""}\n')
    words = ["tasks", "import", "swe", str(tmp_path / "rows.jsonl"), "--to", str(tmp_path / "swe"), "--mirrors", str(tmp_path)]
    assert main(words) == 1
    assert "dropped a  empty statement" in capsys.readouterr().out
    assert main([*words, "--framework", "nose"]) == 2
    assert "testing.framework is 'nose'" in capsys.readouterr().err


def test_mirrors_that_are_not_there_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "rows.jsonl").write_text('{"instance_id": "a", "repo": "b/c", "problem_statement": "d"}\n')
    words = ["tasks", "import", "swe", str(tmp_path / "rows.jsonl"), "--to", str(tmp_path / "out"), "--mirrors"]
    assert main([*words, str(tmp_path / "nothere")]) == 2
    assert "nothere is no directory" in capsys.readouterr().err and not (tmp_path / "out").exists()
