"""One rollout under a fresh controller, and what a failed one must look like."""

from __future__ import annotations

from pathlib import Path

from control_world import World

from whippletree.types import Attempt, CauseClass, Rollout


async def run_one(world: World, task: Path, *, max_attempts: int = 1, **control: object) -> tuple[Rollout, Attempt]:
    """One rollout to its end under a fresh controller: it, and its last attempt."""
    names = world.add(1, task, max_attempts=max_attempts)
    async with world.controlling(world.spec(**control)):
        (rollout,) = await world.finished(names)
    assert world.boxes() == []
    return rollout, world.store.attempts(names[0])[-1]


def failed(rollout: Rollout, cause: CauseClass, phase: str) -> str:
    """Asserts that infrastructure failed, and returns the message."""
    assert (rollout.state, rollout.reward) == ("failed", None)
    assert rollout.cause is not None and (rollout.cause.cause, rollout.cause.phase) == (cause, phase), rollout.cause
    return rollout.cause.message
