"""Advantages of single calls from rewards of single calls.

With r(i,k) the reward of rollout i's call k, T(i) the number of its calls, and n rollouts in the group:

    return    G(i,t) = sum over k >= t of gamma^(k-t) r(i,k)
    baseline  b(i,t) = mean over the others j of G(j, min(t, T(j)))
    advantage A(i,t) = G(i,t) - b(i,t), divided by d(root mean square of the group's) where scaled

A rollout that has ended is compared with by the return of its last call. Where only the last call is rewarded (and gamma is 1),
every call gets the RLOO advantage of its rollout. The baseline depends on the other rollouts alone: not on what this one did,
nor on when it stopped. So it drops out of the expected gradient, and "take one more turn" is judged by the return that follows.

The bias that this avoids: to normalise rewards turn by turn, r(i,t) - mean over j of r(j,t), and to sum what follows, subtracts
from G(i,t) one mean for each turn that this rollout went on to take. The number of terms is its own doing: each choice to go on
is charged one mean intermediate reward, so that the expected gradient is off by minus that for every such choice, and a policy
that is paid a constant bonus per turn is not told that more turns are worth more. The same holds for rewards that are
standardised over all steps of a group and then summed (process supervision in arXiv:2402.03300, 4.1.3).

Invariants (tests/batching/test_batching_call_advantages.py):
- unscaled, the expected gradient is that of the return (by enumeration, exactly), which is not so for the naive one;
- rollouts that were rewarded alike, call by call, get exactly 0.0, and so does a group of one; no input gives NaN or inf;
- a rollout with a call without a usable reward has no vote and no advantage, and is counted;
- with no rewards but the rollouts' own, each call of a batch has its rollout's leave-one-out advantage (`per_call`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from whippletree.batching.advantages import (
    Advantages,
    Exclusion,
    GroupMember,
    GroupStatistics,
    Signal,
    exclusion,
    voters_by_group,
)
from whippletree.batching.config import AdvantageConfig, CallAdvantageConfig
from whippletree.batching.estimators import Float64, deviation, equal, mean, scale
from whippletree.errors import AlignmentError
from whippletree.types import Struct


class CallRewards(Struct):
    """Rewards of a rollout's calls, in order. None where a call's reward was not verified; 0.0 where it earned nothing.

    Example: CallRewards(rollout_id="s0003-g02-m5", group_id="s0003-g02", rewards=(0.1, 0.1, 1.0))
    """

    rollout_id: str
    group_id: str
    rewards: tuple[float | None, ...]


class CallAdvantages(Struct):
    """Advantage of each call, by rollout_id of the voters; and who was left out and why.

    Example: CallAdvantages(values={"a": (0.2, -0.1), "b": (-0.2,)}, excluded={"no_reward": 1})
    """

    values: dict[str, tuple[float, ...]]
    excluded: dict[Exclusion, int]


def call_advantages(
    rollouts: Sequence[CallRewards],
    config: CallAdvantageConfig = CallAdvantageConfig(),  # noqa: B008 - immutable
    numerics: AdvantageConfig = AdvantageConfig(),  # noqa: B008 - immutable
) -> CallAdvantages:
    """Advantages of a batch's calls; a rollout without calls is left out as one without a reward. `numerics` gives eps,
    min_std and resolution. Raises AlignmentError when a rollout is listed twice."""
    groups: dict[str, list[tuple[str, Float64]]] = {}
    excluded: dict[Exclusion, int] = {}
    seen: set[str] = set()
    for rollout in sorted(rollouts, key=lambda rollout: rollout.rollout_id):
        if rollout.rollout_id in seen:
            raise AlignmentError(f"rollout {rollout.rollout_id} is listed twice", "list rollouts, not their samples")
        seen.add(rollout.rollout_id)
        whys = [why for why in map(exclusion, rollout.rewards or (None,)) if why]
        if whys:
            excluded[whys[0]] = excluded.get(whys[0], 0) + 1
        else:
            returns = returns_to_go(np.array(rollout.rewards, dtype=np.float64), config.gamma)
            groups.setdefault(rollout.group_id, []).append((rollout.rollout_id, returns))
    values: dict[str, tuple[float, ...]] = {}
    for _, group in sorted(groups.items()):
        found = _of_group([returns for _, returns in group], config, numerics)
        values |= {name: tuple(advantages.tolist()) for (name, _), advantages in zip(group, found, strict=True)}
    return CallAdvantages(values=values, excluded=excluded)


def per_call(
    members: Sequence[GroupMember],
    config: CallAdvantageConfig,
    numerics: AdvantageConfig,
    *,
    passing: float = 1.0,
) -> Advantages:
    """Advantages of a batch's rollouts and of their calls: what each call earned, and the rollout's own reward at its last one.
    Raises AlignmentError when a rollout is listed twice."""
    groups, excluded = voters_by_group(members)
    told = [_rewards(member, config) for member in members if exclusion(member.reward) is None]
    found = call_advantages(told, config, numerics)
    for why, count in found.excluded.items():
        excluded[why] = excluded.get(why, 0) + count
    statistics = []
    for name in sorted(groups):
        voters = [member for member in groups[name] if member.rollout_id in found.values]
        outcomes = np.array([member.verified for member in voters], dtype=np.float64)
        rewards = np.array([member.reward for member in voters], dtype=np.float64)
        sizes = [math.fsum(map(abs, found.values[m.rollout_id])) / len(found.values[m.rollout_id]) for m in voters]
        few: Signal = "one_reward" if voters else "no_reward"
        statistics.append(
            GroupStatistics(
                group_id=name,
                members=sum(member.group_id == name for member in members),
                voters=len(voters),
                passed=int(np.count_nonzero(outcomes >= passing)),
                outcomes_differ=not equal(outcomes, numerics),
                mean=mean(rewards),
                std=deviation(rewards, numerics),
                signal=few if len(voters) < 2 else "signal" if any(sizes) else "equal_rewards",
                nonzero=sum(size > 0 for size in sizes),
                magnitude=math.fsum(sizes),
            )
        )
    values = {name: math.fsum(calls) / len(calls) for name, calls in found.values.items()}
    return Advantages(values=values, groups=tuple(statistics), excluded=excluded, calls=found.values)


def _rewards(member: GroupMember, config: CallAdvantageConfig) -> CallRewards:
    """What each call of a voter earned, with the rollout's reward in the last."""
    rewards = member.call_rewards
    if rewards and rewards[-1] is not None and member.reward is not None:
        rewards = (*rewards[:-1], rewards[-1] + config.outcome * member.reward)
    return CallRewards(rollout_id=member.rollout_id, group_id=member.group_id, rewards=rewards)


def returns_to_go(rewards: Float64, gamma: float) -> Float64:
    """G of this module: what follows from each step on. Shape [T] to [T]."""
    returns = np.zeros(len(rewards))
    following = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        following = float(rewards[step]) + gamma * following
        returns[step] = following
    return returns


def _of_group(returns: Sequence[Float64], config: CallAdvantageConfig, numerics: AdvantageConfig) -> list[Float64]:
    """Shapes [T(i)] to [T(i)]."""
    calls = max(map(len, returns))
    held = np.array([np.concatenate([group, np.full(calls - len(group), group[-1])]) for group in returns])
    total = np.array([math.fsum(column) for column in held.T])
    size = max(1.0, float(np.abs(held).max()))
    found = []
    for own in returns:
        if len(returns) == 1:
            found.append(np.zeros(len(own)))
            continue
        others = (total[: len(own)] - own) / (len(returns) - 1)
        centred = own - others
        found.append(np.where(np.abs(centred) <= numerics.resolution * size, 0.0, centred))
    if not config.scaled:
        return found
    power = math.fsum(float(np.mean(advantages**2)) for advantages in found) / len(found)
    return [advantages / scale(math.sqrt(power), numerics) for advantages in found]
