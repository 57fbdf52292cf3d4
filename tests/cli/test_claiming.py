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
