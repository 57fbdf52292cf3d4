"""Settings of the injection of bugs."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config


class Testing(Config):
    """How a repository's tests are run inside a sandbox.

    Example: Testing(framework="pytest", start="tests", python_path=("src",), seconds=60)
    """

    framework: Literal["unittest", "pytest"] = "unittest"
    """What finds and runs the tests. pytest must be there for the sandbox's Python."""
    start: str = "."
    """Directory below which tests are looked for, relative to the repository."""
    python_path: tuple[str, ...] = (".",)
    """Directories, relative to the repository, that modules are imported from."""
    python: str = "python3"
    """The Python of the sandbox."""
    seconds: float = 60.0
    """Limit of one run of the tests."""
    memory_mb: int = 1024
    """Memory of the sandbox, in MiB."""


class Injection(Config):
    """How bugs are put into one repository.

    Example: Injection(count=20, seed=3, testing=Testing(framework="pytest"))
    """

    count: int = 20
    """Tasks to make; fewer when the candidates are used up first."""
    seed: int = 0
    """Draws the order in which candidates are tried."""
    commit: str = "HEAD"
    """The commit whose files are taken."""
    sources: tuple[str, ...] = ("*.py",)
    """Patterns of the files that bugs are put into, matched against whole paths; tests are never among them."""
    tests: tuple[str, ...] = ("test_*.py", "*_test.py", "conftest.py", "tests/*", "test/*")
    """Patterns of the repository's tests, matched against file names and against paths from any directory on."""
    edits: tuple[int, ...] = (1,)
    """Edits of one bug, all in one function; candidates take turns through these."""
    most_failing: float = 0.7
    """Share of the tests that may fail; a bug that breaks more is no riddle."""
    most_tests: int = 200
    """Tests that a task may have; more are dropped from what is judged, those that the bug does not touch first."""
    per_function: int = 3
    """Tasks from one function, at most."""
    tries: int = 20
    """Candidates tried per task asked for, at most."""
    testing: Testing = Testing()
    """How tests are run."""
    agent_timeout_sec: float = 600.0
    """Seconds that an agent may take; written to task.toml."""
