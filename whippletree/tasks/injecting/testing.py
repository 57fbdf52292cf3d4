"""A run of a repository's tests in a sandbox of its own.

Invariants (tests/tasks/test_injecting_pipeline.py): the sandbox is stopped, whatever happened in it; a run that ends without
results, or runs past its limit, is told as such.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, TaskError
from whippletree.protocols import Limits, SandboxSpec
from whippletree.tasks.bench import MakeSandbox
from whippletree.tasks.injecting.config import Testing
from whippletree.types import Struct

HERE = Path(__file__).parent
RESULTS = "/logs/results.json"
RESULTS_LIMIT = 20_000_000  # bytes
_RUN = """root=${PWD%/}; mkdir -p "$root/logs" && cd "$root/app" || exit 125
exec "$1" -B "$root/tests/runner.py" "$root/tests/settings.json" "$root/logs/results.json\""""


class Results(Struct):
    """What became of each test. `failed`: id → the end of its report. `trouble`: why there are no results ("": there are).

    Example: Results(passed=("tests.test_a.A.test_one",), failed={"tests.test_a.A.test_two": "AssertionError: 1 != 2"})
    """

    passed: tuple[str, ...] = ()
    failed: dict[str, str] = {}
    skipped: tuple[str, ...] = ()
    trouble: str = ""


def scripts(testing: Testing, wanted: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files beside the tests that run inside: runner, judge and their settings."""
    settings = {
        "framework": testing.framework,
        "start": testing.start,
        "python_path": list(testing.python_path),
        "seconds": testing.seconds,
        "wanted": list(wanted),
    }
    found = {name: (HERE / name).read_bytes() for name in ("runner.py", "judge.py")}
    return found | {"settings.json": msgspec.json.format(msgspec.json.encode(settings)) + b"\n"}


async def run_tests(files: Mapping[str, bytes], testing: Testing, make_sandbox: MakeSandbox) -> Results:
    """Run the tests of a tree of files. Raises SandboxError where the sandbox does not start."""
    with tempfile.TemporaryDirectory(prefix="whippletree-inject-") as scratch:
        app, tests = Path(scratch) / "app", Path(scratch) / "tests"
        for base, contents in ((app, files), (tests, scripts(testing))):
            base.mkdir()
            for name, content in contents.items():
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                (base / name).write_bytes(content)
        spec = SandboxSpec(
            sandbox_id=f"inject-{secrets.token_hex(4)}",
            workdir="/app",
            files=((str(app), "/app"), (str(tests), "/tests")),
            limits=Limits(memory_mb=testing.memory_mb),
            gateway_port=0,
        )
        sandbox = make_sandbox(spec)
        try:
            await sandbox.start()
            done = await sandbox.exec(["/bin/sh", "-c", _RUN, "tests", testing.python], timeout=testing.seconds, cwd="/")
            data = None if done.timed_out else await sandbox.read(RESULTS, RESULTS_LIMIT)
        finally:
            await sandbox.stop()
    if done.timed_out:
        return Results(trouble=f"ran past {testing.seconds:g} s")
    if data is None:
        return Results(trouble=f"ended with {done.exit_code} and no results: {done.output[-500:].strip()}")
    try:
        return msgspec.json.decode(data, type=Results)
    except msgspec.DecodeError as error:
        return Results(trouble=f"wrote results that cannot be read: {error}")


async def steady_tests(files: Mapping[str, bytes], testing: Testing, make_sandbox: MakeSandbox) -> tuple[str, ...]:
    """The tests that pass twice on the untouched tree. Raises TaskError where there are none, SandboxError."""
    first = await run_tests(files, testing, make_sandbox)
    second = await run_tests(files, testing, make_sandbox)
    steady = tuple(sorted(set(first.passed) & set(second.passed)))
    if not steady:
        failed = next(iter(first.failed.items()), ("", first.trouble or "no test was found"))
        how = f"{testing.framework} in {testing.start!r}"
        raise TaskError(
            f"no test of the repository passes ({how}): {failed[0]} {failed[1][-500:]}",
            "see that its tests run in a sandbox: their framework, start, python_path, and what they import",
        )
    return steady


def check_testing(testing: Testing) -> None:
    """Raises ConfigurationError for limits that make no sense."""
    if testing.seconds <= 0 or testing.memory_mb < 0:
        raise ConfigurationError(
            f"inject: seconds = {testing.seconds:g}, memory_mb = {testing.memory_mb}", "give positive limits"
        )
