"""Kinds of questions over a world, in four grades. Each has its answer, worked out here, and a program that finds it with SQL.

Grade 1 counts or looks up; grade 2 sums over one table; grade 3 joins both; grade 4 takes several steps. Numbers count within
the tolerance that the question says.

Invariants (tests/tasks/test_suites_data.py): the program's answer is the one worked out here; a question for the best of
several has no tie.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from whippletree.tasks.suites.asking import Question
from whippletree.tasks.suites.data.worlds import World

CENTS = 0.01
Maker = Callable[[random.Random, World], Question | None]

_SOLVE = """import csv, pathlib, sqlite3, statistics

def database():
    if pathlib.Path("data.db").exists():
        return sqlite3.connect("data.db")
    made = sqlite3.connect(":memory:")
    for path in sorted(pathlib.Path(".").glob("*.csv")):
        with path.open() as file:
            names, *rows = csv.reader(file)
        made.execute(f"CREATE TABLE {{path.stem}} ({{', '.join(names)}})")
        marks = ", ".join("?" * len(names))
        made.executemany(f"INSERT INTO {{path.stem}} VALUES ({{marks}})", [list(map(typed, row)) for row in rows])
    return made

def typed(cell):
    try:
        return float(cell) if "." in cell else int(cell)
    except ValueError:
        return cell or None

def query(text):
    return database().execute(text).fetchall()

{code}
"""


def _question(world: World, words: str, answer: str | float, code: str, *, tolerance: float = 0.0) -> Question:
    said = f" A number within {tolerance:g} of the right one counts." if tolerance else ""
    return Question(
        words=f"{world.describe()}\n{words}{said}",
        answer=answer,
        solve=_SOLVE.format(code=code),
        tolerance=tolerance,
        files=world.files(),
    )


def _best(totals: Mapping[str, float], *, least: bool = False) -> str | None:
    """The key with the largest (or least) value; None where two are closer than a cent."""
    ordered = sorted(totals, key=lambda key: totals[key], reverse=not least)
    if len(ordered) > 1 and abs(totals[ordered[0]] - totals[ordered[1]]) < CENTS:
        return None
    return ordered[0] if ordered else None


def count_of_kind(rng: random.Random, world: World) -> Question:
    """How many events of a kind."""
    s = world.subject
    kind = rng.choice(world.events)[3]
    answer = sum(event[3] == kind for event in world.events)
    code = f"print(query(\"SELECT count(*) FROM {s.events} WHERE {s.kind} = '{kind}'\")[0][0])"
    return _question(world, f"How many {s.events} have the {s.kind} {kind}?", answer, code)


def of_number(rng: random.Random, world: World) -> Question:
    """A cell of a row."""
    s = world.subject
    number, _, thing, _, _ = rng.choice(world.events)
    code = f'print(query("SELECT {s.thing} FROM {s.events} WHERE number = {number}")[0][0])'
    return _question(world, f"Which {s.thing} belongs to the {s.event} with the number {number}?", thing, code)


def sum_of_kind(rng: random.Random, world: World) -> Question:
    """A sum over a kind."""
    s = world.subject
    kind = rng.choice(world.filled)[3]
    answer = round(sum(event[4] for event in world.filled if event[3] == kind), 2)
    code = f"print(round(query(\"SELECT sum({s.amount}) FROM {s.events} WHERE {s.kind} = '{kind}'\")[0][0], 2))"
    return _question(world, f"What is the sum of {s.amount} over the {s.kind} {kind}?", answer, code, tolerance=CENTS)


def mean_of_thing(rng: random.Random, world: World) -> Question:
    """A mean over a thing."""
    s = world.subject
    thing = rng.choice(world.filled)[2]
    answer = round(statistics.fmean(event[4] for event in world.filled if event[2] == thing), 2)
    code = f"print(round(query(\"SELECT avg({s.amount}) FROM {s.events} WHERE {s.thing} = '{thing}'\")[0][0], 2))"
    words = f"What is the mean {s.amount} of the {s.events} of {thing}, to two decimals?"
    return _question(world, words, answer, code, tolerance=CENTS)


def largest_total(rng: random.Random, world: World) -> Question | None:
    """The thing with the largest total."""
    s = world.subject
    totals: dict[str, float] = defaultdict(float)
    for _, _, thing, _, amount in world.filled:
        totals[thing] += amount
    best = _best(totals)
    code = f'print(query("SELECT {s.thing} FROM {s.events} GROUP BY {s.thing} ORDER BY sum({s.amount}) DESC")[0][0])'
    return _question(world, f"Which {s.thing} has the largest total {s.amount}?", best, code) if best else None


def total_of_group(rng: random.Random, world: World) -> Question:
    """A sum over the things of a group."""
    s = world.subject
    group = rng.choice([world.group_of[event[2]] for event in world.filled])
    answer = round(sum(event[4] for event in world.filled if world.group_of[event[2]] == group), 2)
    code = f"""rows = query("SELECT {s.amount} FROM {s.events} JOIN {s.things} USING ({s.thing}) WHERE {s.group} = '{group}'")
