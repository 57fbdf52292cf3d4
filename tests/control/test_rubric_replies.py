"""The file of judges' answers: found again by any process, also after a kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whippletree.control.rubrics.replies import Replies
from whippletree.errors import StoreError

WRITER = """
import os, signal, sys
from pathlib import Path
from whippletree.control.rubrics.replies import Replies
replies = Replies(Path(sys.argv[1]))
replies.keep("k", "nonsense", rubric="style", model="m", tokens=5, problem="no JSON")
replies.keep("k", "{}", rubric="style", model="m", tokens=7)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_kept_survives_a_kill_and_what_is_unusable_is_never_found(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rubrics.sqlite"
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", WRITER, str(path)], cwd=root, timeout=60, check=False)
    assert done.returncode == -9
    with Replies(path) as replies:
        assert (replies.find("k"), replies.find("other")) == ("{}", None)
        assert (replies.tokens("style"), replies.tokens("other")) == (12, 0)


def test_two_processes_may_have_it_open_and_the_first_usable_answer_stays(tmp_path: Path) -> None:
    with Replies(tmp_path / "r.sqlite") as one, Replies(tmp_path / "r.sqlite") as two:
        one.keep("k", "first", rubric="a", model="m", tokens=1)
        two.keep("k", "second", rubric="a", model="m", tokens=1)
        assert one.find("k") == two.find("k") == "first"


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 50)
    with pytest.raises(StoreError, match=r"r\.sqlite.*may be deleted"):
        Replies(path)
