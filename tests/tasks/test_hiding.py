"""What a repository knows of the future is hidden from the agent and given back to the tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from whippletree import sandboxes
from whippletree.errors import ConfigurationError
from whippletree.protocols import SandboxSpec
from whippletree.sandboxes import SandboxConfig
from whippletree.tasks.hiding import Hidden, give_back, hide
from whippletree.tasks.history import history_leaks

PERSON = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@x"}


def git(directory: Path, *arguments: str, ok: bool = True) -> str:
    environment = {**PERSON, "PATH": os.environ["PATH"], "HOME": str(directory)}
    done = subprocess.run(["git", *arguments], cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not ok, done.stderr
    return done.stdout.strip()


def commit(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text)
    git(directory, "add", name)
    git(directory, "commit", "-qm", f"{name} {text}")
    return git(directory, "rev-parse", "HEAD")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Files with a repository at its second commit; the answer is in a branch, a tag, the reflog, a pack and a stash."""
    files = tmp_path / "files"
    repository = files / "repo"
    repository.mkdir(parents=True)
    (files / "README").write_text("plain")
    git(repository, "init", "-qb", "main")
    commit(repository, "a.py", "one")
    past = commit(repository, "a.py", "two")
    future = commit(repository, "a.py", "answer")
    git(repository, "branch", "fix")
    git(repository, "tag", "-am", "the release", "v2")
    git(repository, "reset", "-q", "--hard", past)
    (repository / "a.py").write_text("stashed answer")
    git(repository, "stash")
    git(repository, "remote", "add", "origin", "https://example.invalid/x")
    git(repository, "gc", "-q")
    (repository / "a.py").write_text("two, at work")  # a change that the task starts with
    (repository / "new.py").write_text("not added")
    (repository / "staged.py").write_text("staged")
    git(repository, "add", "staged.py")
    (files / "future").write_text(future)
    return files


def test_what_the_agent_sees_ends_at_head(task: Path, tmp_path: Path) -> None:
    assert history_leaks(task)
    future = (task / "future").read_text()
    hidden = hide(task, tmp_path / "cache")
    seen = Path(hidden.visible) / "repo"
    assert hidden.repositories == ("repo",)
    assert not history_leaks(Path(hidden.visible))
    assert git(seen, "log", "--all", "--format=%s") == "a.py two\na.py one"
    assert (git(seen, "tag"), git(seen, "stash", "list"), git(seen, "remote"), git(seen, "branch")) == ("", "", "", "* main")
    assert git(seen, "reflog") == ""
    assert git(seen, "cat-file", "-t", future, ok=False) == ""
    assert git(seen, "fsck", "--full") == ""
    assert git(seen, "status", "--porcelain") == git(task / "repo", "status", "--porcelain")
    assert git(seen, "diff", "--cached", "--name-only") == "staged.py"
    assert (Path(hidden.visible) / "README").read_text() == "plain"
    commit(seen, "a.py", "my own")  # it is a repository to work in


def test_it_is_made_once_for_what_the_files_are(task: Path, tmp_path: Path) -> None:
    first = hide(task, tmp_path / "cache")
    made = Path(first.visible).stat().st_ino
    assert hide(task, tmp_path / "cache") == first
    assert Path(first.visible).stat().st_ino == made
    commit(task / "repo", "b.py", "more")
    git(task / "repo", "reset", "-q", "--hard", "HEAD~1")
    assert hide(task, tmp_path / "cache") != first
    assert sorted(path.name for path in (tmp_path / "cache").iterdir() if path.name.startswith("draft-")) == []


def test_files_without_a_future_are_handed_out_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert hide(tmp_path / "plain", tmp_path / "cache") == Hidden(visible=str(tmp_path / "plain"))
    clean = tmp_path / "clean"
    clean.mkdir()
    git(clean, "init", "-q")
    commit(clean, "a", "1")
    assert hide(clean, tmp_path / "cache").taken == ""
    assert not (tmp_path / "cache").exists()


