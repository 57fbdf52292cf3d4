"""whippletree/tasks/filtering.py"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError, TaskError
from whippletree.protocols import AttemptOutcome
from whippletree.store import open_store
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.filtering import (
    JOURNAL,
    FilterSettings,
    Measured,
    by_results,
    by_rules,
    filter_tasks,
    measured,
    passing_rules,
)
from whippletree.tasks.images import HOSTS
from whippletree.tasks.trail import write_tasks
from whippletree.types import Cause, CauseClass, RolloutSpec, VerifierResult

PLAIN = FilterSettings()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    write_tasks(tmp_path / "t", TrailFamily(train=6, heldout=0))
    return tmp_path / "t" / "train"


def names(directory: Path) -> list[str]:
    return sorted(path.parent.name for path in directory.glob("*/task.toml"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / "instruction.md").write_text(" \n"), "empty statement"),
        (lambda path: (path / "instruction.md").unlink(), "empty statement"),
        (lambda path: (path / "environment/files/.git").mkdir(), "missing branch"),
        (lambda path: (path / "tests/settings.json").write_text('{"wanted": ["a", "b", "c"]}'), "too many tests"),
        (
            lambda path: (path / "tests/config.json").write_text(
                '{"FAIL_TO_PASS": "[\\"a\\", \\"b\\"]", "PASS_TO_PASS": ["c"]}'
            ),
            "too many tests",
        ),
        (lambda path: (path / "task.toml").write_text("[metadata]\ntests = 3\n"), "too many tests"),
        (lambda path: (path / "tests/test.sh").unlink(), "does not load"),
        (lambda path: None, ""),
        (lambda path: (path / "tests/settings.json").write_text('{"wanted": ["a", "b"]}'), ""),
        (lambda path: (path / "tests/config.json").write_text("no json"), ""),
    ],
)
def test_each_rule(tasks: Path, change, reason: str):
    path = tasks / names(tasks)[0]
    change(path)
    found = by_rules(path, FilterSettings(most_tests=2), HOSTS)
    assert (found.reason if found else "") == reason


@pytest.mark.parametrize(
    ("solved", "kept", "reason"),
    [
        ((True, False, False, False), True, "solved in some tries"),
        ((True, True, True, False, True), True, "solved in some tries"),
        ((True,) * 4, False, "solved in every try"),
        ((True,) * 4 + (False,), False, "solved in every try"),
        ((False,) * 4, False, "never solved"),
        ((True, False, True), None, ""),
        ((), None, ""),
    ],
)
def test_difficulty_by_four_tries(solved: tuple[bool, ...], kept: bool | None, reason: str):
    found = by_results(Path("t-1"), Measured(solved=solved), FilterSettings(never_share=0.0))
    assert (found.kept, found.reason) == (kept, reason) if found else kept is None


def test_a_share_of_the_never_solved_is_drawn_by_seed_and_name():
    def drawn(**settings: object) -> set[str]:
        paths = [Path(f"task-{number}") for number in range(400)]
        return {path.name for path in paths if by_results(path, Measured(solved=(False,) * 4), FilterSettings(**settings)).kept}

    assert 60 <= len(drawn(never_share=0.2)) <= 100
    assert drawn(never_share=0.2) == drawn(never_share=0.2, always_share=0.9) != drawn(never_share=0.2, seed=1)
    assert drawn(never_share=0.1) < drawn(never_share=0.2) < drawn(never_share=1.0)
    assert len(drawn(never_share=1.0)) == 400 and not drawn(never_share=0.0)


def test_the_rules_alone_keep_what_is_sound(tasks: Path, tmp_path: Path):
    first, second, *others = names(tasks)
    (tasks / first / "instruction.md").write_text("")
    (tasks / second / "tests" / "test.sh").unlink()
    done = filter_tasks(tasks, tmp_path / "out", PLAIN, None, HOSTS)
    assert (done.tally.kept, done.tally.dropped, done.undecided) == (4, {"empty statement": 1, "does not load": 1}, ())
    assert names(tmp_path / "out") == others
    assert [path.name for path in passing_rules(tasks, PLAIN, HOSTS)] == others
    script = tmp_path / "out" / others[0] / "tests" / "test.sh"
    assert script.read_bytes() == (tasks / others[0] / "tests" / "test.sh").read_bytes() and script.stat().st_mode & 0o111


def test_what_is_undecided_is_decided_later_and_nothing_twice(tasks: Path, tmp_path: Path):
    one, two, three, *others = names(tasks)
    results = {
        one: Measured(solved=(True, False, False, False)),
        two: Measured(solved=(True,) * 4),
        three: Measured(solved=(True,)),
    }
    settings = FilterSettings(never_share=0.0)
    done = filter_tasks(tasks, tmp_path / "out", settings, results, HOSTS)
    assert (done.tally.kept, done.tally.dropped, done.undecided) == (1, {"solved in every try": 1}, (three, *others))
    journal = tmp_path / "out" / JOURNAL
    lines = journal.read_bytes().splitlines()
    (tmp_path / "out" / f".{others[0]}.partial").mkdir()  # of an interrupted copy
    later = dict.fromkeys([one, two], Measured(solved=(False,) * 4)) | dict.fromkeys(
        [three, *others], Measured(solved=(True, True, False, False))
    )
    done = filter_tasks(tasks, tmp_path / "out", settings, later, HOSTS)
    assert (done.tally.kept, done.tally.dropped, done.undecided) == (5, {"solved in every try": 1}, ())
    assert journal.read_bytes().splitlines()[: len(lines)] == lines
    assert names(tmp_path / "out") == [one, three, *others]
    assert done.tally.kept_because == {"solved in some tries": 5}
    with pytest.raises(TaskError, match="journal of other work"):
        filter_tasks(tasks, tmp_path / "out", PLAIN, later, HOSTS)


@pytest.mark.parametrize("settings", [{"tries": 0}, {"most_tests": 0}, {"never_share": 1.5}, {"always_share": -0.1}])
def test_settings_that_make_no_sense_are_refused(tasks: Path, tmp_path: Path, settings: dict):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        filter_tasks(tasks, tmp_path / "out", FilterSettings(**settings), None, HOSTS)
    with pytest.raises(ConfigurationError, match="no task in"):
        filter_tasks(tmp_path, tmp_path / "out", PLAIN, None, HOSTS)


def record(directory: Path, task: str, rewards: list[float | None]) -> None:
    """A run's record with judged tries at a task; None: one whose verifier failed."""
    with closing(open_store(directory)) as store:
        for number, reward in enumerate(rewards):
            name = f"{task}-{number}"
            spec = RolloutSpec(
                rollout_id=name, group_id=task, source="s", task_id=task, task_path="/t", harness="h", purpose="eval"
            )
            store.create_rollouts([spec]).result()
            attempt = store.begin(name, "w").result()
            cause = None if reward is not None else Cause(cause=CauseClass.VERIFIER, phase="verify", message="m", next_step="n")
            result = VerifierResult(reward=reward, scores={} if reward is None else {"reward": reward}, cause=cause)
            ended = AttemptOutcome(attempt=attempt.__class__(**_fields(attempt, result=result, cause=cause)))
            assert store.finish(ended).result()