print(round(sum(row[0] or 0 for row in rows), 2))"""
    words = f"What is the total {s.amount} of the {s.events} of all {s.things} whose {s.group} is {group}?"
    return _question(world, words, answer, code, tolerance=CENTS)


def best_group(rng: random.Random, world: World) -> Question | None:
    """The group with the highest mean."""
    s = world.subject
    amounts: dict[str, list[float]] = defaultdict(list)
    for _, _, thing, _, amount in world.filled:
        amounts[world.group_of[thing]].append(amount)
    least = rng.random() < 0.5
    best = _best({group: statistics.fmean(found) for group, found in amounts.items()}, least=least)
    order, word = ("ASC", "lowest") if least else ("DESC", "highest")
    code = f"""print(query('SELECT {s.group} FROM {s.events} JOIN {s.things} USING ({s.thing}) WHERE {s.amount} IS NOT NULL '
            'GROUP BY 1 ORDER BY avg({s.amount}) {order}')[0][0])"""
    words = f"For which {s.group} is the mean {s.amount} of {s.events} {word}?"
    return _question(world, words, best, code) if best else None


def after_year(rng: random.Random, world: World) -> Question:
    """How many events of things from a year on."""
    s = world.subject
    year = rng.randint(1998, 2015)
    late = {name for name, _, of in world.things if of >= year}
    answer = sum(event[2] in late for event in world.events)
    code = f"print(query('SELECT count(*) FROM {s.events} JOIN {s.things} USING ({s.thing}) WHERE {s.year} >= {year}')[0][0])"
    words = f"How many {s.events} belong to {s.things} whose {s.year} is {year} or later?"
    return _question(world, words, answer, code)


def median_between(rng: random.Random, world: World) -> Question | None:
    """A median in a span of days."""
    s = world.subject
    first, last = (
        f"2024-{rng.randint(1, 5):02d}-{rng.randint(1, 28):02d}",
        f"2024-{rng.randint(7, 12):02d}-{rng.randint(1, 28):02d}",
    )
    found = [event[4] for event in world.filled if first <= event[1] <= last]
    if len(found) < 3:
        return None
    code = f"""rows = query("SELECT {s.amount} FROM {s.events} WHERE day BETWEEN '{first}' AND '{last}'")
print(statistics.median(row[0] for row in rows if row[0] is not None))"""
    words = f"What is the median {s.amount} of the {s.events} from {first} to {last}, both included?"
    return _question(world, words, round(statistics.median(found), 3), code, tolerance=CENTS)


def best_month(rng: random.Random, world: World) -> Question | None:
    """The month with the largest total of a group."""
    s = world.subject
    group = rng.choice([world.group_of[event[2]] for event in world.filled])
    totals: dict[str, float] = defaultdict(float)
    for _, day, thing, _, amount in world.filled:
        if world.group_of[thing] == group:
            totals[day[:7]] += amount
    best = _best(totals)
    code = f"""print(query("SELECT substr(day, 1, 7) FROM {s.events} JOIN {s.things} USING ({s.thing}) WHERE {s.group} = "
            "'{group}' GROUP BY 1 ORDER BY sum({s.amount}) DESC")[0][0])"""
    words = f"In which month (as 2024-MM) is the total {s.amount} of {s.things} whose {s.group} is {group} largest?"
    return _question(world, words, best, code) if best else None


def share_of_top(rng: random.Random, world: World) -> Question | None:
    """The share of the largest kind."""
    s = world.subject
    totals: dict[str, float] = defaultdict(float)
    for _, _, _, kind, amount in world.filled:
        totals[kind] += amount
    best = _best(totals)
    if best is None:
        return None
    answer = round(100 * totals[best] / sum(totals.values()), 2)
    code = f"""sums = [row[0] for row in query('SELECT sum({s.amount}) FROM {s.events} GROUP BY {s.kind}') if row[0]]
print(round(100 * max(sums) / sum(sums), 2))"""
    words = (
        f"Take the {s.kind} with the largest total {s.amount}: how many percent of the total of all is that, to two decimals?"
    )
    return _question(world, words, answer, code, tolerance=0.02)


def busy_days(rng: random.Random, world: World) -> Question:
    """Things with many events of a kind."""
    s = world.subject
    kind = rng.choice(world.events)[3]
    counts = Counter(event[2] for event in world.events if event[3] == kind)
    least = rng.randint(2, max(2, max(counts.values()) - 1))
    answer = sum(found >= least for found in counts.values())
    code = f"""rows = query("SELECT count(*) FROM {s.events} WHERE {s.kind} = '{kind}' GROUP BY {s.thing}")
print(sum(row[0] >= {least} for row in rows))"""
    return _question(world, f"How many {s.things} have at least {least} {s.events} with the {s.kind} {kind}?", answer, code)


GRADES: Mapping[int, Sequence[Maker]] = {
    1: (count_of_kind, of_number),
    2: (sum_of_kind, mean_of_thing, largest_total),
    3: (total_of_group, best_group, after_year),
    4: (median_between, best_month, share_of_top, busy_days),
}
SIZES = {1: 12, 2: 30, 3: 60, 4: 120}  # events, about
