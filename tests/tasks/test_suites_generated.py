"""Every generated family: the same bytes, tasks that load, sets that differ by content, and the real checker on a sample.

The full sweep over many seeds is marked slow.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from whippletree.configuration import convert
from whippletree.tasks import check_task, load_task
from whippletree.tasks.suites.generated import FAMILIES, write_family

SMALL = {"trail": {"train": 6, "heldout": 6}, "shell": {"train": 24, "heldout": 24}}
SMALL |= {"data": {"train": 8, "heldout": 8}, "search": {"train": 4, "heldout": 4}}
kinds = pytest.mark.parametrize("kind", sorted(FAMILIES))


def written(kind: str, directory: Path, **settings: object) -> tuple[list[Path], list[Path]]:
    return write_family(kind, convert(FAMILIES[kind][0], SMALL[kind] | settings, kind), directory)


def contents(path: Path) -> dict[str, tuple[int, bytes]]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): (file.stat().st_mode, file.read_bytes()) for file in files}


def outcome(path: Path) -> tuple[str, ...]:
    """What is asked, how it is done, and the answer, without labels and names."""
    names = ("instruction.md", "solution/solve.sh", "tests/wanted.json")
    return tuple((path / name).read_text() for name in names if (path / name).exists())


@kinds
def test_the_same_settings_give_the_same_bytes(kind: str, tmp_path: Path):
    for name in ("one", "two"):
        written(kind, tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    written(kind, tmp_path / "one")  # again: nothing to do, no error
    written(kind, tmp_path / "other", seed=3)
    assert contents(tmp_path / "one") != contents(tmp_path / "other")


@kinds
def test_every_task_loads_and_says_what_it_is(kind: str, tmp_path: Path):
    train, heldout = written(kind, tmp_path)
    assert (len(train), len(heldout)) == (SMALL[kind]["train"], SMALL[kind]["heldout"])
    for path in [*train, *heldout]:
        task = load_task(path)
        assert task.steps[0].solution_dir and task.labels["difficulty"] and task.labels["family"]
    assert len({path.name for path in [*train, *heldout]}) == len(train) + len(heldout)


@kinds
def test_training_and_heldout_tasks_are_apart_by_content(kind: str, tmp_path: Path):
    many = {"train": 240, "heldout": 48}
    train, heldout = written(kind, tmp_path, **many)
    asked = {outcome(path) for path in heldout}
    assert len(asked) == many["heldout"]
    assert not asked & {outcome(path) for path in train}


@kinds
async def test_a_sample_is_accepted_by_the_checker(kind: str, tmp_path: Path, make_sandbox):
    _, heldout = written(kind, tmp_path, train=0)
    for path in heldout:
        check = await check_task(load_task(path), make_sandbox, times=1)
        assert check.problems == (), path.name


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("make_sandbox", ["bubblewrap"], indirect=True)  # one backend is enough for the sweep
@kinds
async def test_many_are_accepted_by_the_checker(kind: str, tmp_path: Path, make_sandbox):
    train, heldout = written(kind, tmp_path, train=24, heldout=8, seed=11)
    for path in [*train, *heldout]:
        check = await check_task(load_task(path), make_sandbox)
        assert check.problems == (), path.name


@kinds
def test_no_answer_is_in_what_the_agent_is_told(kind: str, tmp_path: Path):
    for path in written(kind, tmp_path, train=48)[0]:
        answer = path / "tests" / "answer"
        if answer.exists() and not re.search(r"finding|archives", path.name):  # there it is one of the names that are given
            assert answer.read_text().strip() not in (path / "instruction.md").read_text().split()
