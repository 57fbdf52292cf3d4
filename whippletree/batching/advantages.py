"""Advantages of a batch of rollouts: who has a vote, what the estimator makes of it, and what there is to say about it.

Estimators are in `estimators`; rewards of single calls in `call_advantages`; with a critic in `gae`.

Invariants (tests/batching/test_batching_advantages.py):
- a rollout has one vote, however many samples it split into (Agent Lightning v1.0, Figure 4);
- a rollout without a usable reward has no vote and no advantage, and is counted by cause;
- a group without one reward is told apart from a group of zeros, in its statistics and as an alarm;
- nothing depends on the order of the rollouts, and no input gives NaN or inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from whippletree.batching.config import AdvantageConfig
from whippletree.batching.estimators import ESTIMATORS, Float64, deviation, equal, mean
from whippletree.errors import AlignmentError, NonFiniteError
from whippletree.types import Struct

Signal = Literal["signal", "equal_rewards", "one_reward", "no_reward"]
Exclusion = Literal["no_reward", "invalid_reward"]

LARGEST = 1e100
"""A reward beyond ±LARGEST is invalid, like NaN: its square would overflow."""

MOSTLY = 0.5
"""Share of the advantages from groups that failed alike, above which there is an alarm."""


class GroupMember(Struct):
    """One rollout of a group. `reward` is None where it was not verified (an infrastructure failure). `outcome` is the reward
    before shaping (None: `reward` is). `call_rewards`: what each call earned besides, in order, None where that is not known;
    only the estimator "per-call" wants them. The rest is what shaping may ask for: tokens sampled in the whole rollout and in
    its longest call, and the number of its calls.

    Example: GroupMember(rollout_id="s0003-g02-m5", group_id="s0003-g02", reward=1.0, sampled_tokens=812, calls=6)
    """

    rollout_id: str
    group_id: str
    reward: float | None
    outcome: float | None = None
    sampled_tokens: int = 0
    longest_call: int = 0
    calls: int = 0
    call_rewards: tuple[float | None, ...] = ()

    @property
    def verified(self) -> float | None:
        """The reward before shaping."""
        return self.reward if self.outcome is None else self.outcome


class GroupStatistics(Struct):
    """What a group has to say. `mean` and `std` are of the `voters`' rewards (0.0 where there is none); `passed` is how many
    voters passed, by their outcome, and `outcomes_differ` whether outcomes are told apart at all, before shaping; `nonzero` is
    how many have an advantage other than 0, `magnitude` the sum of its sizes.

    Example: GroupStatistics(group_id="s0003-g02", members=8, voters=7, passed=3, outcomes_differ=True, mean=0.43, std=0.53,
                             signal="signal", nonzero=7, magnitude=6.9)
    """

    group_id: str
    members: int
    voters: int
    passed: int
    outcomes_differ: bool
    mean: float
    std: float
    signal: Signal
    nonzero: int
    magnitude: float


class Advantages(Struct):
    """Advantages by rollout_id (of the voters), their groups in order of their names, and who was left out and why. Where each
    call has its own, in `calls`, a rollout's is their mean.

    Example: Advantages(values={"a": 1.0, "b": -1.0}, groups=(...,), excluded={"no_reward": 1})
    """

    values: dict[str, float]
    groups: tuple[GroupStatistics, ...]
    excluded: dict[Exclusion, int]
    calls: dict[str, tuple[float, ...]] = {}

    def silent(self, rollout_id: str) -> bool:
        """Whether a voter's advantage, or that of each of its calls, is exactly 0."""
        return not any(self.calls.get(rollout_id, (self.values[rollout_id],)))

    @property
    def unearned(self) -> float:
        """The share of the advantages' sizes in groups that failed alike (no success, equal outcomes), in [0, 1]: what shaping
        alone makes of failures."""
        total = math.fsum(group.magnitude for group in self.groups)
        alike = math.fsum(group.magnitude for group in self.groups if not group.passed and not group.outcomes_differ)
        return alike / total if total else 0.0

    @property
    def alarms(self) -> tuple[str, ...]:
        """What should worry whoever runs this."""
        lost = [group for group in self.groups if group.signal == "no_reward"]
        found = []
        if lost:
            found.append(f"no rollout has a reward in {len(lost)} of {len(self.groups)} groups, e.g. {lost[0].group_id}")
        if self.unearned > MOSTLY:
            found.append(
                f"{self.unearned:.0%} of the advantages come from groups that failed alike: shaping, not the task, is trained "
                '(filter by "pass-rate", or raise advantages.min_std)'
            )
        return tuple(found)


