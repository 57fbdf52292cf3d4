"""Bugs into a repository: drawn by seed, verified by its tests, written as tasks that the checker accepts.

    per candidate: mutate ─► run the tests ─► some fail, not too many? ─► write the task ─► check it ─► journal
    a candidate is decided once: what was interrupted goes on with the next one

Invariants (tests/tasks/test_injecting_pipeline.py):
- the same repository and settings give the same tasks, also when the work was interrupted;
- a task that is kept was accepted by the checker: its repair passes, and leaving it alone fails;
- each candidate that was tried has its decision and reason in the journal; a task that is not kept is not there.
"""

from __future__ import annotations

import fnmatch
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError
from whippletree.tasks.bench import MakeSandbox
from whippletree.tasks.checks import check_task
from whippletree.tasks.injecting.config import Injection
from whippletree.tasks.injecting.mutations import Edit, edits
from whippletree.tasks.injecting.packing import Bug, is_test, limits, pack
from whippletree.tasks.injecting.repository import Tree, git_directory, read_commit
from whippletree.tasks.injecting.testing import Results, check_testing, run_tests, steady_tests
from whippletree.tasks.journal import Decision, Journal, Tally
from whippletree.tasks.reading import load_task
from whippletree.tasks.writing import key_of, write_draft

JOURNAL = "journal.jsonl"
Tell = Callable[[Decision], None]


async def inject(
    repository: Path,
    settings: Injection,
    directory: Path,
    make_sandbox: MakeSandbox,
    *,
    name: str = "",
    journal: Path | None = None,
    tell: Tell | None = None,
) -> Tally:
    """Write tasks to `directory`. `name`: of the repository in task names ("": its directory's); `journal`: where decisions are
    kept (None: a file in `directory`); `tell` hears of each one. Raises ConfigurationError, SandboxError; TaskError where
    no test passes or other tasks are there."""
    _check(settings)
    name = name or repository.resolve().name.removesuffix(".git")
    tree = read_commit(git_directory(repository), settings.commit)
    work = f"inject {name} {tree.commit} {msgspec.json.encode(settings).decode()}"
    with Journal(journal or directory / JOURNAL, work) as decided:
        found = list(_candidates(name, tree, settings))
        if len(decided.decisions) < len(found) and decided.tally().kept < settings.count:
            steady = await steady_tests(tree.files, settings.testing, make_sandbox)
            work_on = _Work(name, tree, settings, directory=directory, make_sandbox=make_sandbox, steady=steady)
            await work_on.run(found, decided, tell or (lambda _: None))
        return decided.tally()


class _Work:
    def __init__(
        self,
        name: str,
        tree: Tree,
        settings: Injection,
        *,
        directory: Path,
        make_sandbox: MakeSandbox,
        steady: tuple[str, ...],
    ) -> None:
        self._name = name
        self._tree = tree
        self._settings = settings
        self._directory = directory
        self._make = make_sandbox
        self._steady = steady
        self._taken: Counter[tuple[str, str]] = Counter()

    async def run(self, found: list[Bug], journal: Journal, tell: Tell) -> None:
        settings = self._settings
        kept = 0
        for bug in found[: settings.count * settings.tries]:
            decision = journal.decisions.get(bug.name)
            if decision is None:
                decision = await self._decide(bug)
                journal.add(decision)
                tell(decision)
            kept += decision.kept
            self._taken[bug.path, bug.function] += decision.kept
            if kept == settings.count:
                return

    async def _decide(self, bug: Bug) -> Decision:
        """Try one candidate; where it is kept its task is there afterwards."""
        if self._taken[bug.path, bug.function] >= self._settings.per_function:
            return _dropped(bug, "enough of this function", bug.function)
        results = await run_tests({**self._tree.files, bug.path: bug.source}, self._settings.testing, self._make)
        if refusal := self._refusal(bug, results):
            return refusal
        draft = pack(self._name, self._tree, bug, results, steady=self._steady, settings=self._settings)
        path = self._directory / bug.name
        shutil.rmtree(path, ignore_errors=True)  # of a run that was killed before it decided
        write_draft(self._directory, draft, limits(self._settings))
        check = await check_task(load_task(path), self._make, timeout=limits(self._settings).verifier, times=1)
        if check.problems:
            shutil.rmtree(path)
            return _dropped(bug, "not accepted by the check", check.problems[0][:500])
        failing = sum(name in self._steady for name in results.failed)
        kinds = " + ".join(bug.kinds)
        return Decision(
            name=bug.name, kept=True, detail=f"{kinds} in {bug.function}: {failing} of {len(self._steady)} tests fail"
        )

    def _refusal(self, bug: Bug, results: Results) -> Decision | None:
        """Why what the tests say rules a bug out, if it does."""
        if results.trouble:
            return _dropped(bug, "ran past the limit" if "ran past" in results.trouble else "no results", results.trouble)
        broken = [name for name in self._steady if name not in results.passed]
        missing = [name for name in broken if name not in results.failed]
        if missing:
            return _dropped(bug, "tests vanish", missing[0])
        if not broken:
            return _dropped(bug, "no test fails")
        if len(broken) > self._settings.most_failing * len(self._steady) or len(broken) > self._settings.most_tests:
            return _dropped(bug, "too many tests fail", f"{len(broken)} of {len(self._steady)}")
        return None


def _dropped(bug: Bug, reason: str, detail: str = "") -> Decision:
    return Decision(name=bug.name, kept=False, reason=reason, detail=detail)


def _candidates(name: str, tree: Tree, settings: Injection) -> Iterator[Bug]:
    """All candidates in the order of trial, each program once."""
    rng = random.Random(f"inject/{settings.seed}")
    places = [
        (path, edit)
        for path in sorted(tree.files)
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in settings.sources) and not is_test(path, settings.tests)
        for edit in edits(tree.files[path])
    ]
    rng.shuffle(places)
    seen: set[str] = set()
    for number, (path, edit) in enumerate(places):
        size = settings.edits[number % len(settings.edits)]
        chosen = _together(edit, [other for at, other in places if at == path], size, rng)
        source = tree.files[path]
        for part in sorted(chosen, reverse=True):
            source = part.apply(source)
        digest = key_of(path, source)[:10]
        if len(chosen) == size and digest not in seen:
            seen.add(digest)
            kinds = tuple(part.kind for part in chosen)
            yield Bug(name=f"{name}-{digest}", path=path, source=source, kinds=kinds, function=edit.function)


def _together(edit: Edit, others: list[Edit], size: int, rng: random.Random) -> list[Edit]:
    """The edit and further ones of its function that do not touch it or each other; fewer where there are not as many."""
    chosen = [edit]
    pool = sorted(other for other in others if other.function == edit.function)
    for other in rng.sample(pool, len(pool)) if size > 1 else []:
        if len(chosen) < size and all(other.end <= part.start or part.end <= other.start for part in chosen):
            chosen.append(other)
    return sorted(chosen)


def _check(settings: Injection) -> None:
    check_testing(settings.testing)
    if settings.count < 1 or settings.tries < 1 or not settings.edits or min(settings.edits) < 1:
        cause = f"inject: count = {settings.count}, tries = {settings.tries}, edits = {list(settings.edits)}"
        raise ConfigurationError(cause, "give numbers from 1 on")
    if not 0 < settings.most_failing <= 1 or settings.most_tests < 1 or settings.per_function < 1:
        cause = f"inject: most_failing = {settings.most_failing:g}, most_tests = {settings.most_tests}"
        raise ConfigurationError(cause, "give a share in (0, 1], and numbers from 1 on")