def test_a_detached_head_and_an_unborn_branch_are_kept(task: Path, tmp_path: Path) -> None:
    git(task / "repo", "checkout", "-q", "--detach")
    seen = Path(hide(task, tmp_path / "cache").visible) / "repo"
    assert git(seen, "rev-parse", "HEAD") == git(task / "repo", "rev-parse", "HEAD")
    assert git(seen, "branch", "--show-current") == ""
    unborn = tmp_path / "unborn"
    unborn.mkdir()
    git(unborn, "init", "-qb", "main")
    commit(unborn, "a", "answer")
    git(unborn, "update-ref", "-d", "refs/heads/main")
    assert history_leaks(unborn)
    seen = Path(hide(unborn, tmp_path / "cache").visible)
    assert not history_leaks(seen)
    assert git(seen, "log", "--all") == ""


def test_submodules_are_refused(task: Path, tmp_path: Path) -> None:
    (task / "repo" / ".git" / "modules").mkdir()
    with pytest.raises(ConfigurationError, match="submodules"):
        hide(task, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_settings_that_run_programs_or_name_servers_do_not_come_along(task: Path, tmp_path: Path) -> None:
    git(task / "repo", "config", "alias.log", "!touch /tmp/ran")
    git(task / "repo", "config", "filter.x.clean", "touch /tmp/ran")
    git(task / "repo", "config", "user.name", "somebody")
    seen = Path(hide(task, tmp_path / "cache").visible) / "repo"
    listed = git(seen, "config", "--local", "--list")
    assert "user.name=somebody" in listed
    assert not any(word in listed for word in ("remote.", "alias.", "filter."))


@pytest.fixture(params=["bubblewrap", "process"])
async def box(request: pytest.FixtureRequest, task: Path, tmp_path: Path) -> AsyncIterator[tuple[sandboxes.Box, Hidden]]:
    hidden = hide(task, tmp_path / "cache")
    found = sandboxes.probe()
    if request.param == "bubblewrap" and not found.works:
        pytest.skip(found.bubblewrap)
    with tempfile.TemporaryDirectory(prefix="wt-") as short:
        config = SandboxConfig(kind=request.param, root=short + "/b")
        spec = SandboxSpec(sandbox_id="h-1", files=((hidden.visible, "/app"),), gateway_port=0)
        made = sandboxes.create(config, spec, gateway=("127.0.0.1", 1))
        await made.start()
        yield made, hidden
        await made.stop()


async def run(box: sandboxes.Box, command: str) -> str:
    done = await box.exec(["/bin/sh", "-c", command], timeout=20, environment={**PERSON, "HOME": "/tmp"})
    assert done.exit_code == 0, done.output
    return done.output.strip()


async def test_the_tests_have_the_whole_history_and_the_agents_work(box: tuple[sandboxes.Box, Hidden], task: Path) -> None:
    sandbox, hidden = box
    future = (task / "future").read_text()
    repository = "cd repo && git -c safe.directory='*' "
    await run(
        sandbox, repository + "commit -qam mine && git -c safe.directory='*' branch fix2 && git -c safe.directory='*' gc -q"
    )
    mine = await run(sandbox, repository + "rev-parse HEAD")
    for _ in range(2):  # a verifier that is tried again
        await give_back(sandbox, hidden, "/app")
    assert await run(sandbox, repository + "rev-parse HEAD") == mine
    assert await run(sandbox, repository + "log -1 --format=%s") == "mine"
    assert await run(sandbox, repository + "rev-parse fix") == future
    assert "answer" in await run(sandbox, repository + "show fix:a.py")
    assert await run(sandbox, repository + "tag") == "v2"
    assert await run(sandbox, repository + "show refs/stash:a.py") == "stashed answer"
    branches = await run(sandbox, repository + "branch --format='%(refname:short)'")
    assert branches.split() == ["fix", "fix2", "main"]
    await run(sandbox, repository + "fsck --full --no-dangling --no-progress")


async def test_a_repository_that_the_agent_removed_stays_removed(box: tuple[sandboxes.Box, Hidden]) -> None:
    sandbox, hidden = box
    await run(sandbox, "rm -rf repo/.git")
    await give_back(sandbox, hidden, "/app")
    assert (await sandbox.exec(["/bin/ls", "-a", "repo"], timeout=5)).output.split() == [
        ".",
        "..",
        "a.py",
        "new.py",
        "staged.py",
    ]
