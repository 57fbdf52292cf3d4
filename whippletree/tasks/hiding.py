"""The future of a repository that a task hands out: taken out before the agent sees it, given back to the tests.

    task's files ─► hide ─► visible: the same files, each repository ending at HEAD        ─► the agent's sandbox
                        └─► taken: every object and ref of the original                    ─► give_back, before the tests

Both are made on the host, once per content. An image has its repositories in it: there the visible half takes their place once
the sandbox runs (`take_away`), before the agent does. The agent's own commits, branches and index stay as it left them: what
comes back is added beside them.
Invariants (tests/tasks/test_hiding.py):
- in what is visible no commit beyond HEAD's history can be reached, by name, in a log or in a pack; `git status` says what it
  said before;
- after `give_back` every ref and every object of the original can be read, and nothing of the agent's is lost;
- files that hold no future are handed out as they are; what an image holds cannot be read inside once it was taken away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, SandboxError, words_of
from whippletree.protocols import Sandbox
from whippletree.tasks.history import history_leaks, run_git
from whippletree.types import Struct

GIT_SECONDS = 300.0
BACK_SECONDS = 30.0
HISTORY = "whippletree-history"  # folder in .git of what comes back
_git = partial(run_git, seconds=GIT_SECONDS)
UNWANTED = ("remote", "branch", "url", "submodule", "filter", "alias")  # sections of .git/config
KEPT = ("HEAD", "config", "description", "index", "shallow", "info/exclude")  # of .git; everything else is left out

# $1: the repository's folder, relative to the sandbox's root, where it starts. Refs that the agent has are not touched.
_BACK = rf"""cd "$1/.git" || exit 1
mkdir -p objects/info
echo "$PWD/{HISTORY}/objects" >> objects/info/alternates
while read -r object name; do
  [ -e "$name" ] && continue
  [ -f packed-refs ] && grep -q "^[0-9a-f]* $name\$" packed-refs && continue
  case $name in */*) mkdir -p "${{name%/*}}" ;; esac
  echo "$object" > "$name"
done < {HISTORY}/refs"""


class Hidden(Struct):
    """Where the two halves lie on the host. `repositories` are relative to the files; `taken` is "" where nothing was hidden.

    Example: Hidden(visible="/run/hidden/3fa1/visible", taken="/run/hidden/3fa1/taken", repositories=("repo",))
    """

    visible: str
    taken: str = ""
    repositories: tuple[str, ...] = ()


def hide(source: Path, cache: Path) -> Hidden:
    """The halves of `source`, a directory, made below `cache` unless they are there. Raises ConfigurationError."""
    repositories = tuple(sorted(str(path.parent.relative_to(source)) for path in source.rglob(".git") if path.is_dir()))
    if not repositories:
        return Hidden(visible=str(source))
    home = cache / _fingerprint(source)
    if not home.exists():
        if not history_leaks(source):
            return Hidden(visible=str(source))
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=cache, prefix="draft-"))
        try:
            _divide(source, repositories, draft)
            draft.rename(home)
        except FileExistsError:
            pass  # somebody else was faster
        except OSError as error:
            if not home.exists():
                raise ConfigurationError(
                    f"cannot hide the history of {source}: {error.filename or cache}: {words_of(error)}", "make room for a copy"
                ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return Hidden(visible=str(home / "visible"), taken=str(home / "taken"), repositories=repositories)


class Covered(Struct):
    """Repositories of an image that hold a future: (absolute path inside, their halves).

    Example: Covered(repositories=(("/testbed", Hidden(visible="/run/hidden/3fa1/visible", taken="/run/hidden/3fa1/taken")),))
    """

    repositories: tuple[tuple[str, Hidden], ...] = ()


def hide_in_image(rootfs: Path, cache: Path) -> Covered:
    """What a root file system, which never changes, holds of the future; looked for once. Raises ConfigurationError."""
    record = cache / f"image-{hashlib.blake2b(str(rootfs).encode(), digest_size=16).hexdigest()}.json"
    if record.exists():
        return msgspec.json.decode(record.read_bytes(), type=Covered)
    found = [(f"/{path.relative_to(rootfs)}", hide(path, cache)) for path in _repositories(rootfs)]
    covered = Covered(repositories=tuple((inside, hidden) for inside, hidden in found if hidden.taken))
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, prefix="draft-", delete=False) as draft:  # others may be writing it too
        draft.write(msgspec.json.encode(covered))
    Path(draft.name).rename(record)
    return covered


def _repositories(rootfs: Path) -> Iterator[Path]:
    """Directories with a repository that lie in no other one."""
    for directory, folders, _ in os.walk(rootfs):
        path = Path(directory)
        if ".git" in folders and not (path / ".git").is_symlink() and (path / ".git" / "HEAD").is_file():
            folders.clear()
            yield path


async def take_away(sandbox: Sandbox, hidden: Hidden, target: str) -> None:
    """Replace the repositories at and below `target`, an absolute path inside, by their visible halves. Raises SandboxError."""
    for name in hidden.repositories:
        place = f"{target.rstrip('/')}/{name}" if name != "." else target.rstrip("/")
        inside = f"{place.lstrip('/')}/.git"
        done = await sandbox.exec(["/bin/rm", "-rf", "--", inside], timeout=BACK_SECONDS, cwd="/", user="root")
        if done.exit_code != 0:
            raise SandboxError(f"the history of {place} could not be hidden: {done.output[-500:]}", "look at the sandbox")
        await sandbox.put(Path(hidden.visible) / name / ".git", f"{place}/.git")


async def give_back(sandbox: Sandbox, hidden: Hidden, target: str) -> None:
    """Add what was taken to the repositories below `target`, an absolute path inside. Raises SandboxError.

    A repository that the agent has removed stays removed.
    """
    for name in hidden.repositories:
        place = f"{target.rstrip('/')}/{name}" if name != "." else target.rstrip("/")
        inside = place.lstrip("/")
        there = await sandbox.exec(["/bin/sh", "-c", 'test -d "$1/.git"', "sh", inside], timeout=BACK_SECONDS, cwd="/")
        if there.exit_code != 0:
            continue
        await sandbox.exec(["/bin/rm", "-rf", f"{inside}/.git/{HISTORY}"], timeout=BACK_SECONDS, cwd="/")
        await sandbox.put(Path(hidden.taken) / name, f"{place}/.git/{HISTORY}")
        done = await sandbox.exec(["/bin/sh", "-c", _BACK, "sh", inside], timeout=BACK_SECONDS, cwd="/")
        if done.exit_code != 0:
            raise SandboxError(f"the history of {place} could not be given back: {done.output[-500:]}", "look at the sandbox")


def _divide(source: Path, repositories: tuple[str, ...], draft: Path) -> None:
    visible = draft / "visible"
    shutil.copytree(source, visible, symlinks=True, ignore=_without_repositories)
    for name in repositories:
        git = source / name / ".git"
        if (git / "modules").is_dir():
            raise ConfigurationError(f"the repository {name!r} has submodules", "hand out one repository without submodules")
        _end_at_head(git, visible / name / ".git")
        taken = draft / "taken" / name
        shutil.copytree(git / "objects", taken / "objects")
        refs = _git(git, "for-each-ref", "--format=%(objectname) %(refname)")
        (taken / "refs").write_bytes(refs)


def _without_repositories(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if name == ".git" and (Path(directory) / name).is_dir()]


def _end_at_head(git: Path, out: Path) -> None:
    """A repository with nothing but HEAD's history and the index of another one."""
    (out / "refs" / "heads").mkdir(parents=True)
    (out / "objects" / "info").mkdir(parents=True)
    (out / "objects" / "pack").mkdir(parents=True)
    for name in KEPT:
        if (git / name).is_file():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(git / name, out / name)
    for section in _sections(out / "config"):
        _git(out, "config", "--file", str(out / "config"), "--remove-section", section)
    head = _git(git, "rev-parse", "--verify", "--quiet", "HEAD", ok=(0, 1)).decode().strip()
    wanted = _git(git, "rev-list", "--objects", "HEAD") if head else b""
    wanted += b"".join(line.split()[1] + b"\n" for line in _git(git, "ls-files", "--stage").splitlines())
    pack = _git(git, "pack-objects", "--stdout", "-q", stdin=wanted)
    _git(out, "index-pack", "--stdin", stdin=pack)
    branch = _git(git, "symbolic-ref", "--quiet", "HEAD", ok=(0, 1)).decode().strip()
    if head and branch:
        (out / branch).parent.mkdir(parents=True, exist_ok=True)
        (out / branch).write_text(head + "\n")


def _sections(config: Path) -> list[str]:
    """Sections of a configuration that name other repositories, or programs that git would run."""
    listed = _git(config.parent, "config", "--file", str(config), "--list", "--name-only", ok=(0, 1)).decode().split()
    named = {key.rpartition(".")[0] for key in listed}
    return sorted(
        name for name in named if name.split(".")[0].lower() in ("remote", "branch", "url", "submodule", "filter", "alias")
    )


def _fingerprint(source: Path) -> str:
    """A name for the files as they are: every path with its size and time of change."""
    digest = hashlib.blake2b(str(source.resolve()).encode(), digest_size=16)
    for directory, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            path = Path(directory) / name
            state = path.lstat()
            digest.update(
                f"{path.relative_to(source)}\0{state.st_size}\0{state.st_mtime_ns}\0".encode("utf-8", "surrogateescape")
            )
    return digest.hexdigest()
