"""Configurations of small runs, and the learner process's way through them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loop_parts import HELDOUT, World, opened_run

from whippletree.learner.config import LearnerConfig
from whippletree.loop import asynchronous, collocated, synchronous
from whippletree.loop.config import LoopSection, RunConfig, SourceSection
from whippletree.loop.sources import TrailTasks

STEPS = 3
LOOPS = {"synchronous": synchronous.train, "collocated": collocated.train, "asynchronous": asynchronous.train}


def configuration(kind: str = "synchronous", *, every: int = 1, updates: int = 1, **loop: Any) -> RunConfig:
    section = {
        "steps": STEPS,
        "groups_per_step": 2,
        "group_size": 2,
        "groups_in_flight": 3,
        "eval_every": 0,
        "stall_limit": 20.0,
    }
    return RunConfig(
        sources=[SourceSection(name="s", tasks=TrailTasks())],
        loop=LoopSection(kind=kind, **(section | loop)),  # type: ignore[arg-type]
        learner=LearnerConfig(
            learning_rate=1e-2,
            warmup_steps=2,
            token_budget=64,
            checkpoint_every=every,
            keep_checkpoints=9,
            updates=updates,
        ),
    )


def train(world: World, directory: Path, config: RunConfig) -> None:
    """A learner process from its start to its end, or to its death."""
    with opened_run(world, directory, config, heldout=HELDOUT) as run:
        run.restore()
        LOOPS[config.loop.kind](run)
