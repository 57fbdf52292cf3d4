"""What rank 0 of a learner tells the others, which wait for it between updates.

    rank 0: loop ─► update / score / weights ─┬─ command, one per rank ─► every rank does its part ─► result, on rank 0
    rank n: follow ───────────────────────────┘

Invariants (tests/learner/test_ranked_learner.py):
- every rank does every command, in rank 0's order;
- a follower ends with rank 0: at its command, or because the connection is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whippletree.learner.rows import Row


@dataclass(frozen=True)
class UpdateRows:
    """Make the updates of a batch from these rows of each, which are this rank's; the version before is `policy_version`.

    Example: UpdateRows(updates=((Row(...),),), policy_version=3)
    """

    updates: tuple[tuple[Row, ...], ...]
    policy_version: int


@dataclass(frozen=True)
class ScoreRows:
    """Logprobs or a critic's values of the targets of these rows, which are this rank's; `numbers` are their places among all
    rows, None of an empty one.

    Example: ScoreRows(what="logprobs", rows=(Row(...),), numbers=(3,), temperature=1.0)
    """

    what: Literal["logprobs", "values"]
    rows: tuple[Row, ...]
    numbers: tuple[int | None, ...]
    temperature: float


@dataclass(frozen=True)
class Gather:
    """Give rank 0 whole tensors: of the weights, of the adapters, of the optimiser, or of the critic and its own.

    Example: Gather(what="weights")
    """

    what: Literal["weights", "adapters", "optimizer", "critic"]


@dataclass(frozen=True)
class Restore:
    """Load a checkpoint, which every rank can read.

    Example: Restore(checkpoint="runs/r1/checkpoints/step-0012")
    """

    checkpoint: str


@dataclass(frozen=True)
class Stop:
    """The loop is at its end.

    Example: Stop()
    """


Command = UpdateRows | ScoreRows | Gather | Restore | Stop
