"""The generated family "follow the trail": files name the next file, the last one holds a code, and the code is submitted.

    /app/amber {"next": "birch"}    /app/birch {"code": "17"}    /app/cedar {"code": "29"} (a decoy, on no trail)
    instruction: "start at amber and submit the code"            solution: cat amber; cat birch; submit 17

Guessing pays a little, reading on pays more: what there is to learn is to go on until the code is seen.

Invariants (tests/tasks/test_trail.py):
- the same family gives the same tasks, byte for byte;
- no training task has the trail and code of a held-out task, and held-out tasks differ from each other;
- a decoy never holds the right code, and is never named by a file of the trail;
- the oracle passes and doing nothing fails.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whippletree.errors import ConfigurationError
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.writing import check_alone, write_tree

# fmt: off
NAMES = ("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven", "ivory", "joker", "karma", "lemon", "maple",
         "noble", "ocean", "pearl", "quilt", "raven", "solar", "tulip", "umber", "velvet", "willow", "zebra")
# fmt: on
FIRST_CODE = 10
Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Trail:
    """One task of the family. `names` are the files on the trail in order; `decoys` are (name, code)."""

    task_id: str
    names: tuple[str, ...]
    code: str
    decoys: tuple[tuple[str, str], ...]

    @property
    def depth(self) -> int:
        """Files on the trail."""
        return len(self.names)

    @property
    def instruction(self) -> str:
        """What the agent is told."""
        return f"start at {self.names[0]} and submit the code"

    def files(self) -> dict[str, str]:
        """File name → its text, in name order, so that the order tells nothing."""
        texts = {name: json.dumps({"next": following}) for name, following in itertools.pairwise(self.names)}
        texts[self.names[-1]] = json.dumps({"code": self.code})
        texts |= {name: json.dumps({"code": code}) for name, code in self.decoys}
        return dict(sorted(texts.items()))


class TrailStream:
    """The tasks of one family: a fixed held-out set and any number of training tasks. Raises ConfigurationError if the
    family cannot be cut (too few names or codes for what it asks)."""

    def __init__(self, family: TrailFamily) -> None:
        self.family = family
        _check(family)
        self.heldout: tuple[Trail, ...] = tuple(self._draw_heldout())
        self._reserved = {(trail.names, trail.code) for trail in self.heldout}

    def train(self, index: int) -> Trail:
        """Training task number `index` (any number from 0 on); the same for the same family."""
        rng = random.Random(f"{self.family.seed}/train/{index}")
        while True:
            trail = self._draw(rng, "train", index)
            if (trail.names, trail.code) not in self._reserved:
                return trail

    def _draw_heldout(self) -> Iterator[Trail]:
        rng = random.Random(f"{self.family.seed}/heldout")
        seen: set[tuple[tuple[str, ...], str]] = set()
        for index in range(self.family.heldout):
            trail = self._draw(rng, "heldout", index)
            while (trail.names, trail.code) in seen:
                trail = self._draw(rng, "heldout", index)
            seen.add((trail.names, trail.code))
            yield trail

    def _draw(self, rng: random.Random, split: Split, index: int) -> Trail:
        family = self.family
        depth = family.depths[index % len(family.depths)]
        decoys = family.decoys[index // len(family.depths) % len(family.decoys)]
        names = rng.sample(NAMES[: family.names], depth + decoys)
        codes = [str(code) for code in rng.sample(range(FIRST_CODE, FIRST_CODE + family.codes), 1 + decoys)]
        return Trail(
            task_id=f"trail-{split}-d{depth}-k{decoys}-{index:05d}",
            names=tuple(names[:depth]),
            code=codes[0],
            decoys=tuple(zip(names[depth:], codes[1:], strict=True)),
        )


def _check(family: TrailFamily) -> None:
    def fail(key: str, why: str) -> None:
        raise ConfigurationError(f"trail family: {key}: {why}", "see docs/tasks.md for the limits")

    if not family.depths or min(family.depths) < 1:
        fail("depths", "give at least one depth, each at least 1")
    if not family.decoys or min(family.decoys) < 0:
        fail("decoys", "give at least one number of decoys, none negative")
    if not max(family.depths) + max(family.decoys) <= family.names <= len(NAMES):
        fail("names", f"must hold the longest trail with its decoys and be at most {len(NAMES)}")
    if not max(family.decoys) + 1 <= family.codes <= 100 - FIRST_CODE:
        fail("codes", f"must be more than the decoys and at most {100 - FIRST_CODE}")
    if family.train < 0 or family.heldout < 0:
        fail("train, heldout", "must not be negative")
    per_depth = -(-family.heldout // len(family.depths))
    if 2 * per_depth > family.names * family.codes:  # trails of depth 1; deeper ones are more
        fail("heldout", f"{family.heldout} is over half of the tasks that {family.names} names and {family.codes} codes give")


def write_tasks(directory: Path, family: TrailFamily) -> tuple[list[Path], list[Path]]:
    """Write the family's tasks to directory/train and directory/heldout as Harbor directories; returns their paths.

    Raises TaskError when one of them exists with other content.
    """
    stream = TrailStream(family)
    splits = {"train": [stream.train(index) for index in range(family.train)], "heldout": stream.heldout}
    for split, trails in splits.items():
        check_alone(directory / split, {trail.task_id for trail in trails})
    train, heldout = ([write_task(directory / split, trail, family) for trail in trails] for split, trails in splits.items())
    return train, heldout


def write_task(directory: Path, trail: Trail, family: TrailFamily) -> Path:
    """Write one task as directory/<task_id>; an equal one that is there already is left alone. Raises TaskError otherwise."""
    texts = task_texts(trail, family)
    files = {name: text.encode() for name, text in texts.items()}
    return write_tree(directory / trail.task_id, files, {name for name, text in texts.items() if text.startswith("#!")})


def task_texts(trail: Trail, family: TrailFamily) -> dict[str, str]:
    """Relative path → text of every file of the task's directory."""
    files = {f"environment/files/{name}": text for name, text in trail.files().items()}
    steps = "".join(f"cat {name}\n" for name in trail.names)
    return files | {
        "task.toml": _TASK_TOML.format(
            depth=trail.depth,
            decoys=len(trail.decoys),
            agent=family.agent_timeout_sec,
            verifier=family.verifier_timeout_sec,
        ),
        "instruction.md": trail.instruction + "\n",
        "environment/Dockerfile": _DOCKERFILE,
        "environment/submit": _SUBMIT,
        "tests/test.sh": _TEST.format(code=trail.code),
        "solution/solve.sh": f"#!/bin/sh\nset -e\n{steps}submit {trail.code}\n",
    }


