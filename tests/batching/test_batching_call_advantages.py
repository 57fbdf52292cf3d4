from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import (
    BatchingConfig,
    CallRewards,
    GroupMember,
    SampleFacts,
    call_advantages,
    group_advantages,
    judge,
)
from whippletree.batching.config import AdvantageConfig, CallAdvantageConfig
from whippletree.errors import AlignmentError

PLAIN = CallAdvantageConfig(scaled=False)
Rewards = Sequence[float | None]


def rollouts(groups: dict[str, Sequence[Rewards]]) -> list[CallRewards]:
    return [
        CallRewards(rollout_id=f"{name}{number}", group_id=name, rewards=tuple(one))
        for name, group in groups.items()
        for number, one in enumerate(group)
    ]


def values(*group: Rewards, config: CallAdvantageConfig = PLAIN) -> list[tuple[float, ...]]:
    return list(call_advantages(rollouts({"g": group}), config).values.values())


# --- the bias --------------------------------------------------------------------------------------------------------------

LIMIT = 4  # calls at most
GO_ON = Fraction(1, 2)  # the policy's probability of one more call
BONUS = Fraction(1, 4)  # for every call


def naive(group: Sequence[Sequence[float]]) -> list[list[float]]:
    """Rewards normalised turn by turn over the rollouts that have that turn, then summed from each call on."""
    means = [
        sum(one[turn] for one in group if len(one) > turn) / sum(1 for one in group if len(one) > turn)
        for turn in range(max(map(len, group)))
    ]
    return [
        [sum(reward - means[turn] for turn, reward in enumerate(one) if turn >= call) for call in range(len(one))]
        for one in group
    ]


