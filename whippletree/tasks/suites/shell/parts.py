"""An exercise of the shell suite, and how it becomes a task.

The tests of every exercise are one script that reads what is expected from files beside it: answer, same (files and their
content), gone, modes, conditions. It needs a POSIX shell, cmp, stat and mktemp.

Invariants (tests/tasks/test_suites_shell.py):
- each line of a solution is a command of its own: an agent that runs them one by one solves the task;
- files that the exercise does not speak of may be changed, added or removed freely; what it speaks of is compared byte by byte;
- two exercises with the same instruction, commands and answer have the same key, whatever their files hold.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from whippletree.tasks.suites.handing_in import SUBMIT
from whippletree.tasks.writing import Draft, key_of

# fmt: off
NAMES = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven", "ivory", "jolly", "karma", "lemon", "maple",
         "noble", "ocean", "pearl", "quilt", "raven", "solar", "tulip", "umber", "velvet", "willow", "xenon", "yarrow", "zebra",
         "acorn", "basil", "coral", "dusk", "echo", "fern", "glade", "hazel", "inlet", "jade", "kelp", "lotus", "mint",
         "nutmeg", "olive", "plume", "quartz", "reef", "sage", "thyme", "urchin", "vine", "walnut", "yucca", "zinc", "alder",
         "brook", "cliff", "dune", "elm", "frost", "gorge", "heath", "iris")
WORDS = ("apple", "bread", "chair", "dance", "early", "field", "green", "house", "image", "joint", "knife", "light", "month",
         "night", "order", "paper", "quiet", "river", "stone", "table", "uncle", "voice", "water", "young", "bring", "cloud",
         "dream", "earth", "fruit", "glass", "heart", "index", "jelly", "lucky", "metal", "north", "onion", "plant", "queen",
         "round", "sugar", "train", "under", "value", "wheel", "zone", "angle", "beach", "cabin", "devil", "eagle", "flame")
# fmt: on

ENDINGS = ("txt", "log", "csv", "md", "cfg", "dat")


@dataclass(frozen=True)
class Exercise:
    """What is asked, what is there before, and what must be there after.

    `instruction` leaves out how to hand in. `commands`: the oracle's, in the working directory. Either `answer` is what to
    submit, or `after` (path → content), `gone` (paths), `modes` (path → three octal digits), `folders` (paths) and
    `conditions` (shell test, what it means) are to hold; a condition finds the expected files below "$tests/same".
    """

    instruction: str
    before: Mapping[str, bytes]
    commands: Sequence[str]
    answer: str = ""
    after: Mapping[str, bytes] = field(default_factory=dict)
    gone: Sequence[str] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    conditions: Sequence[tuple[str, str]] = ()
    executable: frozenset[str] = frozenset()
    expected: Mapping[str, bytes] = field(default_factory=dict)  # for conditions only

    @property
    def key(self) -> str:
        """The same for the same instruction, commands and answer, whatever lies beside it."""
        return key_of(self.instruction, tuple(self.commands), self.answer)


class Draw(random.Random):
    """A seeded source of names and words."""

    def names(self, count: int, ending: str = "") -> list[str]:
        """Different file names, in random order."""
        return [name + ending for name in self.sample(NAMES, count)]

    def words(self, count: int) -> list[str]:
        """Different words, in random order."""
        return self.sample(WORDS, count)

    def line(self, low: int = 1, high: int = 4) -> str:
        """A line of a few words."""
        return " ".join(self.choices(WORDS, k=self.randint(low, high)))

    def text(self, low: int = 1, high: int = 3) -> bytes:
        """A few lines."""
        return lines(self.line() for _ in range(self.randint(low, high)))


def lines(texts: Iterable[str]) -> bytes:
    """Text of lines, each with its end."""
    return "".join(f"{text}\n" for text in texts).encode()


def draft(exercise: Exercise, task_id: str, labels: Mapping[str, str | int | float]) -> Draft:
    """The exercise as a task."""
    if exercise.answer:
        ending, last = "Hand it in with: submit ANSWER", [f"submit {exercise.answer}"]
    else:
        ending, last = "When done, run: submit", ["submit"]
    tests: dict[str, bytes] = {"test.sh": TEST}
    tests |= {f"same/{path}": data for path, data in {**exercise.expected, **exercise.after}.items()}
    listed = {
        "same.list": sorted(exercise.after),
        "gone.list": sorted(exercise.gone),
        "folders.list": sorted(exercise.folders),
        "modes.list": [f"{mode} {path}" for path, mode in sorted(exercise.modes.items())],
    }
    tests |= {name: lines(entries) for name, entries in listed.items() if entries}
    if exercise.answer:
        tests["answer"] = lines([exercise.answer])
    if exercise.conditions:
        tests["conditions.sh"] = lines(f"{{ {test}; }} || fail '{meaning}'" for test, meaning in exercise.conditions)
    return Draft(
        task_id=task_id,
        instruction=f"{exercise.instruction}\n{ending}",
        solution="\n".join(["#!/bin/sh", "set -e", *exercise.commands, *last, ""]),
        tests=tests,
        key=exercise.key,
        files=exercise.before,
        programs={"submit": SUBMIT},
        executable=exercise.executable,
        labels=labels,
    )


TEST = b"""#!/bin/sh
root=${0%/tests/test.sh}
tests=$root/tests
reward=1
fail() { printf '%s\\n' "$1"; reward=0; }
LC_ALL=C; export LC_ALL
if [ -f "$tests/answer" ]; then
  read -r wanted < "$tests/answer"
  answer=
  if [ -f answer.txt ]; then read -r answer < answer.txt; fi
  [ "${answer#./}" = "$wanted" ] || fail "the answer is $answer"
fi
if [ -f "$tests/same.list" ]; then
  while read -r path; do cmp -s "$tests/same/$path" "$path" || fail "$path is missing or differs"; done < "$tests/same.list"
fi
if [ -f "$tests/gone.list" ]; then
  while read -r path; do if [ -e "$path" ]; then fail "$path is still there"; fi; done < "$tests/gone.list"
fi
if [ -f "$tests/folders.list" ]; then
  while read -r path; do [ -d "$path" ] || fail "$path is no directory"; done < "$tests/folders.list"
fi
if [ -f "$tests/modes.list" ]; then
  while read -r mode path; do
    found=$(stat -c %a "$path" 2> /dev/null)
    [ "$found" = "$mode" ] || fail "the mode of $path is $found"
  done < "$tests/modes.list"
fi
if [ -f "$tests/conditions.sh" ]; then
  scratch=$(mktemp -d)
  . "$tests/conditions.sh"
  rm -rf "$scratch"
fi
printf 'reward %s\\n' "$reward"
printf '%s\\n' "$reward" > "$root/logs/verifier/reward.txt"
"""
