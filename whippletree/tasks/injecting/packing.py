"""A verified bug as a task. Pure, but for the repository that is made for it.

    environment/files   the tree with the bug, without its tests, and a repository of one commit
    tests/              runner, judge and settings; files/ holds the repository's own tests
    solution/           the files as they were, and fix.patch for people

Invariants (tests/tasks/test_injecting_pipeline.py):
- nothing in the environment holds the repaired code or a test: not the files, and not the history;
- a task has at most as many tests as the settings say, and all that the bug makes fail are among them.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whippletree.tasks.injecting.config import Injection
from whippletree.tasks.injecting.repository import Tree, stripped
from whippletree.tasks.injecting.statement import statement
from whippletree.tasks.injecting.testing import Results, scripts
from whippletree.tasks.suites.handing_in import SUBMIT
from whippletree.tasks.writing import Draft, Limits, key_of

SLACK = 20.0  # seconds of the verifier beyond the tests' own limit

TEST = """#!/bin/sh
root=${{0%/tests/test.sh}}
exec {python} -B "$root/tests/judge.py" "$root/tests" "$root/logs/verifier/reward.txt"
"""


@dataclass(frozen=True)
class Bug:
    """A file with a bug. `kinds`: of its edits; `function`: where they are."""

    name: str
    path: str
    source: bytes
    kinds: tuple[str, ...]
    function: str


def is_test(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path is one of the repository's tests: a pattern without "/" is matched against the file's name, another
    against the path from any directory on."""
    parts = path.split("/")
    tails = ["/".join(parts[at:]) for at in range(len(parts))]
    return any(
        fnmatch.fnmatchcase(parts[-1], pattern)
        if "/" not in pattern
        else any(fnmatch.fnmatchcase(tail, pattern) for tail in tails)
        for pattern in patterns
    )


def wanted_tests(failed: Sequence[str], steady: Sequence[str], most: int) -> tuple[str, ...]:
    """The tests that a repair is judged by: all that fail, and of those that pass as many as there is room for, evenly."""
    passing = sorted(set(steady) - set(failed))
    room = max(0, most - len(failed))
    if len(passing) > room:
        passing = [passing[at * len(passing) // room] for at in range(room)]
    return tuple(sorted({*failed, *passing}))


def limits(settings: Injection) -> Limits:
    """What task.toml says."""
    return Limits(agent=settings.agent_timeout_sec, verifier=settings.testing.seconds + SLACK)


def pack(repository: str, tree: Tree, bug: Bug, results: Results, *, steady: Sequence[str], settings: Injection) -> Draft:
    """The task. `results`: of the tests on the tree with the bug; `steady`: the tests that pass without it."""
    failed = [name for name in results.failed if name in steady]
    seen = {path: data for path, data in tree.files.items() if not is_test(path, settings.tests)}
    buggy = seen | {bug.path: bug.source}
    tests = {path: data for path, data in tree.files.items() if path not in seen}
    executable = frozenset(path for path in tree.executable if path in seen)
    return Draft(
        task_id=bug.name,
        instruction=statement(repository, {name: results.failed[name] for name in failed}),
        solution=f'#!/bin/sh\nset -e\nhere=${{0%/solve.sh}}\ncp "$here/fixed/{bug.path}" "{bug.path}"\n',
        tests={
            "test.sh": TEST.format(python=settings.testing.python).encode(),
            **scripts(settings.testing, wanted_tests(failed, steady, settings.most_tests)),
            **{f"files/{path}": data for path, data in tests.items()},
        },
        key=key_of(repository, bug.path, bug.source),
        files=buggy | stripped(buggy, executable),
        programs={"submit": SUBMIT},
        beside_solution={
            f"fixed/{bug.path}": tree.files[bug.path],
            "fix.patch": difference(bug.path, bug.source, tree.files[bug.path]),
        },
        executable=executable,
        labels=_labels(repository, tree, bug, len(failed)),
    )


def _labels(repository: str, tree: Tree, bug: Bug, failing: int) -> Mapping[str, str | int | float]:
    return {
        "suite": "bugs",
        "family": repository,
        "commit": tree.commit,
        "kind": " + ".join(bug.kinds),
        "difficulty": f"{len(bug.kinds)} edit" + ("s" if len(bug.kinds) > 1 else ""),
        "failing": failing,
    }


def difference(path: str, before: bytes, after: bytes) -> bytes:
    """A patch in git's form."""
    old, new = (data.decode("utf-8", "surrogateescape").splitlines(keepends=True) for data in (before, after))
    text = "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))
    return f"diff --git a/{path} b/{path}\n{text}".encode("utf-8", "surrogateescape")
