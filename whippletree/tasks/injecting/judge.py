"""The verdict over an agent's repair: `python3 judge.py TESTS_DIRECTORY REWARD_FILE`, in the working directory.

Runs inside a sandbox, under its own Python, with the standard library alone. TESTS_DIRECTORY holds this file, runner.py,
settings.json ({"framework", "start", "python_path", "seconds", "wanted"}) and files/ with the repository's own tests, which
replace whatever the agent made of them.

Invariants (tests/tasks/test_injecting_runner.py):
- the reward is 1 where every wanted test passed, 0 otherwise: also where the code ends or hangs the run of the tests;
- what the agent did to the repository's tests does not count.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHOWN = 10  # tests that are named


def judge(tests: Path, settings: dict[str, Any]) -> bool:
    """Whether all wanted tests pass; says which do not."""
    lay(tests / "files", Path.cwd())
    results = run(tests, settings)
    missing = [name for name in settings["wanted"] if name not in results["passed"]]
    for name in missing[:SHOWN]:
        said = results["failed"].get(name, "it did not run").strip().splitlines() or [""]
        sys.stdout.write(f"{name}: {said[-1]}\n")
    sys.stdout.write(f"{len(settings['wanted']) - len(missing)} of {len(settings['wanted'])} tests pass\n")
    return not missing


def lay(source: Path, target: Path) -> None:
    """Put every file below `source` in its place below `target`; links in the way are not followed."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                place.unlink()
            place.mkdir(exist_ok=True)
        else:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            elif place.is_symlink() or place.exists():
                place.unlink()
            shutil.copy(path, place)


def run(tests: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What the runner wrote; nothing passed where it wrote nothing."""
    nothing: dict[str, Any] = {"passed": [], "failed": {}}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "results.json"
        command = [sys.executable, "-B", str(tests / "runner.py"), str(tests / "settings.json"), str(out)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=settings["seconds"], check=False
            )
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"the tests ran past {settings['seconds']} s\n")
            return nothing
        if not out.exists():
            said = done.stderr.decode("utf-8", "replace")[-500:]
            sys.stdout.write(f"the run of the tests ended with {done.returncode} and no results: {said}\n")
            return nothing
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def main() -> None:
    """Judge, and write the reward."""
    tests = Path(sys.argv[1])
    settings = json.loads((tests / "settings.json").read_text(encoding="utf-8"))
    reward = "1" if judge(tests, settings) else "0"
    Path(sys.argv[2]).write_text(reward + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
