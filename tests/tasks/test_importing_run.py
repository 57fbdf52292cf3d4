"""whippletree/tasks/importing/run.py and questions.py"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks import check_task, load_task
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.images import HOSTS
from whippletree.tasks.importing.questions import QuestionRows
from whippletree.tasks.importing.run import JOURNAL, import_folders, import_rows
from whippletree.tasks.trail import write_tasks
from whippletree.tasks.trial import run_trial

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
    assert json.loads((tmp_path / "out" / "one" / "tests" / "wanted.json").read_text()) == {"text": "Osk", "also": ["Osk City"]}
    for name in ("one", "2"):
        assert (await check_task(load_task(tmp_path / "out" / name), make_sandbox, times=1)).problems == ()


def test_every_row_of_one_name_is_told_also_after_a_kill(tmp_path: Path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text('{"id": "a", "question": "?", "answer": "x"}\n' * 4)
    tally = import_rows(source, out, QuestionRows(), lambda decision: None)
    assert tally.kept == 1 and tally.dropped == {"two rows of one name": 3}
    lines = (out / JOURNAL).read_text().splitlines(keepends=True)
    (out / JOURNAL).write_text("".join(lines[:3]))
    told = []
    assert import_rows(source, out, QuestionRows(), told.append) == tally
    assert (out / JOURNAL).read_text() == "".join(lines) and len(told) == 2


def test_nothing_is_made_where_nothing_can_be_imported(tmp_path: Path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text('{"q": "?"}\n')
    with pytest.raises(ConfigurationError, match="no column question"):
        import_rows(source, out, QuestionRows(), lambda decision: None)
    assert not out.exists()


def test_a_number_that_is_none_is_no_answer(tmp_path: Path):
    import pyarrow
    from pyarrow import parquet

    source = tmp_path / "rows.parquet"
    parquet.write_table(
        pyarrow.table({"id": ["a", "b", "c"], "question": ["?"] * 3, "answer": [1.5, float("nan"), None]}), source
    )
    tally = import_rows(source, tmp_path / "out", QuestionRows(), lambda decision: None)
    assert names(tmp_path / "out") == ["a"] and tally.dropped == {"no answer": 2}


async def test_questions_over_a_corpus_bring_it_and_its_search_tool(source: Path, tmp_path: Path, make_sandbox):
    corpus = tmp_path / "corpus.jsonl"
    documents = [{"id": 7, "title": "Velmora", "text": "Its capital is Osk.", "pages": 3}, {"id": "b", "text": "Of nothing."}]
    corpus.write_text("".join(json.dumps(document) + "\n" for document in documents))
    import_rows(source, tmp_path / "out", QuestionRows(corpus=str(corpus)), lambda decision: None)
    task = load_task(tmp_path / "out" / "one")
    assert "search WORDS" in task.steps[0].instruction
    outputs = []

    async def act(task, step, sandbox):
        for command in ("search capital velmora", "read_doc 7", "submit Osk City"):
            done = await sandbox.exec(["/bin/sh", "-c", command], timeout=30.0)
            outputs.append(done.output)

    result = await run_trial(task, make_sandbox, act, name="t", timeout=20.0)
    assert result.reward == 1.0 and result.scores == {"reward": 1.0, "f1": 1.0, "answered": 1.0}
    assert outputs[:2] == ["7  Velmora: Its capital is Osk.\n", "Velmora\nIts capital is Osk.\n"]


@pytest.mark.parametrize(
    "documents",
    [[{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], [{"title": "t", "text": "x"}], [{"id": "a", "text": " "}]],
)
def test_a_corpus_that_cannot_be_used_is_told(source: Path, tmp_path: Path, documents: list[dict[str, str]]):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(document) + "\n" for document in documents))
    with pytest.raises(TaskError, match=f"document {len(documents)} has no text, or no id"):
        import_rows(source, tmp_path / "out", QuestionRows(corpus=str(corpus)), lambda decision: None)


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
