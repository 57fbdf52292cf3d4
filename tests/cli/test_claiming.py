"""One command at a time for a directory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whippletree.cli.claiming import claimed
from whippletree.cli.main import main
from whippletree.errors import ConfigurationError

HOLDER = "import sys, time; from pathlib import Path; from whippletree.cli.claiming import claimed\n"
HOLDER += "with claimed(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"


def test_a_directory_is_held_by_one_and_free_again(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigurationError, match="another command is at work in")
    with claimed(tmp_path / "runs/a"), claimed(tmp_path / "runs/b"), refused, claimed(tmp_path / "runs/a"):
        raise AssertionError("held twice")
    with claimed(tmp_path / "runs/a"):
        assert not (tmp_path / "runs/a").exists()


def test_a_second_command_removes_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text('[[sources]]\nname = "trail"\ntasks = { kind = "trail" }\n')
    before = sorted(run.rglob("*"))
    holder = subprocess.Popen((sys.executable, "-c", HOLDER, str(run)), stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        overwriting = ["train", str(run / "config.toml"), "--run-dir", str(run), "--overwrite"]
        for argv in (["train", "--resume", str(run)], overwriting):
            assert main(argv) == 2
            assert "another command is at work in" in capsys.readouterr().err
        assert sorted(run.rglob("*")) == before
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with claimed(run):
        pass


GRID = """
[grid]
[[models]]
name = "m"
model = { kind = "tiny" }
[[harnesses]]
name = "h"
[[sources]]
name = "s"
tasks = { kind = "trail" }
"""
RUN = '[[sources]]\nname = "trail"\ntasks = { kind = "trail" }\n'


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [("train", "config.toml", RUN), ("eval", "grid.toml", GRID), ("sft", "sft.toml", 'data = ["data"]\n')],
)
def test_overwriting_does_not_remove_what_the_command_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, name: str, text: str
) -> None:
    mine = tmp_path / "mine"
    (mine / "data").mkdir(parents=True)
    (mine / "data" / "notes").write_text("by hand")
    (mine / name).write_text(text)
    (tmp_path / "given.toml").write_text(text)
    assert main([command, str(mine / name), "--run-dir", str(mine), "--overwrite"]) == 2
    assert "--overwrite would remove" in capsys.readouterr().err
    monkeypatch.chdir(mine)
    assert main([command, str(tmp_path / "given.toml"), "--run-dir", ".", "--overwrite"]) == 2
    assert "--overwrite would remove" in capsys.readouterr().err
    assert (mine / name).read_text() == text and (mine / "data" / "notes").read_text() == "by hand"


def test_fine_tuning_removes_no_data_where_it_is_to_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chat.jsonl").write_text("no line\n")
    assert main(["sft", str(tmp_path / "data"), "--run-dir", str(tmp_path), "--set", "model.path=nothere"]) == 2
    assert (tmp_path / "data" / "chat.jsonl").read_text() == "no line\n", capsys.readouterr().err
