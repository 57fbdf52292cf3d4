"""Settings of the suites: how many tasks, of which kinds."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Amount, Config, Natural

ShellKind = Literal["files", "text", "permissions", "archives", "tables", "finding"]
Grade = Literal[1, 2, 3, 4]


class BugsFamily(Config):
    """The bug-fix suite (whippletree/tasks/suites/bugs.py): bugs put into small modules of this package.

    Example: BugsFamily(train=36, heldout=9, edits=(1,), seed=7)
    """

    train: Natural = 108
    """Training tasks, from nine modules in turn; fewer where a module has no further bug."""
    heldout: Natural = 36
    """Held-out tasks, from three other modules in turn."""
    edits: tuple[int, ...] = (1, 1, 2)
    """Edits of one bug; candidates take turns through these."""
    seed: Natural = 0
    """Draws everything."""
    tests_seconds: Amount = 10.0
    """Limit of one run of a module's tests."""
    agent_timeout_sec: Amount = 600.0
    """Seconds that an agent may take; written to task.toml."""


class DataFamily(Config):
    """The data-analysis suite (whippletree/tasks/suites/data).

    Example: DataFamily(train=80, heldout=16, forms=("csv",), grades=(1, 2))
    """

    train: Natural = 240
    """Training tasks."""
    heldout: Natural = 48
    """Held-out tasks; none has the question and answer of a training task."""
    forms: tuple[Literal["csv", "sqlite"], ...] = ("csv", "sqlite")
    """What the tables are in. They take turns, within each grade."""
    grades: tuple[Grade, ...] = (1, 2, 3, 4)
    """Difficulty, from looking up (1) to several steps (4). Tasks take turns."""
    seed: Natural = 0
    """Draws everything; the same seed gives the same tasks."""
    agent_timeout_sec: Amount = 180.0
    """Seconds that an agent may take; written to task.toml."""
    verifier_timeout_sec: Amount = 20.0
    """Seconds that the tests may take; written to task.toml."""


class SearchFamily(Config):
    """The search suite (whippletree/tasks/suites/search).

    Example: SearchFamily(train=80, heldout=16, steps=(1, 2), worlds=4)
    """

    train: Natural = 240
    """Training tasks."""
    heldout: Natural = 48
    """Held-out tasks, over corpora of their own."""
    steps: tuple[Literal[1, 2, 3, 4], ...] = (1, 2, 3, 4)
    """Documents that an answer takes, one after the other. Tasks take turns."""
    worlds: Natural = 8
    """Corpora of training tasks; held-out tasks have a quarter as many."""
    size: Natural = 24
    """Towns of a corpus; it has about four and a half times as many documents."""
    plain: bool = False
    """Corpora of a dozen things with plain names, each with a code and a next one, for models of a few million parameters.
    `size` is not used then."""
    seed: Natural = 0
    """Draws everything; the same seed gives the same tasks, byte for byte."""
    agent_timeout_sec: Amount = 180.0
    """Seconds that an agent may take; written to task.toml."""
    verifier_timeout_sec: Amount = 20.0
    """Seconds that the tests may take; written to task.toml."""


class ShellFamily(Config):
    """The shell suite (whippletree/tasks/suites/shell).

    Example: ShellFamily(train=240, heldout=48, grades=(1, 2), seed=7)
    """

    train: Natural = 480
    """Training tasks."""
    heldout: Natural = 96
    """Held-out tasks; none has the instruction and outcome of a training task."""
    families: tuple[ShellKind, ...] = ("files", "text", "permissions", "archives", "tables", "finding")
    """What tasks are about. They take turns, within each grade."""
    grades: tuple[Grade, ...] = (1, 2, 3, 4)
    """Difficulty, from one command (1) to several steps (4). Tasks take turns."""
    seed: Natural = 0
    """Draws everything; the same seed gives the same tasks, byte for byte."""
    agent_timeout_sec: Amount = 120.0
    """Seconds that an agent may take; written to task.toml."""
    verifier_timeout_sec: Amount = 20.0
    """Seconds that the tests may take; written to task.toml."""
