"""The search suite: numbers of steps take turns; training and held-out questions are about different worlds.

Invariants (tests/tasks/test_suites_search.py):
- no document is in a training and in a held-out corpus, plain ones aside, whose words are too few for that;
- the oracle finds each document of its way by the search tool, among the first results.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path

import msgspec

from whippletree.tasks.suites.asking import Question, draft
from whippletree.tasks.suites.config import SearchFamily
from whippletree.tasks.suites.cutting import Cell, Suite
from whippletree.tasks.suites.search import tool
from whippletree.tasks.suites.search.questions import Asked, ask
from whippletree.tasks.suites.search.worlds import World, build_plain_world, build_world
from whippletree.tasks.writing import Draft, Limits

INTRODUCTION = "Answer from the documents here: `search WORDS` finds some, `read_doc ID` prints one."
_HEAD = b"#!/usr/bin/env python3\n"

_SOLVE = """import subprocess
import sys

for title in {path!r}:
    found = subprocess.run(["search", title], capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.split()[0] for line in found if line.partition("  ")[2].startswith(title + ":")]
    text = subprocess.run(["read_doc", names[0]], capture_output=True, text=True, check=True).stdout
    sys.stderr.write(text)
if {answer!r} not in text and {answer!r} not in {path!r}:
    sys.exit("the last document does not hold the answer")
print({answer!r})
"""


def search_suite(family: SearchFamily) -> Suite:
    """The suite that these settings cut. Raises ConfigurationError."""

    @functools.cache
    def world(split: str, number: int) -> World:
        seed = f"{family.seed}/{split}/{number}"
        return build_plain_world(seed) if family.plain else build_world(seed, family.size)

    def cell(steps: int) -> Cell:
        def drafted(seed: str, task_id: str) -> Draft:
            rng = random.Random(seed)
            split = "heldout" if "-heldout-" in task_id else "train"
            number = rng.randrange(family.worlds if split == "train" else max(1, family.worlds // 4))
            asked = ask(rng, found := world(split, number), steps)
            labels: dict[str, str | int | float] = {"suite": "search", "family": "search", "difficulty": f"{steps} steps"}
            return draft(_question(asked, found), task_id, labels | {"steps": steps, "world": f"{split} {number}"})

        return Cell(str(steps), drafted)

    limits = Limits(agent=family.agent_timeout_sec, verifier=family.verifier_timeout_sec)
    cells = [cell(steps) for steps in family.steps]
    return Suite("search", cells, train=family.train, heldout=family.heldout, seed=family.seed, limits=limits)


def _question(asked: Asked, world: World) -> Question:
    return Question(
        words=f"{asked.words}\n{INTRODUCTION}",
        answer=asked.answer,
        solve=_SOLVE.format(path=list(asked.path), answer=asked.answer),
        programs=programs(),
        shared={"corpus.jsonl": corpus(world)},
    )


def corpus(world: World) -> bytes:
    """The documents, one line of JSON each."""
    entries = ({"id": name, "title": title, "text": text} for name, title, text in world.documents)
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


@functools.cache
def programs() -> dict[str, bytes]:
    """The programs `search` and `read_doc`."""
    program = _HEAD + Path(tool.__file__).read_bytes()
    return {"search": program, "read_doc": program}
