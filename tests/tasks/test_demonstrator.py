"""The sloppy demonstrator."""

import random
from pathlib import Path

from whippletree.tasks import TrailFamily
from whippletree.tasks.demonstrator import run_command, sloppy_turns
from whippletree.tasks.trail import TrailStream, task_texts

FAMILY = TrailFamily()
STREAM = TrailStream(FAMILY)


def test_with_p_one_it_does_what_the_oracle_does():
    for index in range(30):
        trail = STREAM.train(index)
        commands = [turn.command for turn in sloppy_turns(trail, FAMILY, random.Random(index), 1.0)]
        assert commands == task_texts(trail, FAMILY)["solution/solve.sh"].splitlines()[2:]


def test_with_p_zero_it_guesses_at_once():
    turns = sloppy_turns(STREAM.train(2), FAMILY, random.Random(0), 0.0)
    assert [turn.command.split()[0] for turn in turns] == ["submit"]


def test_it_succeeds_about_as_often_as_p_says():
    rng = random.Random(1)
    wins = {1: 0, 2: 0, 3: 0}
    for index in range(3000):
        trail = STREAM.train(index)
        last = sloppy_turns(trail, FAMILY, rng, 0.5)[-1].command
        wins[trail.depth] += last == f"submit {trail.code}"
    for depth, count in wins.items():
        luck = (1 - 0.5**depth) / FAMILY.codes
        assert abs(count / 1000 - (0.5**depth + luck)) < 0.06


def test_tool_results_are_what_the_tasks_own_files_hold(tmp_path):
    trail = STREAM.train(2)
    texts = task_texts(trail, FAMILY)
    for turn in sloppy_turns(trail, FAMILY, random.Random(3), 1.0)[:-1]:
        assert turn.output == texts[f"environment/files/{Path(turn.command.split()[1])}"]
        assert run_command(trail, turn.command) == (turn.output, None)
    assert run_command(trail, "submit 17") == ("submitted\n", "17")
    assert run_command(trail, "cat nowhere") == ("cat: nowhere: No such file or directory\n", None)
    assert run_command(trail, "ls") == ("sh: 1: ls: not found\n", None)
    assert run_command(trail, "") == ("sh: 1: : not found\n", None)


def test_one_that_is_lost_reads_until_its_turns_are_up_and_hands_nothing_in():
    for index in range(30):
        trail = STREAM.train(index)
        turns = sloppy_turns(trail, FAMILY, random.Random(index), 1.0, lost=1.0, lost_turns=6)
        assert len(turns) == 6 and all(turn.command.startswith("cat ") for turn in turns)
        assert turns[-1].output == ""
        for turn in turns[:-1]:
            assert run_command(trail, turn.command)[0] == turn.output
            assert turn.exit_code == int(turn.output.startswith("cat: "))


def test_it_gets_lost_about_as_often_as_it_is_told_to():
    rng, lost = random.Random(1), 0
    for index in range(0, 3000, 3):
        turns = sloppy_turns(STREAM.train(index), FAMILY, rng, 1.0, lost=0.3)
        lost += turns[-1].command.startswith("cat")
    assert STREAM.train(0).depth == 1 and abs(lost / 1000 - 0.3) < 0.05
