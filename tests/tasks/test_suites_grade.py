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


@pytest.mark.parametrize(
    ("answer", "f1"),
    [("Osk City", 1.0), ("osk", 1.0), ("the City of Osk", 0.8), ("Osk, Osk", 2 / 3), ("Velmora", 0.0), ("", 0.0)],
)
def test_several_answers_are_right_and_words_in_common_count(answer: str, f1: float):
    found = grade.scores({"text": "Osk City", "also": ["Osk"]}, answer)
    assert found["f1"] == pytest.approx(f1)
    assert found["reward"] == float(answer in ("Osk City", "osk")) and found["answered"] == float(bool(answer))


def test_scores_of_numbers_and_of_signs_alone():
    wanted = {"number": 7, "tolerance": 0}
    assert grade.scores(wanted, "7") == {"reward": 1.0, "f1": 1.0, "answered": 1.0}
    assert grade.scores(wanted, "8") == {"reward": 0.0, "f1": 0.0, "answered": 1.0}
    assert grade.scores(wanted, "seven") == {"reward": 0.0, "f1": 0.0, "answered": 0.0}
    assert grade.scores({"text": "C++ (new)"}, "C++ (new)") == {"reward": 1.0, "f1": 1.0, "answered": 1.0}
    assert grade.scores({"text": "+"}, "+") == {"reward": 1.0, "f1": 1.0, "answered": 1.0}  # no word, yet right


def test_counts_are_exact():
    assert grade.is_right({"number": 7, "tolerance": 0.0}, "7") and not grade.is_right({"number": 7, "tolerance": 0.0}, "7.1")


@pytest.mark.parametrize(("text", "reward"), [(b"7\nwords", 1), (b"\n 7 \n", 1), (b"\xff", 0), (None, 0), (b"9" * 100_000, 0)])
def test_the_reward_is_always_written(tmp_path: Path, text: bytes | None, reward: int):
    (tmp_path / "wanted.json").write_text(json.dumps({"number": 7, "tolerance": 0}))
    if text is not None:
        (tmp_path / "answer.txt").write_bytes(text)
    names = [str(tmp_path / name) for name in ("wanted.json", "answer.txt", "reward.json")]
    subprocess.run([sys.executable, grade.__file__, *names], check=True, capture_output=True, timeout=30)
    assert json.loads((tmp_path / "reward.json").read_text())["reward"] == reward
