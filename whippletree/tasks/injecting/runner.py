"""Run a repository's tests and write what became of each: `python3 runner.py SETTINGS.json RESULTS.json`.

Runs inside a sandbox, in the working directory, under the sandbox's own Python, and imports nothing but the standard library
(and pytest where the settings say so). Results: {"passed": [...], "failed": {id: the end of its report}, "skipped": [...]}.

Invariants (tests/tasks/test_injecting_runner.py):
- a test module that cannot be imported, and a test whose set-up fails, is a failed test and not a missing one;
- the results are written once, at the end: whoever ends the process early leaves none.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

TAIL = 1500  # characters of a report


class Results:
    """What became of each test."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}
        self.skipped: list[str] = []

    def write(self, path: str) -> None:
        """All of it, as JSON."""
        passed = sorted(name for name in set(self.passed) if name not in self.failed)
        here = os.getcwd().rstrip("/") + "/"  # noqa: PTH109
        failed = {name: text.replace(here, "") for name, text in self.failed.items()}
        data = {"passed": passed, "failed": failed, "skipped": sorted(set(self.skipped))}
        Path(path).write_text(json.dumps(data), encoding="utf-8")


def run_unittest(start: str, results: Results) -> None:
    """Every test that unittest discovers below `start`."""

    class Noted(unittest.TestResult):
        def addSuccess(self, test: unittest.TestCase) -> None:
            results.passed.append(test.id())

        def addError(self, test: Any, err: Any) -> None:
            super().addError(test, err)
            results.failed[test.id()] = self.errors[-1][1][-TAIL:]

        def addFailure(self, test: Any, err: Any) -> None:
            super().addFailure(test, err)
            results.failed[test.id()] = self.failures[-1][1][-TAIL:]

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            if err is not None:
                report = (self.failures + self.errors)[-1][1]
                results.failed[test.id()] = report[-TAIL:]

        def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
            results.failed[test.id()] = "unexpected success"

        def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
            results.skipped.append(test.id())

        def addSkip(self, test: unittest.TestCase, reason: str) -> None:
            results.skipped.append(test.id())

    unittest.defaultTestLoader.discover(start, top_level_dir=None).run(Noted())


def run_pytest(start: str, results: Results) -> None:
    """Every test that pytest collects below `start`."""
    import pytest

    class Noted:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                results.failed[report.nodeid] = report.longreprtext[-TAIL:]
            elif report.skipped:
                results.skipped.append(report.nodeid)
            elif report.when == "call":
                results.passed.append(report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                results.failed[report.nodeid] = report.longreprtext[-TAIL:]

    pytest.main([start, "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"], plugins=[Noted()])


def main() -> None:
    """Run what the settings say."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = Results()
    for place in reversed(settings["python_path"]):
        sys.path.insert(0, os.path.abspath(place))  # noqa: PTH100
    run = run_pytest if settings["framework"] == "pytest" else run_unittest
    run(settings["start"], results)
    results.write(sys.argv[2])


if __name__ == "__main__":
    main()
