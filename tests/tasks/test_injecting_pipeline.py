"""whippletree/tasks/injecting: the whole pipeline, on real repositories in real sandboxes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError, SandboxError, TaskError
from whippletree.tasks import check_task, load_task
from whippletree.tasks.injecting.config import Injection, Testing
from whippletree.tasks.injecting.packing import is_test, wanted_tests
from whippletree.tasks.injecting.pipeline import JOURNAL, inject
from whippletree.tasks.injecting.statement import statement
from whippletree.tasks.injecting.testing import run_tests
from whippletree.tasks.suites.bugs import make_repository

CODE = '''def clip(x, low, high):
    """x, but not outside of the bounds."""
    if low > high:
        raise ValueError("no room")
    return max(low, min(x, high))


def unused(a):
    return a + 1
'''
TESTS = """import unittest
from pkg.code_ import clip

class Clip(unittest.TestCase):
    def test_inside(self):
        self.assertEqual(clip(2, 1, 3), 2)
    def test_below(self):
        self.assertEqual(clip(0, 1, 3), 1)
    def test_above(self):
        self.assertEqual(clip(9, 1, 3), 3)
    def test_no_room(self):
        with self.assertRaises(ValueError):
            clip(1, 3, 2)
    def test_a_single_place(self):
        self.assertEqual(clip(7, 5, 5), 5)
    def test_always_wrong(self):
        self.fail("known")
