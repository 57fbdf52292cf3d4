"""whippletree/cli/main.py: paths that cannot be read or written are told, never a traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from whippletree.cli import main as command_line
from whippletree.cli.main import PATHS, main


def refused(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """The one message of a command that ends with status 2."""
    assert main([str(argument) for argument in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Errno" not in err
    return err


@pytest.mark.parametrize(
    "argv",
    [
        ("tasks", "make", "shell", "{file}", "--train", "1", "--heldout", "1"),
        ("tasks", "make", "trail", "{file}/below", "--train", "1", "--heldout", "1"),
        ("tasks", "filter", "{tasks}", "--to", "{file}"),
        ("tasks", "import", "harbor", "{tasks}", "--to", "{file}"),
        ("tasks", "import", "questions", "{rows}", "--to", "{file}"),
    ],
)
def test_a_file_in_the_place_of_a_directory_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]):
    file = tmp_path / "file"
    file.write_text("mine")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "a?", "answer": "b"}\n')
    main(["tasks", "make", "trail", str(tmp_path / "t"), "--train", "1", "--heldout", "0"])
    capsys.readouterr()
    told = refused(capsys, *(word.format(file=file, rows=rows, tasks=tmp_path / "t" / "train") for word in argv))
    assert str(file) in told and "choose another path" in told
    assert file.read_text() == "mine"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_each_refusal_of_the_system_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "x"))

    monkeypatch.setattr("whippletree.cli.task_making.write_family", refuse)
    told = refused(capsys, "tasks", "make", "trail", tmp_path)
    assert f"{tmp_path / 'x'}: {os.strerror(number)} ({PATHS[number]})" in told


def test_an_error_of_the_system_that_is_about_no_path_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("whippletree.cli.task_making.write_family", fail)
    with pytest.raises(OSError, match="too many open files"):
        command_line.main(["tasks", "make", "trail", str(tmp_path)])


def test_the_directory_of_a_grid_is_told_from_that_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "grid" / "models" / "tiny" / "store").mkdir(parents=True)
    told = refused(capsys, "rollouts", "list", tmp_path / "grid")
    assert "is a grid" in told and str(tmp_path / "grid" / "models" / "tiny") in told
    assert "has no store" in refused(capsys, "rollouts", "list", tmp_path)


def test_what_is_missing_is_told_without_the_number_of_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    facts, missing = tmp_path / "facts.toml", "No such file or directory"
    told = refused(capsys, "harness", "check", "whitebox", "--facts", facts)
    assert f"{facts} cannot be read: {missing} (give a TOML file with keys of HarnessFacts)" in told
    main(["tasks", "make", "trail", str(tmp_path / "t"), "--train", "1", "--heldout", "0"])
    capsys.readouterr()
    (task,) = (tmp_path / "t" / "train").iterdir()
    recipe = task / "environment" / "Dockerfile"
    recipe.unlink()
    assert f"{recipe} cannot be read: {missing} (a task needs environment/Dockerfile)" in refused(capsys, "tasks", "show", task)


def test_a_directory_of_tasks_is_told_from_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "make", "trail", str(tmp_path / "t"), "--train", "2", "--heldout", "1"]) == 0
    capsys.readouterr()
    for command in ("run", "show"):
        told = refused(capsys, "tasks", command, tmp_path / "t" / "train")
        assert "is no task, it holds 2 (name one of them, for example " in told
    splits = f"they are in {tmp_path / 't' / 'heldout'}, {tmp_path / 't' / 'train'}"
    assert splits in refused(capsys, "tasks", "list", tmp_path / "t")
    assert splits in refused(capsys, "tasks", "filter", tmp_path / "t", "--to", tmp_path / "out")
    assert splits in refused(capsys, "tasks", "import", "harbor", tmp_path / "t", "--to", tmp_path / "out")
