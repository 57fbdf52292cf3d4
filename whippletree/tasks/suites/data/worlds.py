"""What tables are about: rows of events, and of the things that they refer to; as CSV files or a SQLite database.

Invariants (tests/tasks/test_suites_data.py):
- the same draw gives the same bytes, in both forms, and both hold the same rows;
- every event refers to a thing that is there; amounts have two decimals, and some are missing.
"""

from __future__ import annotations

import csv
import io
import random
import sqlite3
from dataclasses import dataclass
from typing import Literal

Form = Literal["csv", "sqlite"]
Event = tuple[int, str, str, str, float | None]
Thing = tuple[str, str, int]


@dataclass(frozen=True)
class Subject:
    """The words of a world. An event has a number, a day, a thing that it refers to, a kind and an amount; a thing has a name,
    a group and a year."""

    events: str
    event: str
    things: str
    thing: str
    kind: str
    amount: str
    group: str
    year: str
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def event_columns(self) -> tuple[str, ...]:
        """Names of the columns of events."""
        return ("number", "day", self.thing, self.kind, self.amount)

    @property
    def thing_columns(self) -> tuple[str, ...]:
        """Names of the columns of things."""
        return (self.thing, self.group, self.year)


# fmt: off
SUBJECTS = (
    Subject("orders", "order", "customers", "customer", "product", "price", "city", "since",
            ("lamp", "chair", "desk", "shelf", "rug", "clock"),
            ("Aldo", "Berit", "Chima", "Dana", "Emre", "Farah", "Goran", "Hanna", "Iris", "Jonas", "Keiko", "Liam"),
            ("Bergen", "Lisbon", "Osaka", "Quito")),
    Subject("readings", "reading", "stations", "station", "sensor", "value", "region", "built",
            ("rain", "wind", "sun", "snow", "dust"),
            ("Alpha", "Bravo", "Comet", "Dingo", "Eagle", "Falcon", "Ghost", "Harpy", "Ibis", "Jackal", "Kite", "Lynx"),
            ("north", "south", "east", "west")),
    Subject("loans", "loan", "members", "member", "genre", "fee", "branch", "joined",
            ("poetry", "crime", "history", "travel", "comics"),
            ("Ada", "Boris", "Carla", "Dmitri", "Elif", "Femi", "Greta", "Hugo", "Ines", "Jamal", "Kofi", "Lena"),
            ("harbour", "market", "station", "hilltop")),
    Subject("trips", "trip", "drivers", "driver", "vehicle", "distance", "depot", "hired",
            ("van", "truck", "bike", "tram"),
            ("Amir", "Bela", "Carmen", "Dirk", "Esra", "Finn", "Gita", "Henk", "Ivo", "Jana", "Karl", "Luz"),
            ("dock", "tower", "valley", "bridge")),
)
# fmt: on


@dataclass(frozen=True)
class World:
    """Tables with rows."""

    subject: Subject
    form: Form
    events: tuple[Event, ...]
    things: tuple[Thing, ...]

    @property
    def filled(self) -> list[tuple[int, str, str, str, float]]:
        """Events that have an amount."""
        return [(number, day, thing, kind, amount) for number, day, thing, kind, amount in self.events if amount is not None]

    @property
    def group_of(self) -> dict[str, str]:
        """Name of a thing → its group."""
        return {name: group for name, group, _ in self.things}

    def describe(self) -> str:
        """What the files hold, for the question."""
        subject = self.subject
        events, things = ", ".join(subject.event_columns), ", ".join(subject.thing_columns)
        missing = f"Some {subject.events} have no {subject.amount}; they do not count where it matters."
        if self.form == "csv":
            return (
                f"{subject.events}.csv has one row per {subject.event} ({events}); {subject.things}.csv has one row per "
                f"{subject.thing} ({things}). {missing}"
            )
        tables = f"{subject.events} ({events}) and {subject.things} ({things})"
        return f"data.db is a SQLite database with the tables {tables}. {missing}"

    def files(self) -> dict[str, bytes]:
        """The tables as files."""
        subject = self.subject
        if self.form == "csv":
            return {
                f"{subject.events}.csv": _csv(subject.event_columns, self.events),
                f"{subject.things}.csv": _csv(subject.thing_columns, self.things),
            }
        return {"data.db": _database(self)}


def draw_world(rng: random.Random, subject: Subject, form: Form, size: int) -> World:
    """A world with about `size` events."""
    names = rng.sample(subject.names, rng.randint(7, len(subject.names)))
    things = tuple((name, rng.choice(subject.groups), rng.randint(1990, 2023)) for name in names)
    kinds = rng.sample(subject.kinds, rng.randint(3, len(subject.kinds)))
    days = sorted(f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}" for _ in range(rng.randint(size, size + size // 3)))
    scale = rng.choice([20, 100, 400])
    events = tuple(
        (
            number,
            day,
            rng.choice(names),
            rng.choice(kinds),
            None if rng.random() < 0.04 else rng.randint(100, 100 * scale) / 100,
        )
        for number, day in enumerate(days, rng.choice([1, 101, 5000]))
    )
    return World(subject=subject, form=form, events=events, things=things)


def _csv(columns: tuple[str, ...], rows: tuple[Event, ...] | tuple[Thing, ...]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row])
    return text.getvalue().encode()


VERSION = slice(96, 100)  # of the header of a database: the library that wrote it


def _database(world: World) -> bytes:
    subject = world.subject
    database = sqlite3.connect(":memory:")
    try:
        of_events = f"number INTEGER PRIMARY KEY, day TEXT, {subject.thing} TEXT, {subject.kind} TEXT, {subject.amount} REAL"
        of_things = f"{subject.thing} TEXT PRIMARY KEY, {subject.group} TEXT, {subject.year} INTEGER"
        database.execute(f"CREATE TABLE {subject.events} ({of_events})")
        database.execute(f"CREATE TABLE {subject.things} ({of_things})")
        database.executemany(f"INSERT INTO {subject.events} VALUES (?, ?, ?, ?, ?)", world.events)
        database.executemany(f"INSERT INTO {subject.things} VALUES (?, ?, ?)", world.things)
        database.commit()
        data = bytearray(database.serialize())
    finally:
        database.close()
    data[VERSION] = b"\0\0\0\0"
    return bytes(data)
