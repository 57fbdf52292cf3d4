"""whippletree/tasks/journal.py"""

from __future__ import annotations

import subprocess
import sys

import pytest

from whippletree.errors import TaskError
from whippletree.tasks.journal import Decision, Journal, Tally


def test_what_was_decided_is_there_again(tmp_path):
    path = tmp_path / "a" / "journal.jsonl"
    with Journal(path, "work") as journal:
        journal.add(Decision(name="a", kept=True))
        journal.add(Decision(name="b", kept=False, reason="empty", detail="no text"))
    with Journal(path, "work") as journal:
        assert journal.decisions["b"] == Decision(name="b", kept=False, reason="empty", detail="no text")
        journal.add(Decision(name="c", kept=False, reason="empty"))
        journal.add(Decision(name="d", kept=True, reason="never solved"))
        assert journal.tally() == Tally(kept=2, dropped={"empty": 2}, kept_because={"never solved": 1})
    assert len(path.read_bytes().splitlines()) == 5


def test_what_was_decided_survives_a_kill(tmp_path):
    path = tmp_path / "journal.jsonl"
    script = (
        "import os, pathlib\nfrom whippletree.tasks.journal import *\n"
        f"journal = Journal(pathlib.Path({str(path)!r}), 'work')\njournal.add(Decision(name='a', kept=True))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    with Journal(path, "work") as journal:
        assert set(journal.decisions) == {"a"}


def test_another_process_waits_its_turn_and_changes_nothing(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path, "work") as journal:
        journal.add(Decision(name="a", kept=True))
        before = path.read_bytes()
        with pytest.raises(TaskError, match="another command is at work on it"):
            Journal(path, "work")
        assert path.read_bytes() == before
    with Journal(path, "work") as journal:
        assert set(journal.decisions) == {"a"}


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_cut_off_is_decided_anew(tmp_path, cut):
    path = tmp_path / "journal.jsonl"
    with Journal(path, "work") as journal:
        journal.add(Decision(name="a", kept=True))
        journal.add(Decision(name="b", kept=True))
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, "work") as journal:
        assert set(journal.decisions) == {"a"}
        journal.add(Decision(name="b", kept=False, reason="x"))
    with Journal(path, "work") as journal:
        assert [decision.kept for decision in journal.decisions.values()] == [True, False]


def test_the_journal_of_other_work_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path, "work") as journal:
        journal.add(Decision(name="a", kept=True))
    with pytest.raises(TaskError, match="journal of other work: work"):
        Journal(path, "other work")
    path.write_text("hello\n")
    with pytest.raises(TaskError, match="not a journal"):
        Journal(path, "work")
    assert path.read_text() == "hello\n"


def test_what_differs_from_other_work_is_named(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path, 'inject p abc {"count":4,"seed":0,"testing":{"start":".","python":"python3"}}') as journal:
        journal.add(Decision(name="a", kept=True))
    with pytest.raises(TaskError) as refused:
        Journal(path, 'inject p abc {"count":5,"seed":0,"testing":{"start":"tests","python":"python3"}}')
    assert refused.value.cause == f'{path} is the journal of other work: count was 4, is 5, testing.start was ".", is "tests"'
    with pytest.raises(TaskError, match="journal of other work: inject p abc "):
        Journal(path, 'inject q abc {"count":4,"seed":0,"testing":{"start":".","python":"python3"}}')


def test_a_journal_without_a_decision_is_begun_anew(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path, "work").close()
    with Journal(path, "other work") as journal:
        journal.add(Decision(name="a", kept=True))
    assert path.read_bytes().splitlines()[0] == b'{"work":"other work"}'
    with Journal(path, "other work") as journal:
        assert set(journal.decisions) == {"a"}
