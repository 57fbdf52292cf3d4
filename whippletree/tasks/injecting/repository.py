"""The files of a commit, and a repository that begins and ends with given files.

Invariants (tests/tasks/test_injecting_repository.py):
- nothing of the repository is run, checked out or changed by reading it: no hook, filter or setting of the user;
- the new repository has one commit, one branch, no remote and no reflog, `git status` is clean in it, and the same files give
  the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks.history import run_git

IDENTITY = {"NAME": "Whippletree", "EMAIL": "whippletree@example.invalid", "DATE": "2000-01-01T00:00:00+0000"}
CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = false\n"


@dataclass(frozen=True)
class Tree:
    """The files of a commit: path → content. `left_out`: links and submodules, by path."""

    commit: str
    files: Mapping[str, bytes]
    executable: frozenset[str]
    left_out: tuple[str, ...]


def git_directory(repository: Path) -> Path:
    """The directory of git's own files of a repository, bare or not. Raises ConfigurationError."""
    git = repository / ".git"
    if git.is_file():  # a linked worktree
        named = git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        git = (repository / named).resolve()
    found = git if git.is_dir() else repository
    if not (found / "HEAD").is_file():
        raise ConfigurationError(f"{repository} is no git repository", "give the directory of a repository, or of a mirror")
    return found


def read_commit(git: Path, commit: str = "HEAD") -> Tree:
    """Everything at a commit. Raises ConfigurationError; TaskError where there is no such commit."""
    name = run_git(git, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", ok=(0, 1, 128)).decode().strip()
    if not name:
        raise TaskError(f"{git} has no commit {commit}", "fetch it, or name another one")
    listed = run_git(git, "ls-tree", "-r", "-z", "--full-tree", name).split(b"\0")
    entries = [(entry.split(b"\t", 1)[0].split(), os.fsdecode(entry.split(b"\t", 1)[1])) for entry in listed if entry]
    wanted = [(mode, blob, path) for (mode, _, blob), path in entries if mode in (b"100644", b"100755")]
    left = tuple(path for (mode, *_), path in entries if mode not in (b"100644", b"100755"))
    blobs = _blobs(git, [blob for _, blob, _ in wanted])
    files = {path: blobs[blob] for _, blob, path in wanted}
    executable = frozenset(path for mode, _, path in wanted if mode == b"100755")
    return Tree(commit=name, files=files, executable=executable, left_out=left)


def _blobs(git: Path, names: list[bytes]) -> dict[bytes, bytes]:
    text = run_git(git, "cat-file", "--batch", stdin=b"".join(name + b"\n" for name in names))
    found: dict[bytes, bytes] = {}
    at = 0
    for name in names:
        end = text.index(b"\n", at)
        size = int(text[at:end].split()[2])
        found[name] = text[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found


def stripped(files: Mapping[str, bytes], executable: frozenset[str]) -> dict[str, bytes]:
    """The files of a .git directory whose only commit has these files. Raises ConfigurationError."""
    with tempfile.TemporaryDirectory(prefix="whippletree-git-") as scratch:
        git = Path(scratch) / ".git"
        for name in ("objects", "refs/heads"):
            (git / name).mkdir(parents=True)
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "config").write_text(CONFIG)
        listed = []
        for path, data in sorted(files.items()):
            blob = run_git(git, "hash-object", "-w", "--stdin", "--no-filters", stdin=data).decode().strip()
            listed.append(f"{'100755' if path in executable else '100644'} {blob}\t{path}\0".encode("utf-8", "surrogateescape"))
        run_git(git, "update-index", "-z", "--index-info", stdin=b"".join(listed))
        tree = run_git(git, "write-tree").decode().strip()
        commit = _commit(git, tree)
        (git / "refs/heads/main").write_text(f"{commit}\n")
        return {str(path.relative_to(scratch)): path.read_bytes() for path in git.rglob("*") if path.is_file()}


def _commit(git: Path, tree: str) -> str:
    variables = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in IDENTITY.items()}
    return run_git(git, "commit-tree", tree, "-m", "Initial commit", variables=variables).decode().strip()
