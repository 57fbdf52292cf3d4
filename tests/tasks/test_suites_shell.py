"""whippletree/tasks/suites/shell: exercises, their tests and their grades."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from whippletree.tasks import load_task
from whippletree.tasks.suites.config import ShellFamily
from whippletree.tasks.suites.handing_in import SUBMIT
from whippletree.tasks.suites.shell.families import FAMILIES, shell_suite
from whippletree.tasks.suites.shell.parts import NAMES, WORDS, Draw, Exercise, draft
from whippletree.tasks.trial import run_trial
from whippletree.tasks.writing import Limits, write_draft

CELLS = [(name, grade) for name, grades in FAMILIES.items() for grade in range(len(grades))]


def exercises(name: str, grade: int, count: int = 40) -> list[Exercise]:
    return [FAMILIES[name][grade](Draw(f"{name}{grade}{seed}")) for seed in range(count)]


@pytest.mark.parametrize(("name", "grade"), CELLS)
def test_every_exercise_asks_for_something_that_is_not_there_yet(name: str, grade: int):
    for exercise in exercises(name, grade):
        todo = [path for path, data in exercise.after.items() if exercise.before.get(path) != data]
        modes = [mode for path, mode in exercise.modes.items() if mode != "644" or path not in exercise.before]
        assert exercise.answer or todo or exercise.gone or modes or exercise.folders or exercise.conditions
        assert exercise.commands and all("\n" not in command for command in exercise.commands)
        assert set(exercise.gone) <= set(exercise.before) | {path for path in exercise.gone if name == "archives"}
        assert not set(exercise.gone) & set(exercise.after)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_grade_is_one_command_whose_words_are_given(name: str):
    for exercise in exercises(name, 0):
        (command,) = exercise.commands
        assert len(command.split()) <= 4
        given = [word for word in command.replace(".tar", "").split()[1:] if word in NAMES or word in WORDS]
        assert all(word in exercise.instruction for word in given)
        assert len(exercise.instruction.split()) <= 12


@pytest.mark.parametrize("name", FAMILIES)
def test_higher_grades_take_more(name: str):
    sizes = [sum(len(" ".join(exercise.commands)) for exercise in exercises(name, grade)) for grade in range(4)]
    assert max(sizes[:2]) < sizes[2] < sizes[3]


def test_the_key_is_what_is_asked_and_done_not_what_lies_beside():
    one = Exercise("remove amber", {"amber": b"1", "x": b"2"}, ["rm amber"], gone=["amber"], after={"x": b"2"})
    other = Exercise("remove amber", {"amber": b"9"}, ["rm amber"], gone=["amber"])
    assert one.key == other.key
    assert one.key != Exercise("remove birch", {"birch": b"1"}, ["rm birch"], gone=["birch"]).key
    assert Exercise("count", {}, ["wc"], answer="1").key != Exercise("count", {}, ["wc"], answer="2").key


def test_no_word_is_part_of_another():
    for words in (NAMES, WORDS):
        assert len(set(words)) == len(words)
        assert [(one, other) for one, other in itertools.permutations(words, 2) if one in other] == []


def test_grades_and_families_take_turns():
    family = ShellFamily(train=0, heldout=8, families=("text", "files"), grades=(1, 3))
    labels = [draft.labels for _, draft in shell_suite(family).drafts()]
    turns = [(label["family"], label["grade"]) for label in labels]
    assert turns == [("text", 1), ("files", 1), ("text", 3), ("files", 3)] * 2


EXERCISE = Exercise(
    "do all of it",
    {"a": b"1\n", "b": b"2\n"},
    ["true"],
    after={"c": b"3\n"},
    gone=["a"],
    modes={"b": "600"},
    folders=["d"],
    conditions=[('cmp -s "$tests/same/e" e', "e differs")],
    expected={"e": b"5\n"},
)
DONE = "echo 3 > c; rm a; chmod 600 b; mkdir d; echo 5 > e"


@pytest.mark.parametrize(
    ("commands", "reward", "says"),
    [
        (DONE, 1.0, ""),
        (f"{DONE}; echo more > scratch; echo 9 > b; chmod 600 b", 1.0, ""),  # what it does not speak of may change
        (DONE.replace("rm a; ", ""), 0.0, "a is still there"),
        (DONE.replace("600", "640"), 0.0, "the mode of b is 640"),
        (DONE.replace("mkdir d", "touch d"), 0.0, "d is no directory"),
        (DONE.replace("echo 3", "echo 4"), 0.0, "c is missing or differs"),
        (DONE.replace("echo 5", "echo 6"), 0.0, "e differs"),
    ],
)
async def test_each_expectation_is_held(tmp_path, make_sandbox, commands: str, reward: float, says: str):
    task = load_task(write_draft(tmp_path, draft(EXERCISE, "t", {}), Limits()))

    async def act(task, step, sandbox):
        await sandbox.exec(["/bin/sh", "-c", commands], timeout=10.0)

    result = await run_trial(task, make_sandbox, act, name="t", timeout=20.0)
    assert result.cause is None and result.reward == reward
    assert says in result.output


@pytest.mark.parametrize(
    ("typed", "reward"), [("d/x", 1.0), ("./d/x", 1.0), ("  d/x", 1.0), ("d/y", 0.0), ("", 0.0), ("../d/x", 0.0), ("*", 0.0)]
)
async def test_an_answer_is_compared_whole(tmp_path, make_sandbox, typed: str, reward: float):
    exercise = Exercise("where?", {"d/x": b""}, ["true"], answer="d/x")
    task = load_task(write_draft(tmp_path, draft(exercise, "t", {}), Limits()))

    async def act(task, step, sandbox):
        await sandbox.exec(["/bin/sh", "-c", 'printf "%s\\n" "$1" > answer.txt', "sh", typed], timeout=10.0)

    result = await run_trial(task, make_sandbox, act, name="t", timeout=20.0)
    assert result.cause is None and result.reward == reward


def test_submit_says_the_callers_word(tmp_path):
    place = tmp_path / "usr/local/bin/submit"
    place.parent.mkdir(parents=True)
    (tmp_path / "app").mkdir()
    place.write_bytes(SUBMIT)
    place.chmod(0o755)
    done = subprocess.run([place, "two", "words"], env={"DONE_MESSAGE": "over"}, capture_output=True, text=True, check=True)
    assert done.stdout == "over\n" and (tmp_path / "app/answer.txt").read_text() == "two words\n"
    done = subprocess.run([place], env={}, capture_output=True, text=True, check=True)
    assert done.stdout == "submitted\n" and (tmp_path / "app/answer.txt").read_text() == "two words\n"


async def test_the_commands_one_by_one_solve_it_as_an_agent_would(tmp_path, make_sandbox):
    """Each line of a solution is a command of its own."""
    for name, grade in CELLS:
        made = draft(exercises(name, grade, 1)[0], f"{name}-{grade}", {})
        task = load_task(write_draft(tmp_path, made, Limits()))
        turns = made.solution.splitlines()[2:]

        async def act(task, step, sandbox, turns=turns):
            for turn in turns:
                done = await sandbox.exec(["/bin/sh", "-c", turn], timeout=20.0)
                assert done.exit_code == 0, (turn, done.output)

        result = await run_trial(task, make_sandbox, act, name="t", timeout=20.0)
        assert result.reward == 1.0, (name, grade, result.output)
