"""Which tasks are worth training on: rules that look at the task, then how often a model solved it.

    task ─► a statement? ─► a commit in its repository? ─► not too many tests? ─► loads? ─► solved in some tries, not in all?

Invariants (tests/tasks/test_filtering.py):
- each task is decided once, with a reason, in a journal; a task with fewer judged tries than wanted is left undecided;
- a try whose verifier or machine failed counts neither for nor against;
- which of the never solved tasks are kept depends on the seed and the task's name alone;
- nothing that was there before is lost: neither the tasks that are filtered nor others where they are copied to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from whippletree.configuration import Config
from whippletree.errors import ConfigurationError
from whippletree.protocols import Store
from whippletree.tasks.history import run_git
from whippletree.tasks.images import Backing
from whippletree.tasks.journal import Decision, Journal, Tally
from whippletree.tasks.reading import Reading, no_tasks, read_task, tasks_in
from whippletree.tasks.writing import check_equal, content_of
from whippletree.types import Struct

JOURNAL = "filter.jsonl"
EMPTY, BRANCH, TESTS, BROKEN = "empty statement", "missing branch", "too many tests", "does not load"
ALWAYS, SOME, NEVER, DRAWN = "solved in every try", "solved in some tries", "never solved", "never solved, drawn"


class FilterSettings(Config):
    """What is kept.

    Example: FilterSettings(most_tests=200, tries=4, never_share=0.2)
    """

    most_tests: int = 200
    """Tests that a task may have, where it says how many."""
    tries: int = 4
    """Tries of the model at each task; more are left out, fewer leave the task undecided."""
    passing: float = 1.0
    """Least reward of a try that solved the task."""
    never_share: float = 0.2
    """Share of the tasks that no try solved which is kept."""
    always_share: float = 0.0
    """Share of the tasks that every try solved which is kept."""
    seed: int = 0
    """Draws which of those are kept."""


class Measured(Struct):
    """A task's judged tries, the oldest first: which of them solved it. Example: Measured(solved=(True, False, False, True))"""

    solved: tuple[bool, ...] = ()


def check_settings(settings: FilterSettings) -> None:
    """Raises ConfigurationError for numbers that make no sense."""
    if settings.tries < 1 or settings.most_tests < 1:
        cause = f"filter: tries = {settings.tries}, most_tests = {settings.most_tests}"
        raise ConfigurationError(cause, "give numbers from 1 on")
    for name in ("never_share", "always_share"):
        if not 0 <= getattr(settings, name) <= 1:
            raise ConfigurationError(f"filter: {name} = {getattr(settings, name)}", "give a share from 0 to 1")


def measured(store: Store, settings: FilterSettings) -> dict[str, Measured]:
    """The judged tries in a record, by name of the task. Raises StoreError."""
    found: dict[str, list[bool]] = defaultdict(list)
    for rollout in store.rollouts(states=("succeeded",)):
        if rollout.reward is not None:
            found[rollout.spec.task_id].append(rollout.reward >= settings.passing)
    return {name: Measured(solved=tuple(tries)) for name, tries in found.items()}


def task_paths(directory: Path) -> list[Path]:
    """The tasks of a directory. Raises ConfigurationError where there is none."""
    found = tasks_in(directory)
    if not found:
        raise no_tasks(directory)
    return found


def by_rules(path: Path, settings: FilterSettings, backing: Backing) -> Decision | None:
    """The decision of the rules that look at the task alone; None where they let it pass."""
    reading = read_task(path, backing=backing)
    if not _statement(path, reading):
        return _drop(path, EMPTY)
    try:
        lost = list(_lost_repositories(path / "environment"))
    except ConfigurationError as error:
        return _drop(path, BRANCH, str(error))
    if lost:
        return _drop(path, BRANCH, lost[0])
    count = count_tests(path, reading)
    if count is not None and count > settings.most_tests:
        return _drop(path, TESTS, f"{count} tests, at most {settings.most_tests}")
    if reading.problems:
        return _drop(path, BROKEN, reading.problems[0].cause)
    return None


def _statement(path: Path, reading: Reading) -> bool:
    if reading.task is not None:
        return all(step.instruction.strip() for step in reading.task.steps)
    files = [*path.glob("instruction.md"), *path.glob("steps/*/instruction.md")]
    return bool(files) and all(file.read_text(encoding="utf-8", errors="replace").strip() for file in files)