_TASK_TOML = """schema_version = "1.1"

[metadata]
family = "trail"
difficulty = "depth {depth}, decoys {decoys}"
depth = {depth}
decoys = {decoys}

[agent]
timeout_sec = {agent}

[verifier]
timeout_sec = {verifier}

[environment]
allow_internet = false
"""

_DOCKERFILE = """FROM debian:bookworm-slim
WORKDIR /app
COPY files/ /app/
COPY submit /usr/local/bin/submit
"""

# Both scripts find the sandbox's root from their own path ("" in a sandbox with a root of its own), and need only a shell.
_SUBMIT = """#!/bin/sh
# submit CODE: hand in the answer. What it prints then is the caller's word for "the work is done".
root=${0%/usr/local/bin/submit}
printf '%s\\n' "$1" > "$root/app/answer.txt" || exit 1
printf '%s\\n' "${DONE_MESSAGE:-submitted}"
"""

_TEST = """#!/bin/sh
root=${{0%/tests/test.sh}}
answer=
if [ -f "$root/app/answer.txt" ]; then read -r answer < "$root/app/answer.txt"; fi
if [ "$answer" = "{code}" ]; then reward=1; else reward=0; fi
printf 'answer %s, reward %s\\n' "$answer" "$reward"
printf '%s\\n' "$reward" > "$root/logs/verifier/reward.txt"
"""
