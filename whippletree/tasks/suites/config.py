"""Settings of the suites: how many tasks, of which kinds."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config

ShellKind = Literal["files", "text", "permissions", "archives", "tables", "finding"]
Grade = Literal[1, 2, 3, 4]


class ShellFamily(Config):
    """The shell suite (whippletree/tasks/suites/shell).

    Example: ShellFamily(train=240, heldout=48, grades=(1, 2), seed=7)
    """

    train: int = 480
    """Training tasks."""
    heldout: int = 96
    """Held-out tasks; none has the instruction and outcome of a training task."""
    families: tuple[ShellKind, ...] = ("files", "text", "permissions", "archives", "tables", "finding")
    """What tasks are about. They take turns, within each grade."""
    grades: tuple[Grade, ...] = (1, 2, 3, 4)
    """Difficulty, from one command (1) to several steps (4). Tasks take turns."""
    seed: int = 0
    """Draws everything; the same seed gives the same tasks, byte for byte."""
    agent_timeout_sec: float = 120.0
    """Seconds that an agent may take; written to task.toml."""
    verifier_timeout_sec: float = 20.0
    """Seconds that the tests may take; written to task.toml."""
