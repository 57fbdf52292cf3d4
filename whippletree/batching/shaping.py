"""Shaping hooks: rewards → rewards, by what is known of each rollout, in the order of the configuration.

    members ─► facts ─► hook ─► hook ─► ... ─► members with shaped rewards; outcomes, and what each hook changed, are kept

Each hook is one function (rewards, facts, settings) → rewards; arrays have shape [V], one entry per rollout with a usable
reward. Length and efficiency terms are paid on correct answers only, so that no rollout gains by giving up.

Invariants (tests/batching/test_batching_shaping.py):
- correctness is judged on the outcome, whatever earlier hooks did to the reward, and the outcome survives shaping;
- a wrong answer never gains by the length and efficiency terms, nor a correct one loses by them;
- a rollout without a usable reward stays without one, and is seen by no hook;
- the terms of all hooks sum to the change of each reward, in every order of the rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from whippletree.batching.advantages import GroupMember, voters_by_group
from whippletree.batching.config import (
    ClipHook,
    EfficiencyHook,
    FunctionHook,
    HookConfig,
    LengthHook,
    Measure,
    OverlongHook,
)
from whippletree.batching.estimators import Float64, mean
from whippletree.batching.registry import Registry
from whippletree.errors import AlignmentError, NonFiniteError
from whippletree.types import Struct

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RewardFacts:
    """What is known of the rollouts whose rewards are shaped, in columns of shape [V]. `correct`: the outcome passed."""

    rollout_ids: tuple[str, ...]
    group_ids: tuple[str, ...]
    outcomes: Float64
    correct: npt.NDArray[np.bool_]
    sampled_tokens: Int64
    longest_call: Int64
    calls: Int64

    def measure(self, name: Measure) -> Int64:
        """The column of that name."""
        return {"sampled_tokens": self.sampled_tokens, "longest_call": self.longest_call, "calls": self.calls}[name]

    def groups(self) -> list[Int64]:
        """The places of each group's rollouts."""
        _, group = np.unique(np.array(self.group_ids), return_inverse=True)
        return [np.flatnonzero(group == number) for number in range(int(group.max(initial=-1)) + 1)]


Hook = Callable[[Float64, RewardFacts, Any], Float64]
"""(rewards, facts, settings) → rewards."""


class HookRecord(Struct):
    """What a hook did. `terms`: what it added to each rollout's reward, by rollout_id, where that is not 0.

    Example: HookRecord(hook="efficiency", terms={"s0003-g02-m5": 0.08}, mean_before=0.5, mean_after=0.54)
    """

    hook: str
    terms: dict[str, float]
    mean_before: float
    mean_after: float


class Shaped(Struct):
    """Members in their given order, with shaped rewards and their outcomes; and a record of each hook, in order.

    Example: Shaped(members=(GroupMember(..., reward=1.08, outcome=1.0),), records=(HookRecord(...),))
    """

    members: tuple[GroupMember, ...]
    records: tuple[HookRecord, ...]


def length_bonus(rewards: Float64, facts: RewardFacts, settings: LengthHook) -> Float64:
    """r + most × (longest - own) / (longest - shortest), over the correct rollouts of each group."""
    lengths, shaped = facts.measure(settings.of), rewards.copy()
    for places in facts.groups():
        correct = places[facts.correct[places]]
        spread = np.ptp(lengths[correct]) if len(correct) else 0
        if spread:
            shaped[correct] += settings.most * (lengths[correct].max() - lengths[correct]) / spread
    return shaped


def efficiency_bonus(rewards: Float64, facts: RewardFacts, settings: EfficiencyHook) -> Float64:
    """r + most × max(0, 1 - used / allowance), for correct rollouts."""
    unused = np.maximum(0.0, 1.0 - facts.measure(settings.of) / settings.allowance)
    return np.where(facts.correct, rewards + settings.most * unused, rewards)


