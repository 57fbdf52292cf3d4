"""Questions over a world: chains of one to four facts, and comparisons of two chains.

Invariants (tests/tasks/test_suites_search.py):
- a question of n steps takes n documents: its answer is in none of the earlier ones;
- the answer is that of following the facts, and the words name nothing on the way but the start.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whippletree.tasks.suites.search.worlds import Entity, World


@dataclass(frozen=True)
class Chain:
    """What is asked of a start, over these facts. `{name}` in the words is the start's."""

    start: str
    facts: tuple[str, ...]
    words: str


CHAINS: Mapping[int, Sequence[Chain]] = {
    1: (
        Chain("company", ("founder",), "Who founded {name}?"),
        Chain("company", ("seat",), "In which town was the seat of {name}?"),
        Chain("person", ("birthplace",), "In which town was {name} born?"),
        Chain("person", ("school",), "At which school did {name} study?"),
        Chain("town", ("river",), "On which river does the town {name} lie?"),
        Chain("school", ("town",), "In which town is the school {name}?"),
    ),
    2: (
        Chain("company", ("founder", "birthplace"), "In which town was the founder of {name} born?"),
        Chain("company", ("founder", "craft"), "What was the occupation of the founder of {name}?"),
        Chain("company", ("seat", "river"), "On which river lies the town where {name} had its seat?"),
        Chain("person", ("school", "founded"), "In which year was the school founded at which {name} studied?"),
        Chain("person", ("birthplace", "dish"), "For which food is the town known in which {name} was born?"),
        Chain("school", ("town", "charter"), "In which year did the town of {name} receive its charter?"),
    ),
    3: (
        Chain("company", ("founder", "birthplace", "river"), "On which river lies the birthplace of the founder of {name}?"),
        Chain("company", ("founder", "school", "town"), "In which town is the school at which the founder of {name} studied?"),
        Chain("company", ("founder", "birthplace", "dish"), "For which food is the birthplace of the founder of {name} known?"),
        Chain("person", ("school", "town", "river"), "On which river lies the town of the school at which {name} studied?"),
        Chain(
            "person", ("birthplace", "river", "length"), "How many kilometres long is the river at the birthplace of {name}?"
        ),
    ),
    4: (
        Chain(
            "company",
            ("founder", "birthplace", "river", "sea"),
            "Into which sea flows the river at the birthplace of the founder of {name}?",
        ),
        Chain(
            "company",
            ("founder", "school", "town", "charter"),
            "In which year did the town receive its charter in which the founder of {name} went to school?",
        ),
        Chain(
            "company",
            ("founder", "school", "town", "river"),
            "On which river lies the town of the school at which the founder of {name} studied?",
        ),
    ),
}
COMPARED = (("founder", "born"), "Of the founders of {one} and {other}, who was born earlier?")


@dataclass(frozen=True)
class Asked:
    """A question with its answer and the names of the documents that lead there, in order."""

    words: str
    answer: str
    path: tuple[str, ...]


def ask(rng: random.Random, world: World, steps: int) -> Asked:
    """A question of so many steps."""
    if steps == 4 and not world.plain and rng.random() < 0.3:
        return _comparison(rng, world)
    while True:
        chain = plain_chain(steps) if world.plain else rng.choice(CHAINS[steps])
        start = rng.choice(world.of(chain.start))
        path, answer = follow(world, start, chain.facts)
        if len(set(path)) == len(path) and not any(answer in _said(world, name) for name in path[:-1]):
            return Asked(chain.words.format(name=start.name), answer, tuple(path))


def plain_chain(steps: int) -> Chain:
    """The one kind of question of so many steps that a plain world has."""
    return Chain("thing", (*["next"] * (steps - 1), "code"), f"What is the code of {'the next of ' * (steps - 1)}{{name}}?")


def follow(world: World, start: Entity, facts: Sequence[str]) -> tuple[list[str], str]:
    """Names of the things on the way, and where it ends."""
    path, at = [start.name], start.name
    for fact in facts:
        at = world.entities[at].facts[fact]
        path.append(at)
    return path[:-1], at


def _said(world: World, name: str) -> str:
    return next(text for _, title, text in world.documents if title == name)


def _comparison(rng: random.Random, world: World) -> Asked:
    while True:
        one, other = rng.sample(world.of("company"), 2)
        founders = [world.entities[company.facts["founder"]] for company in (one, other)]
        years = [int(founder.facts["born"]) for founder in founders]
        if years[0] != years[1]:
            earlier = founders[years.index(min(years))]
            path = (one.name, other.name, founders[0].name, founders[1].name)
            return Asked(COMPARED[1].format(one=one.name, other=other.name), earlier.name, path)
