"""Task directories written by generators: whole or not at all, the same bytes each time.

Invariants (tests/tasks/test_writing.py):
- a directory is there with every file, or it is not there: what was interrupted is made anew;
- an equal directory that is there already is left alone, and one with other content is never touched;
- tasks are not laid among others;
- a path that would leave the directory is refused.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whippletree.configuration import toml_value
from whippletree.errors import TaskError

SCRIPTS = ("tests/test.sh", "solution/solve.sh")


@dataclass(frozen=True)
class Limits:
    """Seconds for an agent and for the tests, as task.toml says them."""

    agent: float = 120.0
    verifier: float = 20.0


@dataclass(frozen=True)
class Draft:
    """A task before it is a directory. Paths of `files` are below the working directory, /app; those of `programs` are below
    /usr/local/bin, those of `shared` below /usr/local/share, those of `tests` are below
    tests/, those of `beside_solution` below solution/. `executable`: which of `files` are. `labels`: of [metadata]. `base`: the
    image that the Dockerfile begins with.

    `key`: what the task is about, whatever it is called; two tasks with one key are the same task.
    """

    task_id: str
    instruction: str
    solution: str
    tests: Mapping[str, bytes]
    key: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    programs: Mapping[str, bytes] = field(default_factory=dict)
    shared: Mapping[str, bytes] = field(default_factory=dict)
    beside_solution: Mapping[str, bytes] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()
    labels: Mapping[str, str | int | float] = field(default_factory=dict)
    base: str = "debian:bookworm-slim"


def key_of(*parts: object) -> str:
    """A digest of what a task is about."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def check_alone(directory: Path, names: Collection[str]) -> None:
    """Raises TaskError where the directory holds tasks of other names: a set that is not the one that was asked for."""
    others = sorted({path.parent.name for path in directory.glob("*/task.toml")}.difference(names))
    if others:
        cause = f"{directory} holds {len(others)} tasks of other settings, for example {others[0]}"
        raise TaskError(cause, "choose another directory, or remove them")


def write_draft(directory: Path, draft: Draft, limits: Limits) -> Path:
    """Write directory/<task_id>; see `write_tree`."""
    files = {f"environment/files/{path}": data for path, data in draft.files.items()}
    files |= {f"environment/programs/{name}": data for name, data in draft.programs.items()}
    files |= {f"environment/shared/{path}": data for path, data in draft.shared.items()}
    files |= {f"tests/{path}": data for path, data in draft.tests.items()}
    files |= {f"solution/{path}": data for path, data in draft.beside_solution.items()}
    files |= {
        "task.toml": _task_toml(draft, limits).encode(),
        "instruction.md": f"{draft.instruction}\n".encode(),
        "environment/Dockerfile": _dockerfile(draft).encode(),
        "solution/solve.sh": draft.solution.encode(),
    }
    executable = {f"environment/files/{path}" for path in draft.executable}
    executable |= {f"environment/programs/{name}" for name in draft.programs}
    return write_tree(directory / draft.task_id, files, executable.union(SCRIPTS))


def write_tree(path: Path, files: Mapping[str, bytes], executable: set[str]) -> Path:
    """Write `files` (relative path → content) as the directory `path`; an equal one that is there is left alone. Raises
    TaskError when something else is there."""
    for name in files:
        if name.startswith("/") or posixpath.normpath(name) != name or name.split("/")[0] == "..":
            raise TaskError(f"{path}: {name!r} is no path below it", "name files by plain relative paths")
    if os.path.lexists(path):
        check_equal(path, files)
        return path
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name, data in files.items():
        target = partial / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if name in executable else 0o644)
    partial.rename(path)
    return path


def check_equal(path: Path, content: Mapping[str, bytes | str]) -> None:
    """Raises TaskError where what is there has other content (see `content_of`)."""
    if content_of(path) != content:
        raise TaskError(f"{path} exists with other content", "choose another directory, or remove this one")


def content_of(directory: Path) -> dict[str, bytes | str]:
    """Relative path → bytes of each file, target of each link."""
    return {
        str(path.relative_to(directory)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in (directory.rglob("*") if directory.is_dir() else (directory,))
        if path.is_symlink() or path.is_file()
    }


def _dockerfile(draft: Draft) -> str:
    lines = [f"FROM {draft.base}", "WORKDIR /app"]
    lines += ["COPY files/ /app/"] if draft.files else []
    lines += ["COPY programs/ /usr/local/bin/"] if draft.programs else []
    lines += ["COPY shared/ /usr/local/share/"] if draft.shared else []
    return "\n".join(lines) + "\n"


def _task_toml(draft: Draft, limits: Limits) -> str:
    labels = "".join(f"{name} = {toml_value(value)}\n" for name, value in draft.labels.items())
    return (
        f'schema_version = "1.1"\n\n[metadata]\n{labels}\n[agent]\ntimeout_sec = {limits.agent}\n\n'
        f"[verifier]\ntimeout_sec = {limits.verifier}\n\n[environment]\nallow_internet = false\n"
    )
