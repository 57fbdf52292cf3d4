"""Advantages and returns of a batch's rows from the learner's critic, instead of from the group.

    rows ─► values ─► each sample's own path, the rollout's (shaped) reward at its end ─► GAE ─► advantages, returns ─► rows
Invariants (tests/loop/test_credit.py):
- each sample is estimated on its own path; a token that several share is trained, and estimated, in one of them;
- with gamma = lambda = 1 and no whitening, a return is its rollout's shaped reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from whippletree.batching.config import BatchingConfig
from whippletree.batching.gae import Path, path_advantages
from whippletree.batching.shaping import HookRecord
from whippletree.learner.critic import with_returns
from whippletree.learner.rows import Row, by_sample
from whippletree.types import Rollout

Values = Callable[[Sequence[Row]], Sequence[Any]]
"""A critic's values of rows: a tensor of shape [N] for each."""


def shaped_rewards(rollouts: Sequence[Rollout], shaping: Sequence[HookRecord]) -> dict[str, float]:
    """Rewards after shaping, by rollout_id, of the rollouts that have one."""
    rewards = {rollout.spec.rollout_id: rollout.reward for rollout in rollouts if rollout.reward is not None}
    return {name: reward + sum(record.terms.get(name, 0.0) for record in shaping) for name, reward in rewards.items()}


def credited(
    rows: Sequence[Row],
    values: Values,
    *,
    calls: Mapping[str, npt.NDArray[np.int32]],
    rewards: Mapping[str, float],
    rollout_of: Mapping[str, str],
    config: BatchingConfig,
) -> list[Row]:
    """Rows with the critic's advantages, returns and old values. `calls`: call of each trained token, by sample_id;
    `rollout_of`: rollout_id by sample_id. Raises what path_advantages does."""
    expected = values(rows)
    paths = [
        Path(
            sample_id=name,
            rollout_id=rollout_of[name],
            values=column.astype(np.float64),
            trained=np.ones(len(column), np.bool_),
            calls=calls[name],
            reward=rewards[rollout_of[name]],
        )
        for row, found in zip(rows, expected, strict=True)
        for name, column in by_sample(row, found).items()
    ]
    tokens = path_advantages(paths, config.gae, config.advantages)
    return with_returns(rows, expected, tokens.advantages, tokens.returns)