def overlong_penalty(rewards: Float64, facts: RewardFacts, settings: OverlongHook) -> Float64:
    """r - most × min(1, max(0, (length - (limit - margin)) / margin))."""
    over = (facts.measure(settings.of) - (settings.limit - settings.margin)) / settings.margin
    return rewards - settings.most * np.clip(over, 0.0, 1.0)


def clip_rewards(rewards: Float64, facts: RewardFacts, settings: ClipHook) -> Float64:
    """r within [low, high]."""
    return np.clip(rewards, settings.low, settings.high)


HOOKS: Registry[Hook] = Registry(
    what="shaping hook",
    arguments=("rewards", "facts", "settings"),
    shipped={"length": length_bonus, "efficiency": efficiency_bonus, "overlong": overlong_penalty, "clip": clip_rewards},
)


def hook_name(settings: HookConfig) -> str:
    """The name by which a hook is found and recorded."""
    return settings.function if isinstance(settings, FunctionHook) else str(settings.__struct_config__.tag)


def shape_rewards(members: Sequence[GroupMember], hooks: Sequence[HookConfig], *, passing: float = 1.0) -> Shaped:
    """Apply the hooks in order. Raises AlignmentError when a rollout is listed twice or a hook changes the shape,
    ConfigurationError for an unknown hook, NonFiniteError when one gives NaN or inf."""
    groups, _ = voters_by_group(members)
    voters = [member for name in sorted(groups) for member in groups[name]]
    facts = facts_of(voters, passing)
    rewards = np.array([member.reward for member in voters], dtype=np.float64)
    records = []
    for settings in hooks:
        name = hook_name(settings)
        after = np.asarray(HOOKS.find(name)(rewards.copy(), facts, settings), dtype=np.float64)
        check_rewards(after, facts, name)
        records.append(_record(name, facts, rewards, after))
        rewards = after
    shaped = dict(zip(facts.rollout_ids, rewards.tolist(), strict=True))
    return Shaped(members=tuple(_with_reward(member, shaped) for member in members), records=tuple(records))


def facts_of(voters: Sequence[GroupMember], passing: float) -> RewardFacts:
    """Columns of rollouts that have a usable reward."""
    outcomes = np.array([member.verified for member in voters], dtype=np.float64)
    return RewardFacts(
        rollout_ids=tuple(member.rollout_id for member in voters),
        group_ids=tuple(member.group_id for member in voters),
        outcomes=outcomes,
        correct=outcomes >= passing,
        sampled_tokens=np.array([member.sampled_tokens for member in voters], dtype=np.int64),
        longest_call=np.array([member.longest_call for member in voters], dtype=np.int64),
        calls=np.array([member.calls for member in voters], dtype=np.int64),
    )


def check_rewards(rewards: Float64, facts: RewardFacts, hook: str) -> None:
    """Raises AlignmentError for another shape than [V], NonFiniteError that names the rollouts."""
    if rewards.shape != facts.outcomes.shape:
        raise AlignmentError(
            f"shaping hook {hook!r} gave shape {rewards.shape} for {len(facts.rollout_ids)} rewards", "return one reward each"
        )
    bad = np.flatnonzero(~np.isfinite(rewards))
    if len(bad):
        raise NonFiniteError(f"shaping hook {hook!r} gave NaN or inf to {facts.rollout_ids[bad[0]]}", "guard its divisions")


def _record(name: str, facts: RewardFacts, before: Float64, after: Float64) -> HookRecord:
    terms: Mapping[str, float] = dict(zip(facts.rollout_ids, (after - before).tolist(), strict=True))
    return HookRecord(
        hook=name,
        terms={rollout_id: term for rollout_id, term in terms.items() if term},
        mean_before=mean(before),
        mean_after=mean(after),
    )


def _with_reward(member: GroupMember, shaped: Mapping[str, float]) -> GroupMember:
    if member.rollout_id not in shaped:
        return member
    return msgspec.structs.replace(member, reward=shaped[member.rollout_id], outcome=member.verified)