def group_advantages(
    members: Sequence[GroupMember],
    config: AdvantageConfig = AdvantageConfig(),  # noqa: B008 - immutable
    *,
    passing: float = 1.0,
) -> Advantages:
    """Advantages of all rollouts of a batch, in float64.

    `members` lists each rollout once, in any order; an outcome of at least `passing` has passed. Raises AlignmentError when
    one is listed twice, ConfigurationError when there is no such estimator, and AlignmentError or NonFiniteError when a
    user's own gives something else than finite advantages of the same shapes.
    """
    groups, excluded = voters_by_group(members)
    names = sorted(groups)
    rewards = [np.array([member.reward for member in groups[name]], dtype=np.float64) for name in names]
    found = ESTIMATORS.find(config.estimator)(rewards, config)
    check_advantages(rewards, found, config.estimator)
    sizes: dict[str, int] = dict.fromkeys(names, 0)
    for member in members:
        sizes[member.group_id] += 1
    values: dict[str, float] = {}
    statistics = []
    for name, of_group, advantages in zip(names, rewards, found, strict=True):
        values |= {member.rollout_id: float(value) for member, value in zip(groups[name], advantages, strict=True)}
        outcomes = np.array([member.verified for member in groups[name]], dtype=np.float64)
        statistics.append(
            GroupStatistics(
                group_id=name,
                members=sizes[name],
                voters=len(of_group),
                passed=int(np.count_nonzero(outcomes >= passing)),
                outcomes_differ=not equal(outcomes, config),
                mean=mean(of_group),
                std=deviation(of_group, config),
                signal=signal_of(of_group, config),
                nonzero=int(np.count_nonzero(advantages)),
                magnitude=math.fsum(np.abs(advantages)),
            )
        )
    return Advantages(values=values, groups=tuple(statistics), excluded=excluded)


def voters_by_group(members: Sequence[GroupMember]) -> tuple[dict[str, list[GroupMember]], dict[Exclusion, int]]:
    """Members with a usable reward by group (groups without one too), by rollout_id within it; and the others by cause.

    Raises AlignmentError when a rollout is listed twice.
    """
    groups: dict[str, list[GroupMember]] = {}
    excluded: dict[Exclusion, int] = {}
    seen: set[str] = set()
    for member in sorted(members, key=lambda member: member.rollout_id):
        if member.rollout_id in seen:
            raise AlignmentError(f"rollout {member.rollout_id} is listed twice", "list rollouts, not their samples")
        seen.add(member.rollout_id)
        group = groups.setdefault(member.group_id, [])
        why = exclusion(member.reward)
        if why is None:
            group.append(member)
        else:
            excluded[why] = excluded.get(why, 0) + 1
    return groups, excluded


def exclusion(reward: float | None) -> Exclusion | None:
    """Why a reward has no vote; None for one that has."""
    if reward is None:
        return "no_reward"
    return None if abs(reward) <= LARGEST else "invalid_reward"  # NaN compares false


def signal_of(rewards: Float64, config: AdvantageConfig) -> Signal:
    """Whether a group's usable rewards differ. Shape [voters]."""
    if len(rewards) < 2:
        return "one_reward" if len(rewards) else "no_reward"
    return "equal_rewards" if equal(rewards, config) else "signal"


def check_advantages(rewards: Sequence[Float64], found: Sequence[Float64], estimator: str) -> None:
    """Raises AlignmentError where shapes differ, NonFiniteError where a value is NaN or infinite."""
    shapes, expected = [np.shape(group) for group in found], [group.shape for group in rewards]
    if shapes != expected:
        raise AlignmentError(f"advantage estimator {estimator!r} gave other shapes than it got", "return one value per reward")
    if not all(np.isfinite(group).all() for group in found):
        raise NonFiniteError(f"advantage estimator {estimator!r} gave NaN or inf", "guard its divisions")