"""
SETTINGS = Injection(count=3, most_failing=0.9, testing=Testing(start="tests", python_path=(".",), seconds=20.0))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "clipper"
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/code_.py": CODE,
        "tests/__init__.py": "",
        "tests/test_clip.py": TESTS,
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    own = ["git", "-C", path, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "the secret history"]):
        subprocess.run([*own, *words], check=True, capture_output=True)
    return path


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


async def test_bugs_of_a_repository_become_tasks(repository: Path, tmp_path: Path, make_sandbox):
    told = []
    tally = await inject(repository, SETTINGS, tmp_path / "out", make_sandbox, tell=told.append)
    tasks = sorted(path.parent for path in (tmp_path / "out").glob("*/task.toml"))
    assert tally.kept == len(tasks) == 3
    assert [decision.name for decision in told if decision.kept] and len(told) == 3 + sum(tally.dropped.values())
    for path in tasks:
        assert path.name.startswith("clipper-")
        check = await check_task(load_task(path), make_sandbox, times=1)
        assert check.problems == ()
        inside = tree(path / "environment")
        held = b"".join(inside.values())
        assert CODE.encode() not in held and not any("test" in name for name in inside) and b"secret" not in held
        assert "always wrong" not in (path / "instruction.md").read_text()
        assert b"test_always_wrong" not in (path / "tests" / "settings.json").read_bytes()
        assert str(tmp_path) not in (path / "instruction.md").read_text()
        assert (path / "instruction.md").read_text().endswith("\nWhen done, run: submit\n")  # the program is there:
        assert (path / "environment/programs/submit").stat().st_mode & 0o111


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
async def test_interrupted_work_goes_on_and_ends_the_same(repository: Path, tmp_path: Path, make_sandbox):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    tally = await inject(repository, SETTINGS, whole, make_sandbox)

    class Killed(Exception):
        pass

    def kill(decision):
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            await inject(repository, SETTINGS, pieces, make_sandbox, tell=kill)
    journal = pieces / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-5])  # the last decision is lost, its task may be there
    assert await inject(repository, SETTINGS, pieces, make_sandbox) == tally
    assert tree(pieces) == tree(whole)
    before = tree(whole)
    assert await inject(repository, SETTINGS, whole, make_sandbox) == tally
    assert tree(whole) == before
    with pytest.raises(TaskError, match="journal of other work"):
        await inject(repository, Injection(count=4), whole, make_sandbox)


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
async def test_every_rejected_candidate_has_a_reason(repository: Path, tmp_path: Path, make_sandbox):
    settings = Injection(count=50, per_function=1, most_failing=0.5, testing=SETTINGS.testing)
    told = []
    tally = await inject(repository, settings, tmp_path / "out", make_sandbox, tell=told.append)
    assert tally.kept == 1 and all(decision.reason for decision in told if not decision.kept)
    assert {"no test fails", "enough of this function"} <= set(tally.dropped)
    kept = {decision.name for decision in told if decision.kept}
    assert {path.parent.name for path in (tmp_path / "out").glob("*/task.toml")} == kept


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
async def test_a_repository_whose_tests_do_not_run_is_an_error(repository: Path, tmp_path: Path, make_sandbox):
    settings = Injection(testing=Testing(start="nowhere", seconds=20.0))
    with pytest.raises(TaskError, match="no test of the repository passes"):
        await inject(repository, settings, tmp_path / "out", make_sandbox)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Injection(count=0), "count = 0"),
        (Injection(edits=(0,)), "edits"),
        (Injection(most_failing=0.0), "most_failing"),
        (Injection(testing=Testing(seconds=0.0)), "seconds"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: Injection, says: str):
    with pytest.raises(ConfigurationError, match=says):
        await inject(tmp_path, settings, tmp_path / "out", lambda spec: None)


async def test_a_run_of_tests_is_told_as_it_was(tmp_path: Path, make_sandbox):
    whole, quick = Testing(seconds=60.0), Testing(seconds=3.0)
    one = {"test_a.py": b"import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        pass\n"}
    assert (await run_tests(one, whole, make_sandbox)).passed == ("test_a.A.test_a",)
    assert "no results" in (await run_tests({"test_a.py": b"import os\nos._exit(3)\n"}, whole, make_sandbox)).trouble
    assert "ran past 3 s" in (await run_tests({"test_a.py": b"while True: pass\n"}, quick, make_sandbox)).trouble


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
async def test_the_sandbox_is_stopped_whatever_happens(tmp_path: Path, make_sandbox):
    made = []

    def keep(spec):
        made.append(make_sandbox(spec))
        return made[-1]

    await run_tests({}, Testing(seconds=5.0), keep)
    with pytest.raises(SandboxError):
        await made[0].exec(["/bin/true"], timeout=5.0)


def test_paths_of_tests():
    patterns = Injection().tests
    for path in ("test_a.py", "a/test_b.py", "a/b_test.py", "tests/data.json", "a/tests/b/c.txt", "conftest.py", "a/test/x"):
        assert is_test(path, patterns), path
    for path in ("a.py", "testing.py", "a/contest.py", "latest/x.py", "tests.py"):
        assert not is_test(path, patterns), path


def test_a_task_has_all_that_fails_and_an_even_share_of_the_rest():
    steady = [f"t{number:03d}" for number in range(100)]
    assert wanted_tests(["t005"], steady, 200) == tuple(steady)
    chosen = wanted_tests(["t005", "t006"], steady, 12)
    assert len(chosen) == 12 and {"t005", "t006"} <= set(chosen) and chosen[-1] > "t085"
    assert wanted_tests(["t005", "t006"], steady, 2) == ("t005", "t006")


def test_the_statement_shows_the_shortest_report_without_addresses():
    failed = {
        "t.A.test_long": "x" * 900,
        "tests/test_a.py::test_one_case[3]": "Error\n  <A object at 0x7f3a2b1c9d10>\n\n1 != 2\n",
    }
    text = statement("clipper", failed)
    assert "(clipper) has a bug" in text and "'one case [3]'" in text and "0x..." in text and "7f3a" not in text
    assert "Another check fails" in text and "    1 != 2" in text
    assert statement("clipper", dict(reversed(failed.items()))) == text
    assert "check fails for" not in statement("c", {"a": "b"}) and "2 other checks" in statement("c", dict.fromkeys("abc", "x"))


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
async def test_two_edits_are_in_one_function(tmp_path: Path, make_sandbox):
    repository = make_repository("ledger", tmp_path)
    told = []
    settings = Injection(count=2, edits=(2,), most_failing=1.0, testing=Testing(seconds=20.0))
    tally = await inject(repository, settings, tmp_path / "out", make_sandbox, tell=told.append)
    assert tally.kept == 2
    for path in (tmp_path / "out").glob("*/solution/fix.patch"):
        changed = [line for line in path.read_text().splitlines() if line.startswith("-") and not line.startswith("---")]
        assert 1 <= len(changed) <= 2
        assert 'difficulty = "2 edits"' in (path.parents[1] / "task.toml").read_text()
