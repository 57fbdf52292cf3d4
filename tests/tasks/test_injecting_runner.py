"""whippletree/tasks/injecting/runner.py and judge.py, run as in a sandbox: by the system's Python, in a working directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whippletree.tasks.injecting.config import Testing
from whippletree.tasks.injecting.testing import scripts

MODULE = "def double(x):\n    return x * 2\n"
TESTS = """
import unittest, os, sys
from code_ import double

class T(unittest.TestCase):
    def test_two(self):
        self.assertEqual(double(2), 4)
    def test_text(self):
        self.assertEqual(double("a"), "aa")
    def test_wrong(self):
        self.assertEqual(double(1), 3, os.path.abspath("x"))
    def test_parts(self):
        for number in (1, 2):
            with self.subTest(number=number):
                self.assertEqual(double(number), 2)
    @unittest.skip("why")
    def test_left(self):
        pass
    @unittest.expectedFailure
    def test_known(self):
        self.fail()

class Broken(unittest.TestCase):
    def setUp(self):
        raise OSError("no")
    def test_never(self):
        pass
"""


def laid(directory: Path, files: dict[str, str], testing: Testing, wanted: tuple[str, ...] = ()) -> Path:
    """A working directory, and beside it tests/ as a task has it; returns the working directory."""
    for name, text in files.items():
        (directory / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "app" / name).write_text(text)
    (directory / "tests" / "files").mkdir(parents=True)
    for name, data in scripts(testing, wanted).items():
        (directory / "tests" / name).write_bytes(data)
    return directory / "app"


def ran(directory: Path, files: dict[str, str], testing: Testing) -> dict:
    app = laid(directory, files, testing)
    command = [sys.executable, "-B", "../tests/runner.py", "../tests/settings.json", "../results.json"]
    subprocess.run(command, cwd=app, check=False, timeout=60, capture_output=True)
    return json.loads((directory / "results.json").read_text())


def test_what_became_of_each_test(tmp_path: Path):
    found = ran(tmp_path, {"code_.py": MODULE, "test_a.py": TESTS, "test_b.py": "import nowhere\n"}, Testing())
    assert found["passed"] == ["test_a.T.test_text", "test_a.T.test_two"]
    assert found["skipped"] == ["test_a.T.test_known", "test_a.T.test_left"]
    assert set(found["failed"]) == {
        "test_a.T.test_wrong",
        "test_a.T.test_parts",
        "test_a.Broken.test_never",
        "unittest.loader._FailedTest.test_b",
    }
    assert str(tmp_path) not in json.dumps(found)
    assert "AssertionError: 2 != 3 : x" in found["failed"]["test_a.T.test_wrong"]


def test_pytest_tells_the_same(tmp_path: Path):
    extra = "import pytest\n@pytest.fixture\ndef bad():\n    raise OSError('no')\ndef test_set_up(bad):\n    pass\n"
    extra += "@pytest.mark.parametrize('n', [1, 2])\ndef test_n(n):\n    assert n == 1\n"
    files = {"src/code_.py": MODULE, "tests/test_a.py": TESTS, "tests/test_b.py": "import nowhere\n", "tests/test_c.py": extra}
    found = ran(tmp_path, files, Testing(framework="pytest", start="tests", python_path=("src",)))
    assert {"tests/test_a.py::T::test_two", "tests/test_c.py::test_n[1]"} <= set(found["passed"])
    assert {"tests/test_a.py::T::test_left", "tests/test_a.py::T::test_known"} <= set(found["skipped"])
    assert set(found["failed"]) >= {
        "tests/test_a.py::T::test_wrong",
        "tests/test_a.py::Broken::test_never",
        "tests/test_b.py",
        "tests/test_c.py::test_set_up",
        "tests/test_c.py::test_n[2]",
    }


def test_who_ends_the_process_leaves_no_results(tmp_path: Path):
    files = {"code_.py": "import os\nos._exit(0)\n", "test_a.py": TESTS}
    with pytest.raises(FileNotFoundError):
        ran(tmp_path, files, Testing())


WANTED = ("test_a.T.test_two", "test_a.T.test_text")


@pytest.mark.parametrize(
    ("code", "reward", "says"),
    [
        (MODULE, "1", "2 of 2 tests pass"),
        ("def double(x):\n    return x + x\n", "1", "2 of 2 tests pass"),
        ("def double(x):\n    return x + 2\n", "0", "test_a.T.test_text: TypeError"),
        ("def double(x)\n", "0", "0 of 2 tests pass"),
        ("import os\nos._exit(0)\n", "0", "ended with 0 and no results"),
        ("import time\ntime.sleep(60)\n", "0", "ran past 2.0 s"),
        ("raise SystemExit\n", "0", "test_a.T.test_two: it did not run"),
    ],
)
def test_the_verdict(tmp_path: Path, code: str, reward: str, says: str):
    app = laid(
        tmp_path, {"code_.py": code, "test_a.py": "raise OSError\n"}, Testing(seconds=2.0 if "sleep" in code else 50.0), WANTED
    )
    (tmp_path / "tests" / "files" / "test_a.py").write_text(TESTS)
    command = [sys.executable, "-B", "../tests/judge.py", str(tmp_path / "tests"), "../reward.txt"]
    done = subprocess.run(command, cwd=app, check=True, timeout=60, capture_output=True, text=True)
    assert (tmp_path / "reward.txt").read_text().strip() == reward
    assert says in done.stdout


def test_what_is_in_the_way_of_the_tests_goes(tmp_path: Path):
    """Files, directories and links in the place of the repository's own tests."""
    app = laid(
        tmp_path, {"code_.py": MODULE, "test_a.py/x": "", "outside": "kept"}, Testing(seconds=20.0), ("deep.test_b.T.test_two",)
    )
    (app / "deep").symlink_to("../elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test_b.py").write_text("kept")
    files = tmp_path / "tests" / "files"
    (files / "deep").mkdir()
    (files / "deep" / "__init__.py").write_text("")
    (files / "deep" / "test_b.py").write_text(TESTS)
    (files / "test_a.py").write_text(TESTS)
    command = [sys.executable, "-B", "../tests/judge.py", str(tmp_path / "tests"), "../reward.txt"]
    subprocess.run(command, cwd=app, check=True, timeout=60, capture_output=True)
    assert (tmp_path / "reward.txt").read_text() == "1\n"
    assert (tmp_path / "elsewhere" / "test_b.py").read_text() == "kept"
    assert not (app / "deep").is_symlink() and (app / "test_a.py").is_file()
