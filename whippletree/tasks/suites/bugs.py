"""The bug-fix suite: bugs put into a dozen small modules of this package, by the pipeline that works on any repository.

Invariants (tests/tasks/test_suites_bugs.py):
- every module's own tests pass, and it is between 30 and 150 lines long;
- training and held-out tasks come from different modules;
- a task that is written was accepted by the checker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from whippletree.errors import ConfigurationError
from whippletree.tasks.bench import MakeSandbox
from whippletree.tasks.injecting.config import Injection, Testing
from whippletree.tasks.injecting.pipeline import Tell, inject
from whippletree.tasks.injecting.repository import stripped
from whippletree.tasks.journal import Tally
from whippletree.tasks.suites.config import BugsFamily

HOME = Path(__file__).parent / "repositories"
HELDOUT = ("expressions", "grids", "packing")
TRAIN = ("caching", "calendar_days", "intervals", "ledger", "matching", "queueing", "roman", "tables", "wrapping")
JOURNALS = "journals"


def module_files(name: str) -> dict[str, bytes]:
    """The files of a module's repository."""
    return {path.name: path.read_bytes() for path in sorted((HOME / name).glob("*.py"))}


def make_repository(name: str, directory: Path) -> Path:
    """A git repository with the module, made at directory/name. Raises ConfigurationError where git cannot."""
    files = module_files(name)
    for path, data in (files | stripped(files, frozenset())).items():
        target = directory / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return directory / name


async def write_bugs(
    directory: Path, family: BugsFamily, make_sandbox: MakeSandbox, tell: Tell | None = None
) -> dict[str, dict[str, Tally]]:
    """Write directory/train and directory/heldout; goes on where it was interrupted. Returns for both sets what became of each
    module's candidates. Raises ConfigurationError, TaskError where other tasks are there, SandboxError."""
    if family.train < 0 or family.heldout < 0:
        raise ConfigurationError("bugs: train and heldout must not be negative", "give numbers from 0 on")
    tallies: dict[str, dict[str, Tally]] = {"train": {}, "heldout": {}}
    for split, names, total in (("train", TRAIN, family.train), ("heldout", HELDOUT, family.heldout)):
        for number, name in enumerate(names):
            count = total // len(names) + (number < total % len(names))
            if not count:
                continue
            with tempfile.TemporaryDirectory(prefix="whippletree-bugs-") as scratch:
                repository = make_repository(name, Path(scratch))
                journal = directory / JOURNALS / f"{name}.jsonl"
                settings = _settings(family, count)
                tallies[split][name] = await inject(
                    repository, settings, directory / split, make_sandbox, name=name, journal=journal, tell=tell
                )
    return tallies


def _settings(family: BugsFamily, count: int) -> Injection:
    return Injection(
        count=count,
        seed=family.seed,
        edits=family.edits,
        per_function=max(3, count // 3),
        testing=Testing(seconds=family.tests_seconds),
        agent_timeout_sec=family.agent_timeout_sec,
    )
