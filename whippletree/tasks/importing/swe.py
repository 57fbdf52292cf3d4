"""Rows shaped like SWE-bench's and SWE-smith's, with local git mirrors of their repositories.

    SWE-bench: base_commit, patch (the repair), test_patch (adds the tests)
    SWE-smith: no base_commit; a branch named as the row holds the bug, patch made it, the commit before its last has the tests

Both have repo, instance_id, problem_statement, FAIL_TO_PASS, PASS_TO_PASS.

Invariants (tests/tasks/test_importing_swe.py):
- nothing of a repository is run by importing; patches are applied to copies, by git;
- a row that makes no task has a reason; what one that does hands out holds no commit beyond its start;
- the tests of a task are those that the row names, and nothing else decides.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks.filtering import names_of
from whippletree.tasks.importing.questions import Refused
from whippletree.tasks.importing.rows import Row
from whippletree.tasks.injecting.config import Testing
from whippletree.tasks.injecting.packing import TEST, is_test
from whippletree.tasks.injecting.repository import Tree, git_directory, read_commit, stripped
from whippletree.tasks.injecting.testing import scripts
from whippletree.tasks.suites.handing_in import SUBMIT
from whippletree.tasks.writing import Draft, key_of

SECONDS = 120.0
TESTS = ("test_*.py", "*_test.py", "conftest.py", "tests/*", "test/*", "testing/*")


class SweRows(Config):
    """How rows of bug-fixing data sets become tasks.

    Example: SweRows(mirrors="/data/mirrors", testing=Testing(framework="pytest", start="tests"))
    """

    mirrors: str
    """Directory with git repositories: owner/name, owner__name or name, each with or without ".git"."""
    most_tests: int = 200
    """Tests that a row may have."""
    image: str = "debian:bookworm-slim"
    """Image of the tasks, for backends that take images; {instance_id} and {image_name} stand for the row's."""
    testing: Testing = Testing(framework="pytest", seconds=300.0)
    """How the tests are run."""


def swe_draft(row: Row, name: str, settings: SweRows) -> Draft:
    """The task. Raises Refused, ConfigurationError where git is missing."""
    statement, repository, patch = (_text(row, key) for key in ("problem_statement", "repo", "patch"))
    if not statement.strip():
        raise Refused("empty statement")
    wanted = _wanted(row, settings)
    git = _mirror(Path(settings.mirrors), repository)
    tree, tests, fixed = (_bench if _text(row, "base_commit") else _smith)(row, git, patch)
    seen = {path: data for path, data in tree.files.items() if path not in tests}
    changed = {path: data for path, data in fixed.items() if tree.files.get(path) != data}
    gone = sorted(set(tree.files) - set(fixed))
    executable = frozenset(path for path in tree.executable if path in seen)
    return Draft(
        task_id=name,
        instruction=statement.strip(),
        solution=_solution(changed, gone),
        tests={
            "test.sh": TEST.format(python=settings.testing.python).encode(),
            **scripts(settings.testing, wanted),
            **{f"files/{path}": data for path, data in tests.items()},
        },
        key=key_of(repository, tree.commit, patch),
        files=seen | stripped(seen, executable),
        programs={"submit": SUBMIT},
        beside_solution={f"fixed/{path}": data for path, data in changed.items()},
        executable=executable,
        labels={"suite": "imported", "family": repository, "commit": tree.commit, "tests": len(wanted)},
        base=_image(row, settings.image),
    )


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _image(row: Row, template: str) -> str:
    for key in ("instance_id", "image_name"):
        template = template.replace(f"{{{key}}}", _text(row, key))
    return template


def _wanted(row: Row, settings: SweRows) -> tuple[str, ...]:
    try:
        fail, keep = (names_of(row.get(key) or []) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    except msgspec.DecodeError as error:
        raise Refused("tests cannot be read", str(error)) from error
    if not fail:
        raise Refused("no failing test")
    if len(fail) + len(keep) > settings.most_tests:
        raise Refused("too many tests", f"{len(fail) + len(keep)} tests, at most {settings.most_tests}")
    return tuple(sorted({*fail, *keep}))


def _mirror(mirrors: Path, repository: str) -> Path:
    """The mirror of a repository; "swesmith/owner__name.commit" may also be found as owner__name.commit."""
    names = [repository, repository.replace("/", "__"), repository.rpartition("/")[2]]
    for name in names:
        if not name or ".." in name.split("/") or name.startswith("/"):
            continue
        for place in (mirrors / name, mirrors / f"{name}.git"):
            if place.is_dir():
                try:
                    return git_directory(place)
                except ConfigurationError as error:
                    raise Refused("no mirror", error.cause) from error
    raise Refused("no mirror", f"{repository or 'no repository'} is not in {mirrors}")


def _commit(git: Path, names: list[str]) -> Tree:
    for name in names:
        try:
            return read_commit(git, name)
        except TaskError:
            continue
    raise Refused("missing branch", f"none of {', '.join(names)}")


Parts = tuple[Tree, dict[str, bytes], Mapping[str, bytes]]


def _bench(row: Row, git: Path, patch: str) -> Parts:
    """The tree at the start, the files of the tests, and the repaired tree."""
    tree = _commit(git, [_text(row, "base_commit")])
    with_tests = _patched(tree.files, _text(row, "test_patch"), "test patch does not apply")
    tests = {path: data for path, data in with_tests.items() if tree.files.get(path) != data}
    start = Tree(tree.commit, {path: data for path, data in tree.files.items() if path in with_tests}, tree.executable, ())
    return start, tests, _patched(start.files, patch, "patch does not apply")


def _smith(row: Row, git: Path, patch: str) -> Parts:
    name = _text(row, "instance_id")
    tree = _commit(git, [f"refs/heads/{name}", f"refs/remotes/origin/{name}"])
    before = _commit(git, [f"{tree.commit}~1", tree.commit])
    tests = {path: data for path, data in before.files.items() if is_test(path, TESTS)}
    return tree, tests, _patched(tree.files, patch, "patch does not apply", back=True)


def _patched(files: Mapping[str, bytes], patch: str, reason: str, *, back: bool = False) -> dict[str, bytes]:
    """The files with a patch applied, or taken back. Raises Refused."""
    if not patch.strip():
        if reason.startswith("test"):
            return dict(files)
        raise Refused("no patch")
    with tempfile.TemporaryDirectory(prefix="whippletree-import-") as scratch:
        for path, data in files.items():
            (Path(scratch) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / path).write_bytes(data)
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", *(["--reverse"] if back else []), "-"],
            input=(patch if patch.endswith("\n") else f"{patch}\n").encode(),
            cwd=scratch,
            env={"PATH": os.environ.get("PATH", os.defpath), "GIT_DIR": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise Refused(reason, done.stderr.decode("utf-8", "replace").strip()[:300])
        found = (path for path in Path(scratch).rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(scratch)): path.read_bytes() for path in found}


def _solution(changed: Mapping[str, bytes], gone: list[str]) -> str:
    lines = ["#!/bin/sh", "set -e", "here=${0%/solve.sh}"]
    if changed:
        lines.append('cp -R "$here/fixed/." .')
    lines += [f"rm -f {_quoted(path)}" for path in gone]
    return "\n".join([*lines, ""])


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
