"""whippletree/tasks/importing/run.py and questions.py"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError
from whippletree.tasks import check_task, load_task
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.images import HOSTS
from whippletree.tasks.importing.questions import QuestionRows
from whippletree.tasks.importing.run import JOURNAL, import_folders, import_rows
from whippletree.tasks.trail import write_tasks

ROWS = [
    {"id": "one", "question": "Capital of Velmora?", "answer": ["Osk", "Osk City"]},
    {"id": 2, "question": "How much?", "answer": 12.5},
    {"id": "../../out of here", "question": "Where?", "answer": "in"},
    {"id": "one", "question": "again?", "answer": "x"},
    {"question": " ", "answer": "x"},
    {"question": "no answer?", "answer": []},
    {"question": "two lines?", "answer": "a\nb"},
    {"question": "named by its number?", "answer": "yes"},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.parent.name for path in directory.glob("*/task.toml"))


@pytest.mark.parametrize("make_sandbox", ["process"], indirect=True)
async def test_questions_become_tasks_or_have_a_reason(source: Path, tmp_path: Path, make_sandbox):
    told = []
    tally = import_rows(source, tmp_path / "out", QuestionRows(tolerance=0.5), told.append)
    assert names(tmp_path / "out") == ["2", "one", "out-of-here", "row-000008"]
    assert tally.kept == 4 and tally.dropped == {
        "two rows of one name": 1,
        "empty statement": 1,
        "no answer": 1,
        "answer of several lines": 1,
    }
    assert [decision.name for decision in told if not decision.kept] == [
        "one (again)",
        "row-000005",
        "row-000006",
        "row-000007",
    ]
    assert "within 0.5" in (tmp_path / "out" / "2" / "instruction.md").read_text()
    for name in ("one", "2"):
        assert (await check_task(load_task(tmp_path / "out" / name), make_sandbox, times=1)).problems == ()


def test_interrupted_work_goes_on(source: Path, tmp_path: Path):
    class Killed(Exception):
        pass

    def kill(decision):
        raise Killed

    for _ in range(3):
        with pytest.raises(Killed):
            import_rows(source, tmp_path / "out", QuestionRows(), kill)
    journal = tmp_path / "out" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-3])
    told = []
    tally = import_rows(source, tmp_path / "out", QuestionRows(), told.append)
    assert (tally.kept, sum(tally.dropped.values()), len(told)) == (4, 4, 6)
    assert import_rows(source, tmp_path / "out", QuestionRows(), told.append) == tally and len(told) == 6


def test_folders_that_load_are_copied(tmp_path: Path):
    write_tasks(tmp_path / "t", TrailFamily(train=3, heldout=0))
    source = tmp_path / "t" / "train"
    first, *others = names(source)
    (source / first / "tests" / "test.sh").unlink()
    told = []
    tally = import_folders(source, tmp_path / "out", HOSTS, told.append)
    assert names(tmp_path / "out") == others
    assert tally.dropped == {"does not load": 1} and "test.sh is missing" in told[0].detail
    with pytest.raises(ConfigurationError, match="source and target"):
        import_folders(source, source, HOSTS, told.append)
