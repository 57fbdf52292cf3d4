"""Repositories that know the future."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError
from whippletree.tasks.history import history_leaks


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.email=a@b.c", "-c", "user.name=t", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "files" / "src"
    path.mkdir(parents=True)
    git(path, "init", "-q")
    for number in range(3):
        (path / "a.py").write_text(f"x = {number}\n")
        git(path, "add", ".")
        git(path, "commit", "-q", "-m", f"c{number}")
    return path


def test_a_repository_that_ends_at_its_head_gives_nothing_away(repository: Path, tmp_path: Path):
    assert history_leaks(tmp_path) == []


@pytest.mark.parametrize("kept", ["reflog", "tag", "branch", "dangling"])
def test_later_commits_are_found_however_they_are_kept(repository: Path, tmp_path: Path, kept: str):
    if kept == "tag":
        git(repository, "tag", "release")
    if kept == "branch":
        git(repository, "branch", "next")
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    if kept != "reflog":
        git(repository, "reflog", "expire", "--expire=now", "--all")
    (found,) = history_leaks(tmp_path)
    assert "1 commits beyond HEAD" in found and "'files/src'" in found
    if kept == "dangling":
        git(repository, "gc", "-q", "--prune=now")
        assert history_leaks(tmp_path) == []


def test_a_remote_is_reported_and_a_broken_repository_is_an_error(repository: Path, tmp_path: Path):
    git(repository, "remote", "add", "origin", "/somewhere")
    assert history_leaks(tmp_path) == ["the repository 'files/src' names the remote 'origin': remove it"]
    (repository / ".git" / "HEAD").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be read"):
        history_leaks(tmp_path)


def test_a_repository_without_a_commit_is_fine(tmp_path: Path):
    git(tmp_path, "init", "-q")
    assert history_leaks(tmp_path) == []
