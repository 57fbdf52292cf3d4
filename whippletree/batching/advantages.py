"""Group-relative advantages, one vote per rollout.

With n the usable rewards r of a group, m their mean and s their standard deviation:

| baseline | std | advantage | source |
|---|---|---|---|
| mean | sample, population | (r - m) / (s + eps), s with n - 1 or n | GRPO, arXiv:2402.03300 |
| mean | none | r - m | Dr. GRPO, arXiv:2503.20783 |
| leave-one-out | none | r - mean of the others = (r - m) n / (n - 1) | RLOO, arXiv:2402.14740 |

Invariants (tests/batching/test_batching_advantages.py):
- a rollout has one vote, however many samples it split into (Agent Lightning v1.0, Figure 4);
- a rollout without a usable reward has no vote and no advantage, and is counted by cause;
- a group of one, or of equal rewards, gives exactly 0.0; no input gives NaN or inf;
- an advantage depends on its own group alone, and on no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.types import Struct

Baseline = Literal["mean", "leave-one-out"]
Std = Literal["sample", "population", "none"]
Signal = Literal["signal", "equal_rewards", "one_reward", "no_reward"]
Exclusion = Literal["no_reward", "invalid_reward"]

EQUAL = 1e-12
"""Rewards that differ by less than this (relative to their size, where that is above 1) are equal: the rest is rounding."""

LARGEST = 1e100
"""A reward beyond ±LARGEST is invalid, like NaN: its square would overflow."""


class GroupMember(Struct):
    """One rollout of a group. `reward` is None where it was not verified (an infrastructure failure).

    Example: GroupMember(rollout_id="s0003-g02-m5", group_id="s0003-g02", reward=1.0)
    """

    rollout_id: str
    group_id: str
    reward: float | None


class GroupStatistics(Struct):
    """What a group's rewards have to say. `mean` and `std` (as asked for) are of the `voters`; 0.0 where there is none.

    Example: GroupStatistics(group_id="s0003-g02", members=8, voters=7, mean=0.5, std=0.53, signal="signal")
    """

    group_id: str
    members: int
    voters: int
    mean: float
    std: float
    signal: Signal


class Advantages(Struct):
    """Advantages by rollout_id (of the voters), their groups in order of first appearance, and who was left out and why.

    Example: Advantages(values={"a": 1.0, "b": -1.0}, groups=(...,), excluded={"no_reward": 1})
    """

    values: dict[str, float]
    groups: tuple[GroupStatistics, ...]
    excluded: dict[Exclusion, int]


def group_advantages(
    members: Sequence[GroupMember], *, baseline: Baseline = "mean", std: Std = "sample", eps: float = 1e-4
) -> Advantages:
    """Advantages of all rollouts of a batch, in float64.

    `members` lists each rollout once, in any order. Raises AlignmentError when one is listed twice, ConfigurationError
    when `eps` is negative or not finite.
    """
    if not 0.0 <= eps < math.inf:
        raise ConfigurationError(f"eps is {eps}", "give a small number of at least 0")
    groups: dict[str, list[GroupMember]] = {}
    seen: set[str] = set()
    for member in members:
        if member.rollout_id in seen:
            raise AlignmentError(f"rollout {member.rollout_id} is listed twice", "list rollouts, not their samples")
        seen.add(member.rollout_id)
        groups.setdefault(member.group_id, []).append(member)
    values: dict[str, float] = {}
    excluded: dict[Exclusion, int] = {}
    statistics = []
    for group_id, group in groups.items():
        rewards: dict[str, float] = {}
        for member in group:
            why = _exclusion(member.reward)
            if why is None and member.reward is not None:
                rewards[member.rollout_id] = float(member.reward)
            elif why is not None:
                excluded[why] = excluded.get(why, 0) + 1
        of_group = _statistics(group_id, len(group), list(rewards.values()), std)
        statistics.append(of_group)
        for rollout_id, reward in rewards.items():
            values[rollout_id] = _advantage(reward, of_group, baseline, std, eps)
    return Advantages(values=values, groups=tuple(statistics), excluded=excluded)


def _exclusion(reward: float | None) -> Exclusion | None:
    """Why a reward has no vote."""
    if reward is None:
        return "no_reward"
    return None if abs(reward) <= LARGEST else "invalid_reward"  # NaN compares false


def _statistics(group_id: str, members: int, rewards: list[float], std: Std) -> GroupStatistics:
    voters = len(rewards)
    if voters == 0:
        return GroupStatistics(group_id=group_id, members=members, voters=0, mean=0.0, std=0.0, signal="no_reward")
    mean = math.fsum(rewards) / voters
    spread, size = max(rewards) - min(rewards), max(1.0, *map(abs, rewards))
    signal: Signal = "one_reward" if voters == 1 else "equal_rewards" if spread <= EQUAL * size else "signal"
    squares = math.fsum((reward - mean) ** 2 for reward in rewards)
    deviation = math.sqrt(squares / (voters - (std == "sample"))) if signal == "signal" and std != "none" else 0.0
    return GroupStatistics(group_id=group_id, members=members, voters=voters, mean=mean, std=deviation, signal=signal)


def _advantage(reward: float, group: GroupStatistics, baseline: Baseline, std: Std, eps: float) -> float:
    if group.signal != "signal":
        return 0.0
    centred = reward - group.mean
    if baseline == "leave-one-out":
        centred *= group.voters / (group.voters - 1)
    return centred if std == "none" else centred / (group.std + eps)
