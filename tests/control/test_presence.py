"""Whether a controller works on a run directory, asked from outside."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from whippletree.control.controller import LOCK, absent, only_one
from whippletree.errors import ConfigurationError


def test_a_controller_is_there_from_its_start_to_its_end(tmp_path: Path) -> None:
    assert absent(tmp_path) == f"no controller was ever started on {tmp_path}"
    with only_one(tmp_path / LOCK):
        assert absent(tmp_path) == absent(tmp_path) == ""
    assert absent(tmp_path) == f"no controller works on {tmp_path}: it has ended, or was killed"


def test_whoever_looks_keeps_no_controller_from_its_start(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            absent(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            with only_one(tmp_path / LOCK):
                pass
    finally:
        over.set()
        for looker in lookers:
            looker.join()


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    with only_one(tmp_path / LOCK), pytest.raises(ConfigurationError, match="another controller"), only_one(tmp_path / LOCK):
        raise AssertionError("not reached")