def _lost_repositories(environment: Path) -> Iterator[str]:
    """Repositories that are handed out without a commit to start from."""
    for git in sorted(environment.rglob(".git")):
        if git.is_dir() and not run_git(git, "rev-parse", "--quiet", "--verify", "HEAD^{commit}", ok=(0, 1, 128)):
            yield f"{git.parent.relative_to(environment)} has no commit"


def count_tests(path: Path, reading: Reading) -> int | None:
    """How many tests judge a task, where it says so: `tests` of its [metadata], or the lists that bug tasks and SWE-bench's
    adapters bring along."""
    said = reading.task.metadata.get("tests") if reading.task is not None else None
    if isinstance(said, int):
        return said
    for name, keys in (("settings.json", ("wanted",)), ("config.json", ("FAIL_TO_PASS", "PASS_TO_PASS"))):
        file = path / "tests" / name
        if file.is_file():
            try:
                data = msgspec.json.decode(file.read_bytes(), type=dict[str, object])
                lists = [names_of(data[key]) for key in keys if key in data]
            except msgspec.DecodeError:
                continue
            if lists:
                return sum(map(len, lists))
    return None


def names_of(value: object) -> list[str]:
    """A list of names, as such or as the JSON of one. Raises msgspec.DecodeError for anything else."""
    if isinstance(value, str):
        return msgspec.json.decode(value, type=list[str])
    return msgspec.convert(value, list[str])


def by_results(path: Path, found: Measured, settings: FilterSettings) -> Decision | None:
    """The decision by the tries of a model; None where there are too few of them."""
    tries = found.solved[: settings.tries]
    if len(tries) < settings.tries:
        return None
    solved = sum(tries)
    detail = f"{solved} of {len(tries)}"
    if 0 < solved < len(tries):
        return Decision(name=path.name, kept=True, reason=SOME, detail=detail)
    share = settings.always_share if solved else settings.never_share
    digest = hashlib.sha256(f"{settings.seed}/{path.name}".encode()).digest()
    kept = int.from_bytes(digest[:8], "big") < share * 2**64
    reason = ALWAYS if solved else DRAWN if kept else NEVER
    return Decision(name=path.name, kept=kept, reason=reason, detail=detail)


def _drop(path: Path, reason: str, detail: str = "") -> Decision:
    return Decision(name=path.name, kept=False, reason=reason, detail=detail)


class Filtered(Struct):
    """What came of it. `undecided`: tasks with too few judged tries.

    Example: Filtered(tally=Tally(kept=41, dropped={"solved in every try": 12}), undecided=("t-7",))
    """

    tally: Tally
    undecided: tuple[str, ...] = ()


def filter_tasks(
    directory: Path,
    out: Path,
    settings: FilterSettings,
    results: Mapping[str, Measured] | None,
    backing: Backing,
) -> Filtered:
    """Copy the tasks that are kept to `out`, beside the journal. `results`: of a model's tries (None: the rules alone). Goes on
    where it was interrupted. Raises ConfigurationError, TaskError."""
    check_settings(settings)
    if directory.resolve() == out.resolve():
        raise ConfigurationError(f"source and target are both {out}", "give --to another directory")
    work = f"filter {directory.resolve()} {msgspec.json.encode(settings).decode()} {'rules' if results is None else 'results'}"
    undecided = []
    paths = task_paths(directory)
    with Journal(out / JOURNAL, work) as journal:
        for path in paths:
            decision = journal.decisions.get(path.name)
            if decision is None:
                decision = by_rules(path, settings, backing) or _by(path, settings, results)
                if decision is None:
                    undecided.append(path.name)
                    continue
                if decision.kept:
                    copy_task(path, out / path.name)
                journal.add(decision)
        return Filtered(tally=journal.tally(), undecided=tuple(undecided))


def _by(path: Path, settings: FilterSettings, results: Mapping[str, Measured] | None) -> Decision | None:
    if results is None:
        return Decision(name=path.name, kept=True)
    return by_results(path, results.get(path.name, Measured()), settings)


def passing_rules(directory: Path, settings: FilterSettings, backing: Backing) -> Sequence[Path]:
    """The tasks that the rules let pass: those that a model need try. Raises ConfigurationError."""
    check_settings(settings)
    return [path for path in task_paths(directory) if by_rules(path, settings, backing) is None]


def copy_task(source: Path, target: Path) -> None:
    """Copy a task's directory, whole or not at all; an equal one that is there is left alone. Raises TaskError, and touches
    nothing, where something else is there."""
    if os.path.lexists(target):
        check_equal(target, content_of(source))
        return
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, partial, symlinks=True)
    partial.rename(target)
