"""A sloppy demonstrator of the trail family: what a model is warmed up on before it learns to do better.

At each file of the trail it reads on with probability p; otherwise it hands in a code that it made up. It succeeds with
probability p**depth, plus a little luck. One that loses its way reads files at random from there on, and hands nothing in.

Invariants (tests/tasks/test_demonstrator.py):
- with p = 1 its turns are those of the oracle; with p = 0 it guesses at once; with lost = 1 it hands nothing in;
- every tool result is what the task's own files and commands print.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from whippletree.tasks.config import TrailFamily
from whippletree.tasks.trail import FIRST_CODE, NAMES, Trail

SUBMITTED = "submitted"


@dataclass(frozen=True)
class Turn:
    """One shell command and what it printed ("" for the last one, whose result the agent never sees)."""

    command: str
    output: str
    exit_code: int = 0


def sloppy_turns(
    trail: Trail, family: TrailFamily, rng: random.Random, p: float, *, lost: float = 0.0, lost_turns: int = 8
) -> list[Turn]:
    """The demonstrator's turns on one task. `p`: the probability of reading on at each file. `lost`: the probability, at each
    file, of losing the way for good: then it reads files at random until it has had `lost_turns` turns."""
    texts = trail.files()
    turns: list[Turn] = []
    for name in trail.names:
        if lost and rng.random() < lost:
            wandering = [f"cat {rng.choice(NAMES[: family.names])}" for _ in range(max(1, lost_turns - len(turns)))]
            turns += [_ran(trail, command) for command in wandering]
            return [*turns[:-1], Turn(turns[-1].command, "")]
        if rng.random() >= p:
            guess = rng.randrange(FIRST_CODE, FIRST_CODE + family.codes)
            return [*turns, Turn(f"submit {guess}", "")]
        turns.append(Turn(f"cat {name}", texts[name]))
    return [*turns, Turn(f"submit {trail.code}", "")]


def _ran(trail: Trail, command: str) -> Turn:
    output, _ = run_command(trail, command)
    return Turn(command, output, int("No such file" in output))


def run_command(trail: Trail, command: str) -> tuple[str, str | None]:
    """What a shell in the task's directory would print, and the submitted code or None: for simulations of the family.

    Understands `cat NAME` and `submit CODE`; everything else is a command that is not found.
    """
    words = command.split()
    match words:
        case ["submit", code]:
            return f"{SUBMITTED}\n", code
        case ["cat", name]:
            return trail.files().get(name, f"cat: {name}: No such file or directory\n"), None
        case _:
            return f"sh: 1: {words[0] if words else ''}: not found\n", None
