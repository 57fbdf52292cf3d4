"""whippletree/tasks/injecting/repository.py"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks.history import history_leaks
from whippletree.tasks.injecting.repository import git_directory, read_commit, stripped

FILES = {"a.py": b"x = 1\n", "sub/b.txt": b"\0\xff\r\n", "run": b"#!/bin/sh\n", "\u00e9 b": b""}


def git(directory: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.quotePath=false")
    return subprocess.run(["git", "-C", directory, *own, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    for name, data in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    (path / "run").chmod(0o755)
    (path / "link").symlink_to("a.py")
    git(path, "init", "-q", "-b", "trunk")
    git(path, "add", ".")
    git(path, "commit", "-qm", "one")
    (path / "a.py").write_text("x = 2\n")
    git(path, "commit", "-qam", "two")
    (path / "a.py").write_text("not committed")
    return path


def test_the_files_of_a_commit(repository: Path):
    tree = read_commit(git_directory(repository))
    assert tree.files == FILES | {"a.py": b"x = 2\n"}
    assert (tree.executable, tree.left_out) == ({"run"}, ("link",))
    first = read_commit(git_directory(repository), "HEAD~1")
    assert first.files == FILES and first.commit != tree.commit
    assert read_commit(git_directory(repository), tree.commit[:10]) == tree


def test_bare_repositories_and_worktrees_are_read_too(repository: Path, tmp_path: Path):
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(tmp_path / "mirror.git"))
    assert read_commit(git_directory(tmp_path / "mirror.git")).files["a.py"] == b"x = 2\n"
    git(repository, "worktree", "add", "-q", str(tmp_path / "other"), "HEAD~1")
    assert git_directory(tmp_path / "other").is_dir()


def test_what_is_no_repository_or_commit_is_said(repository: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no git repository"):
        git_directory(tmp_path)
    for name in ("nowhere", "--all", "a" * 40):
        with pytest.raises(TaskError, match="has no commit"):
            read_commit(git_directory(repository), name)


def test_reading_runs_nothing_of_the_repository(repository: Path, tmp_path: Path):
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", f"touch {tmp_path}/ran")
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    read_commit(git_directory(repository))
    assert not (tmp_path / "ran").exists()
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


def test_the_new_repository_begins_and_ends_with_the_files(tmp_path: Path):
    made = stripped(FILES, frozenset(["run"]))
    assert made == stripped(FILES, frozenset(["run"]))
    assert made != stripped(FILES, frozenset())
    for name, data in (FILES | made).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "run").chmod(0o755)
    assert git(tmp_path, "status", "--short") == ""
    assert (
        git(tmp_path, "log", "--all", "--format=%an %s %ad", "--date=iso")
        == "Whippletree Initial commit 2000-01-01 00:00:00 +0000\n"
    )
    assert git(tmp_path, "branch", "--format=%(refname:short)") == "main\n"
    assert git(tmp_path, "remote") == "" and git(tmp_path, "reflog") == ""
    assert set(git(tmp_path, "ls-files").splitlines()) == set(FILES)
    assert history_leaks(tmp_path) == []
    git(tmp_path, "fsck", "--strict")
