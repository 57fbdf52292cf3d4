"""The learning rate of each update, as a share of its full value: warm-up, then a schedule.

Invariants (tests/learner/test_learner_schedule.py):
- the share rises linearly over the warm-up and is 1 at its end; it then never rises, and ends at the floor;
- it is a function of the update's number alone, so a resumed run goes on where it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from whippletree.learner.config import LearnerConfig

if TYPE_CHECKING:
    import torch


def rate_share(config: LearnerConfig, update: int, run_steps: int) -> float:
    """Share of the learning rate at update number `update`, counted from 0. `run_steps` are the run's updates in all."""
    if update + 1 < config.warmup_steps:
        return (update + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    first, last = max(0, config.warmup_steps - 1), (config.schedule_steps or run_steps) - 1
    done = min(1.0, (update - first) / max(1, last - first))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.schedule_floor + (1.0 - config.schedule_floor) * left


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters of an optimiser."""
    for group in optimizer.param_groups:
        group["lr"] = rate
