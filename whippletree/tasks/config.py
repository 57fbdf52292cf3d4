"""Settings of the tasks room: how a generated family of tasks is cut."""

from __future__ import annotations

from whippletree.configuration import Amount, Config, Natural


class TrailFamily(Config):
    """The generated family "follow the trail" (whippletree/tasks/trail.py).

    Example: TrailFamily(train=256, heldout=48, depths=(1, 2, 3), decoys=(1, 2), seed=7)
    """

    train: Natural = 256
    """Training tasks that `write_tasks` writes. A `TrailStream` draws as many more as a run asks for."""
    heldout: Natural = 48
    """Held-out tasks. No training task has the trail and code of one of them."""
    depths: tuple[int, ...] = (1, 2, 3)
    """Files on the trail. Depth d needs d reads and one submission. Tasks take turns through these."""
    decoys: tuple[int, ...] = (1, 2)
    """Files beside the trail, each with another code. Tasks take turns through these, within each depth."""
    names: Natural = 12
    """File names in use (at most 24). The longest trail and its decoys must fit in."""
    codes: Natural = 20
    """Codes in use: the two-digit numbers from 10 on (at most 90)."""
    seed: Natural = 0
    """Draws everything; the same seed gives the same tasks, byte for byte."""
    agent_timeout_sec: Amount = 60.0
    """Seconds that an agent may take; written to task.toml."""
    verifier_timeout_sec: Amount = 10.0
    """Seconds that the tests may take; written to task.toml."""
