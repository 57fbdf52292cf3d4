"""Invented people, towns, rivers, schools and companies that refer to each other, and a document about each.

Nothing in a world exists, so that nothing is known beforehand. Names of worlds with different seeds hardly ever meet.

Invariants (tests/tasks/test_suites_search.py):
- the same seed gives the same world; every name in it is one thing's;
- each fact is in the document of the thing that it is about, and what a fact refers to has a document.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from whippletree.tasks.trail import FIRST_CODE, NAMES

# fmt: off
HEADS = ("Bel", "Cor", "Dra", "Eri", "Fal", "Gor", "Hal", "Ist", "Jor", "Kel", "Lun", "Mar", "Nor", "Osk", "Pel", "Quo", "Ras",
         "Sel", "Tar", "Ulv", "Vel", "Wen", "Yar", "Zan", "Bra", "Cin", "Dol", "Fen", "Gri", "Hes")
MIDDLES = ("", "a", "e", "i", "o", "an", "en", "in", "or", "ar", "el", "il")
TAILS = ("dane", "mora", "vik", "stad", "ford", "rin", "thal", "mere", "lund", "brook", "gate", "wick", "holm", "dell", "pas",
         "tor")
FIRSTS = ("Ada", "Bram", "Cleo", "Dov", "Edda", "Felix", "Gwen", "Hugo", "Ilse", "Jens", "Kaia", "Lars", "Mina", "Nils", "Orla",
          "Pim", "Rosa", "Sven", "Tilda", "Udo", "Vera", "Wim", "Yara", "Zeno")
# fmt: on
CRAFTS = ("clockmaker", "botanist", "engineer", "painter", "chemist", "printer", "surveyor", "weaver", "physician", "composer")
PRODUCTS = (
    "barometers",
    "tram wheels",
    "ink",
    "sewing machines",
    "lanterns",
    "pianos",
    "bicycles",
    "telescopes",
    "paper",
    "pumps",
)
DISHES = (
    "smoked eel",
    "barley cake",
    "plum soup",
    "goat cheese",
    "rye dumplings",
    "honey bread",
    "pickled beets",
    "walnut pie",
)
PLAIN_NAMES, PLAIN_CODES = 12, 20  # the words of the trail family as it is by default
SEAS = ("Amber Sea", "Gulf of Ness", "Grey Sound", "Bay of Larks")


@dataclass
class Entity:
    """A thing with a name. `facts`: word of the relation → what it leads to, a name or a value."""

    kind: str
    name: str
    facts: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    """Things by name, and their documents: (id, title, text)."""

    entities: dict[str, Entity]
    documents: list[tuple[str, str, str]]
    plain: bool = False

    def of(self, kind: str) -> list[Entity]:
        """Things of a kind, in order."""
        return [entity for entity in self.entities.values() if entity.kind == kind]


def build_world(seed: str, size: int) -> World:
    """A world with about five documents for each of `size`."""
    rng = random.Random(seed)
    fresh = _names(rng)
    entities: dict[str, Entity] = {}

    def make(kind: str, name: str, **facts: str) -> Entity:
        entities[name] = Entity(kind, name, {key.replace("_", " "): value for key, value in facts.items()})
        return entities[name]

    for _ in range(max(2, size // 3)):
        make("river", fresh("river"), length=str(rng.randint(40, 900)), sea=rng.choice(SEAS))
    rivers = [entity.name for entity in entities.values()]
    for _ in range(size):
        make("town", fresh("town"), river=rng.choice(rivers), dish=rng.choice(DISHES), charter=str(rng.randint(1150, 1690)))
    towns = [entity.name for entity in entities.values() if entity.kind == "town"]
    for _ in range(max(2, size // 2)):
        make("school", fresh("school"), town=rng.choice(towns), founded=str(rng.randint(1700, 1820)))
    schools = [entity.name for entity in entities.values() if entity.kind == "school"]
    for _ in range(size + size // 2):
        facts = {"birthplace": rng.choice(towns), "school": rng.choice(schools), "born": str(rng.randint(1821, 1880))}
        make("person", fresh("person"), craft=rng.choice(CRAFTS), **facts)
    people = [entity.name for entity in entities.values() if entity.kind == "person"]
    founders = rng.sample(people, size)
    for founder in founders:
        facts = {"seat": rng.choice(towns), "product": rng.choice(PRODUCTS), "established": str(rng.randint(1881, 1930))}
        make("company", fresh("company"), founder=founder, **facts)
    return World(entities, _documents(rng, list(entities.values())))


def build_plain_world(seed: str) -> World:
    """A dozen things with plain names, each with a code and a next one: for models that know few words."""
    rng = random.Random(seed)
    names = rng.sample(NAMES[:PLAIN_NAMES], PLAIN_NAMES)
    ids = rng.sample(range(FIRST_CODE, FIRST_CODE + PLAIN_CODES), PLAIN_NAMES)
    entities, documents = {}, []
    for name, number in zip(names, ids, strict=True):
        other = rng.choice([further for further in names if further != name])
        facts = {"next": other, "code": str(rng.randrange(FIRST_CODE, FIRST_CODE + PLAIN_CODES))}
        entities[name] = Entity("thing", name, facts)
        documents.append((str(number), name, f"next {other}, code {facts['code']}"))
    return World(entities, sorted(documents), plain=True)


def _names(rng: random.Random) -> Callable[[str], str]:
    taken: set[str] = set()

    def word() -> str:
        return rng.choice(HEADS) + rng.choice(MIDDLES) + rng.choice(TAILS)

    def fresh(kind: str) -> str:
        while True:
            found = word()
            if kind == "person":
                found = f"{rng.choice(FIRSTS)} {found}"
            elif kind == "school":
                found = f"{found} {rng.choice(['Academy', 'College', 'Institute'])}"
            elif kind == "company":
                found = f"{found} {rng.choice(['Works', 'and Sons', 'Brothers', 'Manufacture'])}"
            if not any(part in taken for part in (found, found.split()[-1] if kind == "person" else found.split()[0])):
                taken.update({found, found.split()[-1] if kind == "person" else found.split()[0]})
                return found

    return fresh


_TEXTS = {
    "river": (
        "The {name} is a river of {length} kilometres. It flows into the {sea}.",
        "Over {length} kilometres the river {name} makes its way to the {sea}, where it ends.",
    ),
    "town": (
        "{name} is a town on the river {river}. It received its charter in {charter}. Visitors come for its {dish}.",
        "On the banks of the {river} lies {name}, a town with a charter of {charter}, known for {dish}.",
    ),
    "school": (
        "{name} is a school in {town}. It was founded in {founded}.",
        "Since {founded} the {name} has taught in {town}.",
    ),
    "person": (
        "{name} was a {craft}, born in {birthplace} in {born}, and studied at {school}.",
        "Born in {born} in {birthplace}, {name} went to {school} and became a {craft}.",
    ),
    "company": (
        "{name} was established in {established} by {founder}. From its seat in {seat} it sold {product}.",
        "In {established} {founder} set up {name}, makers of {product}, in {seat}.",
    ),
}
_ASIDES = (
    "Records before that time are lost.",
    "A small museum tells the story.",
    "Little more is known for certain.",
    "The archive of the province keeps several letters about it.",
    "A street has the same name.",
    "Several songs mention it.",
)


def _documents(rng: random.Random, entities: list[Entity]) -> list[tuple[str, str, str]]:
    order = list(entities)
    rng.shuffle(order)
    documents = []
    for number, entity in enumerate(order, 1):
        text = rng.choice(_TEXTS[entity.kind]).format(name=entity.name, **entity.facts)
        documents.append((f"doc-{number:03d}", entity.name, f"{text} {' '.join(rng.sample(_ASIDES, rng.randint(1, 2)))}"))
    return documents
