"""whippletree/tasks/writing.py"""

from __future__ import annotations

import dataclasses

import pytest

from whippletree.errors import TaskError
from whippletree.tasks import load_task
from whippletree.tasks.writing import Draft, Limits, key_of, write_draft, write_tree

DRAFT = Draft(
    task_id="t",
    instruction="do it",
    solution="#!/bin/sh\n",
    tests={"test.sh": b"#!/bin/sh\n", "data/x": b"\0\xff"},
    key="k",
    files={"a/b": b"1", "run": b"#!/bin/sh\n"},
    programs={"tool": b"#!/bin/sh\n"},
    executable=frozenset(["run"]),
    labels={"suite": "s", "grade": 2},
)


def test_a_draft_becomes_a_task(tmp_path):
    path = write_draft(tmp_path, DRAFT, Limits(agent=7.0, verifier=3.0))
    task = load_task(path)
    assert (task.labels["suite"], task.labels["grade"]) == ("s", "2")
    assert (task.steps[0].agent_timeout, task.steps[0].judging.timeout, task.workdir) == (7.0, 3.0, "/app")
    assert {inside for _, inside in task.place.files} == {"/app", "/usr/local/bin"}
    modes = {name: (path / name).stat().st_mode & 0o777 for name in ("environment/files/run", "environment/files/a/b")}
    assert modes == {"environment/files/run": 0o755, "environment/files/a/b": 0o644}
    assert (path / "environment/programs/tool").stat().st_mode & 0o111
    assert (path / "tests/data/x").read_bytes() == b"\0\xff"


def test_labels_are_written_whatever_they_hold(tmp_path):
    family = 'a "b" \\ c'
    path = write_draft(tmp_path, dataclasses.replace(DRAFT, labels={"family": family}), Limits())
    assert load_task(path).labels["family"] == family


def test_an_equal_directory_is_left_alone_and_another_never_touched(tmp_path):
    path = write_tree(tmp_path / "t", {"a": b"1"}, set())
    before = path.stat().st_mtime_ns
    assert write_tree(path, {"a": b"1"}, set()) == path
    assert path.stat().st_mtime_ns == before
    for other in ({"a": b"2"}, {}, {"a": b"1", "b": b""}):
        with pytest.raises(TaskError, match="exists with other content"):
            write_tree(path, other, set())
    assert (path / "a").read_bytes() == b"1" and [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_what_was_interrupted_is_made_anew(tmp_path):
    (tmp_path / ".t.partial").mkdir()
    (tmp_path / ".t.partial" / "left").write_text("x")
    path = write_tree(tmp_path / "t", {"a": b"1"}, set())
    assert [entry.name for entry in path.iterdir()] == ["a"]
    assert not (tmp_path / ".t.partial").exists()


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "a//b", "./a"])
def test_a_path_that_leaves_the_directory_is_refused(tmp_path, name):
    with pytest.raises(TaskError, match="no path below it"):
        write_tree(tmp_path / "t", {name: b""}, set())
    assert list(tmp_path.iterdir()) == []


def test_keys_tell_parts_apart():
    assert key_of("a", "b") == key_of("a", "b")
    assert key_of("a", "b") != key_of("ab", "") != key_of("a,b")
