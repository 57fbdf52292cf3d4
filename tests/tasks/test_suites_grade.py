"""whippletree/tasks/suites/grade.py"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whippletree.tasks.suites import grade


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Velmora", True),
        ("velmora.", True),
        ("The  Velmora", True),
        ("'Velmora'", True),
        ("Velmor", False),
        ("", False),
        ("Velmora, Osk", False),
    ],
)
def test_text(answer: str, right: bool):
    assert grade.is_right({"text": "Velmora"}, answer) is right
    assert not grade.is_right({"text": "."}, "")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("1234.5", True),
        ("1,234.51", True),
        ("$1234.49", True),
        ("1234.5 %", True),
        ("1.2345e3", True),
        ("1234.48", False),
        ("1234.52", False),
        ("-1234.5", False),
        ("about 1234.5", False),
        ("nan", False),
        ("inf", False),
        ("1e999", False),
        ("", False),
        (".", False),
    ],
)
def test_numbers(answer: str, right: bool):
    assert grade.is_right({"number": 1234.5, "tolerance": 0.01}, answer) is right


def test_counts_are_exact():
    assert grade.is_right({"number": 7, "tolerance": 0.0}, "7") and not grade.is_right({"number": 7, "tolerance": 0.0}, "7.1")


@pytest.mark.parametrize(
    ("text", "reward"), [(b"7\nwords", "1"), (b"\n 7 \n", "1"), (b"\xff", "0"), (None, "0"), (b"9" * 100_000, "0")]
)
def test_the_reward_is_always_written(tmp_path: Path, text: bytes | None, reward: str):
    (tmp_path / "wanted.json").write_text(json.dumps({"number": 7, "tolerance": 0}))
    if text is not None:
        (tmp_path / "answer.txt").write_bytes(text)
    names = [str(tmp_path / name) for name in ("wanted.json", "answer.txt", "reward.txt")]
    subprocess.run([sys.executable, grade.__file__, *names], check=True, capture_output=True, timeout=30)
    assert (tmp_path / "reward.txt").read_text() == f"{reward}\n"