def _fields(attempt, **changes):
    return {name: getattr(attempt, name) for name in attempt.__struct_fields__} | changes


def test_tries_are_read_from_a_record(tmp_path: Path):
    record(tmp_path / "store", "a", [1.0, 0.0, None, 0.5, 1.0])
    record(tmp_path / "store", "b", [0.0])
    with closing(open_store(tmp_path / "store")) as store:
        found = measured(store, PLAIN)
        assert found == {"a": Measured(solved=(True, False, False, True)), "b": Measured(solved=(False,))}
        assert measured(store, FilterSettings(passing=0.5))["a"].solved == (True, False, True, True)


def test_copies_are_whole(tasks: Path, tmp_path: Path):
    shutil.copytree(tasks, tmp_path / "again")
    filter_tasks(tasks, tmp_path / "out", PLAIN, None, HOSTS)
    for name in names(tasks):
        for path in (tasks / name).rglob("*"):
            if path.is_file():
                assert (tmp_path / "out" / name / path.relative_to(tasks / name)).read_bytes() == path.read_bytes()


def test_nothing_that_was_there_is_lost(tasks: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in tasks.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match="source and target are both"):
        filter_tasks(tasks, tasks, PLAIN, None, HOSTS)
    assert {path: path.read_bytes() for path in tasks.rglob("*") if path.is_file()} == before
    mine = tmp_path / "out" / names(tasks)[1]
    mine.mkdir(parents=True)
    (mine / "task.toml").write_text("# written by hand")
    with pytest.raises(TaskError, match="exists with other content"):
        filter_tasks(tasks, tmp_path / "out", PLAIN, None, HOSTS)
    assert (mine / "task.toml").read_text() == "# written by hand"
    shutil.rmtree(mine)
    (tmp_path / "out" / JOURNAL).unlink()
    assert filter_tasks(tasks, tmp_path / "out", PLAIN, None, HOSTS).tally.kept == 6  # what was copied before is equal
