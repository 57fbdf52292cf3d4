"""whippletree/tasks/importing/swe.py: rows of both shapes, on real repositories."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from whippletree.tasks import check_task, load_task
from whippletree.tasks.history import history_leaks
from whippletree.tasks.importing.run import import_rows
from whippletree.tasks.importing.swe import SweRows
from whippletree.tasks.injecting.config import Testing

GOOD = "def double(x):\n    return x * 2\n"
BAD = "def double(x):\n    return x * 3\n"
OLD = """import unittest
from code_ import double


class Old(unittest.TestCase):
    def test_zero(self):
        self.assertEqual(double(0), 0)
"""
NEW = OLD.replace("class Old", "class New").replace("test_zero", "test_two").replace("double(0), 0", "double(2), 4")
TESTING = Testing(seconds=60.0)
LISTS = {"FAIL_TO_PASS": ["test_new.New.test_two"], "PASS_TO_PASS": json.dumps(["test_old.Old.test_zero"])}


def git(directory: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", directory, *own, *words], check=True, capture_output=True, text=True).stdout


def commit(directory: Path, message: str, **files: str | None) -> str:
    for name, text in files.items():
        path = directory / f"{name}.py"
        path.unlink() if text is None else path.write_text(text)
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", message)
    return git(directory, "rev-parse", "HEAD").strip()


def bench(mirrors: Path) -> dict:
    """A SWE-bench-shaped row: a commit with a bug, the repair and its test as patches."""
    path = mirrors / "owner" / "repo"
    path.mkdir(parents=True)
    git(path, "init", "-q")
    base = commit(path, "start", code_=BAD, test_old=OLD)
    commit(path, "repair", code_=GOOD)
    patch = git(path, "diff", base)
    commit(path, "test", test_new=NEW, gone="x = 1\n")
    test_patch = git(path, "diff", "HEAD~1", "--", "test_new.py")
    row = {"instance_id": "owner__repo-1", "repo": "owner/repo", "base_commit": base, "problem_statement": "It triples."}
    return row | LISTS | {"patch": patch, "test_patch": test_patch, "version": "1.0"}


def smith(mirrors: Path) -> dict:
    """A SWE-smith-shaped row: a branch with the bug, and a commit on it that takes the failing tests away."""
    path = mirrors / "owner__repo.abc123"
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    commit(path, "start", code_=GOOD, test_old=OLD, test_new=NEW)
    git(path, "checkout", "-q", "-b", "owner__repo.abc123.func__1")
    commit(path, "Bug Patch", code_=BAD)
    patch = git(path, "diff", "HEAD~1")
    commit(path, "Remove F2P Tests", test_new=None)
    row = {
        "instance_id": "owner__repo.abc123.func__1",
        "repo": "swesmith/owner__repo.abc123",
        "problem_statement": "It triples.",
    }
    return row | LISTS | {"patch": patch, "image_name": "image"}


def imported(tmp_path: Path, *rows: dict, **settings: object) -> tuple[Path, list]:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = []
    mine = SweRows(mirrors=str(tmp_path / "mirrors"), testing=TESTING, **settings)
    import_rows(tmp_path / "rows.jsonl", tmp_path / "out", mine, told.append)
    return tmp_path / "out", told


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
@pytest.mark.parametrize("shape", [bench, smith])
async def test_a_row_becomes_a_sound_task(shape, tmp_path: Path, make_sandbox):
    row = shape(tmp_path / "mirrors")
    out, told = imported(tmp_path, row)
    assert [decision.kept for decision in told] == [True], told
    path = out / row["instance_id"]
    files = path / "environment" / "files"
    assert (files / "code_.py").read_text() == BAD and not (files / "test_new.py").exists()
    assert history_leaks(files) == [] and git(files, "status", "--short") == ""
    assert len(git(files, "log", "--all", "--oneline").splitlines()) == 1
    task = load_task(path)
    assert task.labels["tests"] == "2" and task.steps[0].instruction == "It triples."
    assert (await check_task(task, make_sandbox, times=1)).problems == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problem_statement": "  "}, "empty statement"),
        ({"problem_statement": None}, "empty statement"),
        ({"base_commit": "0" * 40}, "missing branch"),
        ({"repo": "owner/other"}, "no mirror"),
        ({"repo": "../mirrors/owner/repo"}, "no mirror"),
        ({"FAIL_TO_PASS": []}, "no failing test"),
        ({"FAIL_TO_PASS": "no list"}, "tests cannot be read"),
        ({"PASS_TO_PASS": [f"t{number}" for number in range(200)]}, "too many tests"),
        ({"patch": ""}, "no patch"),
        ({"patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, "patch does not apply"),
        ({"test_patch": "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, "test patch does not apply"),
    ],
)
def test_a_row_that_makes_no_task_has_a_reason(tmp_path: Path, change: dict, reason: str):
    row = bench(tmp_path / "mirrors") | change
    out, (decision,) = imported(tmp_path, row)
    assert (decision.kept, decision.reason) == (False, reason)
    assert not list(out.glob("*/task.toml"))


def test_a_missing_problem_branch_is_told(tmp_path: Path):
    row = smith(tmp_path / "mirrors")
    git(tmp_path / "mirrors" / "owner__repo.abc123", "checkout", "-q", "main")
    git(tmp_path / "mirrors" / "owner__repo.abc123", "branch", "-qD", row["instance_id"])
    _, (decision,) = imported(tmp_path, row)
    assert decision.reason == "missing branch" and row["instance_id"] in decision.detail


def test_patches_cannot_leave_the_tree_and_images_are_named(tmp_path: Path):
    row = bench(tmp_path / "mirrors")
    evil = "diff --git a/../../evil b/../../evil\nnew file mode 100644\n--- /dev/null\n+++ b/../../evil\n@@ -0,0 +1 @@\n+x\n"
    out, told = imported(tmp_path, row | {"test_patch": evil}, row | {"instance_id": "two"}, image="reg/{instance_id}:1")
    assert [decision.reason for decision in told] == ["test patch does not apply", ""]
    assert "FROM reg/two:1\n" in (out / "two" / "environment" / "Dockerfile").read_text()
