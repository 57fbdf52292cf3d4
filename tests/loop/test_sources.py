"""whippletree/loop/sources.py"""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError, TaskError
from whippletree.loop.sources import DirectoryTasks, TrailTasks, resolve, task_directories
from whippletree.tasks.config import TrailFamily

TRAIL = TrailTasks(family=TrailFamily(train=8, heldout=4, depths=(1, 2), decoys=(1,)))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def text(task: str) -> bytes:
    """What the agent sees of a task."""
    return (Path(task) / "instruction.md").read_bytes() + b"".join(contents(Path(task) / "environment").values())


def test_no_task_of_a_family_is_in_both_sets(tmp_path: Path):
    source, heldout = resolve("trail", TRAIL, "mini-swe-agent", 2.0, tmp_path)
    assert len(source.tasks) == 8
    assert len(heldout) == 4
    assert not {task_id for task_id, _ in source.tasks} & {held.task_id for held in heldout}
    assert not {text(path) for _, path in source.tasks} & {text(held.task_path) for held in heldout}


def test_a_source_carries_its_harness_its_share_and_its_tasks_labels(tmp_path: Path):
    source, heldout = resolve("trail", TRAIL, "mini-swe-agent", 2.0, tmp_path)
    assert (source.name, source.harness, source.share) == ("trail", "mini-swe-agent", 2.0)
    assert {held.source for held in heldout} == {"trail"}
    assert all(source.labels[task_id]["difficulty"] for task_id, _ in source.tasks)
    assert len({held.labels["difficulty"] for held in heldout}) == 2  # depth 1 and 2
    assert all((tmp_path / "tasks" / "trail") in Path(path).parents for _, path in source.tasks)


def test_writing_a_family_twice_gives_the_same_directories(tmp_path: Path):
    first = task_directories(TRAIL, "trail", tmp_path)
    before = contents(tmp_path)
    assert task_directories(TRAIL, "trail", tmp_path) == first
    assert contents(tmp_path) == before
    task_directories(TRAIL, "trail", tmp_path / "again")
    assert contents(tmp_path / "again") == before


def test_task_directories_on_disk_are_a_source_too(tmp_path: Path):
    task_directories(TRAIL, "trail", tmp_path)
    root = tmp_path / "tasks" / "trail"
    tasks = DirectoryTasks(train=str(root / "train"), heldout=str(root / "heldout"))
    source, heldout = resolve("mine", tasks, "mini-swe-agent", 1.0, tmp_path / "run")
    assert (len(source.tasks), len(heldout)) == (8, 4)
    assert not (tmp_path / "run").exists()  # nothing is written


def test_one_directory_for_both_sets_is_refused_whatever_it_is_called(tmp_path: Path):
    task_directories(TRAIL, "trail", tmp_path)
    train = tmp_path / "tasks" / "trail" / "train"
    (tmp_path / "link").symlink_to(train)
    for other in (train, train / ".." / "train", tmp_path / "link"):
        with pytest.raises(ConfigurationError, match="give two directories"):
            task_directories(DirectoryTasks(train=str(train), heldout=str(other)), "mine", tmp_path)


def test_a_task_that_is_linked_into_both_sets_is_refused_by_name(tmp_path: Path):
    train, _ = task_directories(TRAIL, "trail", tmp_path)
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "other-name").symlink_to(train[3])
    with pytest.raises(ConfigurationError, match=train[3].name):
        task_directories(DirectoryTasks(train=str(train[0].parent), heldout=str(tmp_path / "held")), "mine", tmp_path)


def test_a_directory_without_tasks_is_refused(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigurationError, match=r"source mine: no task in .*/a"):
        task_directories(DirectoryTasks(train=str(tmp_path / "a"), heldout=str(tmp_path / "b")), "mine", tmp_path)


def test_a_directory_above_the_tasks_is_told_where_they_are(tmp_path: Path):
    train, _ = task_directories(TRAIL, "trail", tmp_path)
    above = train[0].parent.parent
    with pytest.raises(ConfigurationError, match=r"source mine: no task in .* \(they are in .*/heldout, .*/train\)"):
        task_directories(DirectoryTasks(train=str(above)), "mine", tmp_path)


def test_a_set_that_is_not_named_is_empty_and_one_of_both_must_be_there(tmp_path: Path):
    train, heldout = task_directories(TRAIL, "trail", tmp_path)
    alone = DirectoryTasks(heldout=str(heldout[0].parent))
    assert task_directories(alone, "mine", tmp_path) == ([], heldout)
    assert task_directories(DirectoryTasks(train=str(train[0].parent)), "mine", tmp_path) == (train, [])
    source, held = resolve("mine", alone, "h", 0.0, tmp_path)
    assert (source.tasks, len(held)) == ((), 4)
    with pytest.raises(ConfigurationError, match="source mine has no tasks"):
        task_directories(DirectoryTasks(), "mine", tmp_path)


def test_a_broken_task_stops_the_run_before_it_starts(tmp_path: Path):
    _, heldout = task_directories(TRAIL, "trail", tmp_path)
    (heldout[0] / "tests" / "test.sh").unlink()
    root = heldout[0].parent.parent
    with pytest.raises(TaskError, match=heldout[0].name):
        resolve("mine", DirectoryTasks(train=str(root / "train"), heldout=str(root / "heldout")), "h", 1.0, tmp_path)