def ours(group: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return values(*group)


def whole_return(group: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[sum(one[call:]) for call in range(len(one))] for one in group]


def expected_gradient(
    advantages: Callable[[Sequence[Sequence[float]]], Sequence[Sequence[float]]], final: Fraction
) -> tuple[Fraction, ...]:
    """Exact expectation, over all groups of two rollouts, of mean over rollouts of the sum of advantage × d log pi / d logit
    for each of the decisions "take one more call" after call 1, 2, ...; `final` is paid with the last call."""
    chances = {length: GO_ON ** (length - 1) * ((1 - GO_ON) if length < LIMIT else 1) for length in range(1, LIMIT + 1)}
    gradient = [Fraction(0)] * (LIMIT - 1)
    for lengths in itertools.product(chances, repeat=2):
        group = [[float(BONUS)] * (length - 1) + [float(BONUS + final * length)] for length in lengths]
        for length, found in zip(lengths, advantages(group), strict=True):
            for call in range(min(length, LIMIT - 1)):
                score = (1 - GO_ON) if call + 1 < length else -GO_ON
                gradient[call] += math.prod(chances[one] for one in lengths) * Fraction(found[call]) * score / 2
    return tuple(gradient)


@pytest.mark.parametrize("final", [Fraction(0), Fraction(1, 2), Fraction(-1, 8)])
def test_the_expected_gradient_is_that_of_the_return_and_the_naive_one_is_not(final: Fraction) -> None:
    truth = expected_gradient(whole_return, final)
    assert expected_gradient(ours, final) == truth
    assert all(value != 0 for value in truth)
    assert expected_gradient(naive, final) != truth


def test_the_naive_bias_is_minus_the_mean_reward_of_each_further_call() -> None:
    """With a constant bonus alone: one more call is worth the bonus and what follows, and naively it is worth nothing."""
    assert expected_gradient(naive, Fraction(0)) == (0, 0, 0)
    worth = [BONUS * sum(GO_ON**further for further in range(LIMIT - call)) for call in range(1, LIMIT)]
    reached = [GO_ON ** (call - 1) for call in range(1, LIMIT)]
    slope = GO_ON * (1 - GO_ON)
    truth = tuple(chance * slope * value for chance, value in zip(reached, worth, strict=True))
    assert expected_gradient(ours, Fraction(0)) == truth


# --- rules -----------------------------------------------------------------------------------------------------------------


def test_formula() -> None:
    found = values((0.25, 1.0), (0.5, 0.25, 0.25, 0.0))
    assert found == [(1.25 - 1.0, 1.0 - 0.5), (1.0 - 1.25, 0.5 - 1.0, 0.25 - 1.0, 0.0 - 1.0)]
    discounted = values((1.0, 1.0), (0.0,), config=CallAdvantageConfig(gamma=0.5, scaled=False))
    assert discounted == [(1.5, 1.0), (-1.5,)]


@given(outcomes=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 4)), min_size=2, max_size=6))
def test_with_a_reward_at_the_end_alone_every_call_gets_the_advantage_of_its_rollout(outcomes: list[tuple[float, int]]) -> None:
    found = values(*[(0.0,) * (calls - 1) + (reward,) for reward, calls in outcomes])
    members = [GroupMember(rollout_id=f"g{n}", group_id="g", reward=reward) for n, (reward, _) in enumerate(outcomes)]
    expected = group_advantages(members, AdvantageConfig(estimator="rloo")).values
    for own, (_, calls) in enumerate(outcomes):
        assert found[own] == pytest.approx([expected[f"g{own}"]] * calls, abs=1e-12)
    scaled = values(*[(0.0,) * (calls - 1) + (reward,) for reward, calls in outcomes], config=CallAdvantageConfig())
    settings = AdvantageConfig(std="population", min_std=0.0, eps=0.0)
    expected = group_advantages(members, settings).values
    for own, (_, calls) in enumerate(outcomes):
        assert scaled[own] == pytest.approx([expected[f"g{own}"]] * calls, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("config", [PLAIN, CallAdvantageConfig()])
def test_rollouts_that_were_rewarded_alike_and_groups_of_one_get_exactly_zero(config: CallAdvantageConfig) -> None:
    assert values((0.1, 0.7, 0.3), (0.1, 0.7, 0.3), (0.1, 0.7, 0.3), config=config) == [(0.0, 0.0, 0.0)] * 3
    assert values((0.1, 0.7), config=config) == [(0.0, 0.0)]
    assert values((0.1,), (None,), config=config) == [(0.0,)]


def test_a_rollout_with_a_call_without_a_usable_reward_is_left_out_and_counted() -> None:
    found = call_advantages(
        rollouts({"g": [(1.0,), (0.0,), (0.5, None), (math.nan,), ()], "lost": [(None,)]}), CallAdvantageConfig(scaled=False)
    )
    assert found.values == {"g0": (1.0,), "g1": (-1.0,)}
    assert found.excluded == {"no_reward": 3, "invalid_reward": 1}
    with pytest.raises(AlignmentError, match="g0 is listed twice"):
        call_advantages(rollouts({"g": [(1.0,)]}) * 2)


usable = st.floats(-1e100, 1e100) | st.sampled_from([0.0, 1.0, 1e-300])
some = st.lists(st.lists(st.none() | usable | st.floats(), max_size=4), max_size=5)


@given(groups=st.dictionaries(st.sampled_from("abc"), some), gamma=st.floats(0, 1), scaled=st.booleans(), data=st.data())
def test_whatever_comes_in_values_are_finite_one_per_call_and_independent_of_order(
    groups: dict[str, list[list[float | None]]], gamma: float, scaled: bool, data: st.DataObject
) -> None:
    batch = rollouts(groups)
    config = CallAdvantageConfig(gamma=gamma, scaled=scaled)
    for numerics in (AdvantageConfig(), AdvantageConfig(eps=0.0, min_std=0.0, resolution=0.0)):
        found = call_advantages(batch, config, numerics)
        assert len(found.values) + sum(found.excluded.values()) == len(batch)
        calls = {one.rollout_id: len(one.rewards) for one in batch}
        for name, advantages in found.values.items():
            assert len(advantages) == calls[name]
            assert all(map(math.isfinite, advantages))
        assert call_advantages(data.draw(st.permutations(batch)), config, numerics) == found


def members(*rows: tuple[float | None, tuple[float | None, ...]]) -> list[GroupMember]:
    return [
        GroupMember(rollout_id=f"g{n}", group_id="g", reward=reward, call_rewards=calls)
        for n, (reward, calls) in enumerate(rows)
    ]


def test_in_a_batch_the_rollouts_own_reward_is_paid_at_its_last_call() -> None:
    config = BatchingConfig(
        advantages=AdvantageConfig(estimator="per-call"), calls=CallAdvantageConfig(scaled=False, outcome=0.5)
    )
    judged = judge(members((1.0, (0.25, 0.5)), (0.0, (0.5, 0.25, 0.25, 0.0))), [], config)
    first, second = values((0.25, 0.5 + 0.5), (0.5, 0.25, 0.25, 0.0))
    assert judged.advantages.calls == {"g0": first, "g1": second}
    assert judged.advantages.values == {"g0": pytest.approx(sum(first) / 2), "g1": pytest.approx(sum(second) / 4)}
    (group,) = judged.advantages.groups
    assert (group.voters, group.passed, group.signal, group.nonzero) == (2, 1, "signal", 2)
    assert judged.kept.group_ids == ("g",)


def test_a_rollout_whose_calls_balance_out_is_trained_and_one_that_is_silent_in_each_is_not() -> None:
    config = BatchingConfig(advantages=AdvantageConfig(estimator="per-call"), calls=CallAdvantageConfig(scaled=False))
    samples = [SampleFacts(sample_id=f"g{n}.0", rollout_id=f"g{n}", tokens=9, trained_tokens=4) for n in range(3)]
    # returns (1, 0), (0, 1), (0.5, 0.5): g0 and g1 have a mean of 0, and g2 is the mean of the others in each call
    judged = judge(members((0.0, (1.0, 0.0)), (0.0, (-1.0, 1.0)), (0.0, (0.0, 0.5))), samples, config)
    assert judged.advantages.calls["g0"] == (0.75, -0.75)
    assert judged.advantages.values["g0"] == judged.advantages.values["g1"] == 0.0
    assert judged.trained == ("g0.0", "g1.0")
    assert judged.left_out == {"zero_advantage": 1}


def test_groups_that_say_nothing_are_dropped_with_the_reason_and_a_damaged_record_has_no_vote() -> None:
    config = BatchingConfig(advantages=AdvantageConfig(estimator="per-call"))
    equal = judge(members((1.0, (0.5, 0.0)), (1.0, (0.5, 0.0))), [], config)
    assert equal.kept.counts == {"zero-advantage: equal_rewards": 1}
    damaged = judge(members((1.0, (None, None)), (0.0, (0.5,)), (None, ())), [], config)
    assert damaged.advantages.excluded == {"no_reward": 2}
    assert damaged.kept.counts == {"zero-advantage: one_reward": 1}
    assert judge(members((None, ())), [], config).advantages.alarms == ("no rollout has a reward in 1 of 1 groups, e.g. g",)
