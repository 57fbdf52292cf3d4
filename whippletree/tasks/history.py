"""Does a repository that a task hands out know the future? Commits that the checked-out one does not descend from are an answer
key: they are found by `git log --all`, in the reflog, in tags, or in packs that no name leads to.

Invariants (tests/tasks/test_history.py):
- any commit object beyond HEAD's history is reported, however it can be reached; so is a remote;
- nothing in the repository is run or changed by looking.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from whippletree.errors import ConfigurationError, words_of

LIMIT = 120.0  # seconds for one look
SHOWN = 3  # commits that are named


def history_leaks(directory: Path) -> list[str]:
    """What repositories below `directory` give away, in sentences; nothing when there is none. Raises ConfigurationError."""
    found = []
    for git in sorted(path for path in directory.rglob(".git") if path.is_dir()):
        name = str(git.parent.relative_to(directory))
        present = {line.split()[0] for line in _git(git, *_ALL_OBJECTS) if line.endswith(" commit")}
        past = set(_git(git, "rev-list", "HEAD")) if _git(git, "rev-parse", "--quiet", "--verify", "HEAD", ok=(0, 1)) else set()
        beyond = sorted(present - past)
        if beyond:
            some = ", ".join(commit[:12] for commit in beyond[:SHOWN])
            found.append(f"the repository {name!r} holds {len(beyond)} commits beyond HEAD ({some}): rewrite it to end at HEAD")
        if remotes := _git(git, "remote"):
            found.append(f"the repository {name!r} names the remote {remotes[0]!r}: remove it")
    return found


_ALL_OBJECTS = ("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")


def run_git(
    git: Path,
    *arguments: str,
    stdin: bytes = b"",
    ok: tuple[int, ...] = (0,),
    seconds: float = LIMIT,
    variables: Mapping[str, str] = {},
) -> bytes:
    """What git prints. Hooks, filters and the user's own settings play no part; `variables` are added to its environment.
    Raises ConfigurationError."""
    settings = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    try:
        done = subprocess.run(
            ["git", f"--git-dir={git}", *settings, *arguments],
            input=stdin,
            capture_output=True,
            timeout=seconds,
            env={**environment, **variables},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(
            f"git cannot work on {git}: {words_of(error)}", "install git, or leave the repository out"
        ) from error
    if done.returncode not in ok:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ConfigurationError(f"{git} cannot be read: {said}", "mend the repository, or leave it out")
    return done.stdout


def _git(git: Path, *arguments: str, ok: tuple[int, ...] = (0,)) -> list[str]:
    return run_git(git, *arguments, ok=ok).decode("utf-8", "replace").splitlines()
