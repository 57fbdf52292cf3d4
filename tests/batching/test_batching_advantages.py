from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import GroupMember, group_advantages
from whippletree.batching.config import AdvantageConfig
from whippletree.batching.estimators import ESTIMATORS, Float64
from whippletree.configuration import convert
from whippletree.errors import AlignmentError, ConfigurationError, NonFiniteError

NAMES = tuple(ESTIMATORS.shipped)
OF_GROUP = ("grpo", "dr-grpo", "rloo", "rloo-scaled")
by_name = pytest.mark.parametrize("name", NAMES)


def group(rewards: Sequence[float | None], group_id: str = "g") -> list[GroupMember]:
    return [GroupMember(rollout_id=f"{group_id}-{n}", group_id=group_id, reward=reward) for n, reward in enumerate(rewards)]


def values(rewards: Sequence[float | None], name: str = "grpo", **settings: Any) -> list[float]:
    return list(group_advantages(group(rewards), AdvantageConfig(estimator=name, **settings)).values.values())


# --- one vote per rollout --------------------------------------------------------------------------------------------------


def test_figure_4_the_baseline_has_one_vote_per_rollout() -> None:
    """Rollout 1 (reward 1) split into three samples, rollout 2 (reward 0) is one: the baseline is 1/2; over samples it would
    have been 3/4."""
    result = group_advantages(group([1.0, 0.0]), AdvantageConfig(estimator="dr-grpo"))
    assert Fraction(result.groups[0].mean) == Fraction(1 + 0, 2)
    assert {name: Fraction(value) for name, value in result.values.items()} == {"g-0": Fraction(1, 2), "g-1": Fraction(-1, 2)}
    over_samples = group_advantages(group([1.0, 1.0, 1.0, 0.0]), AdvantageConfig(estimator="dr-grpo"))
    assert Fraction(over_samples.groups[0].mean) == Fraction(1 + 1 + 1 + 0, 4)


def test_a_rollout_listed_once_per_sample_is_refused() -> None:
    members = group([1.0, 0.0])
    with pytest.raises(AlignmentError, match="g-0 is listed twice"):
        group_advantages([members[0], members[0], members[0], members[1]])


# --- formulas ----------------------------------------------------------------------------------------------------------------


def test_formulas_of_a_group() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0]
    sample, population = math.sqrt(3 / 4 / 3), math.sqrt(3 / 4 / 4)
    centred = [0.75, -0.25, -0.25, -0.25]
    assert values(rewards, "dr-grpo") == centred
    assert values(rewards, "grpo", eps=0.5) == pytest.approx([c / (sample + 0.5) for c in centred], rel=1e-15)
    assert values(rewards, "grpo", std="population", eps=0.0) == pytest.approx([c / population for c in centred], rel=1e-15)
    assert values(rewards, "rloo") == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], rel=1e-15)
    assert values(rewards, "rloo-scaled", eps=0.0) == pytest.approx(
        [value / sample for value in (1.0, -1 / 3, -1 / 3, -1 / 3)], rel=1e-15
    )
    statistics = group_advantages(group(rewards)).groups[0]
    assert (statistics.mean, statistics.std, statistics.voters, statistics.signal) == (0.25, pytest.approx(0.5), 4, "signal")
    assert (statistics.passed, statistics.nonzero) == (1, 4)


@given(rewards=st.lists(st.integers(-8, 8), min_size=2, max_size=8))
def test_leave_one_out_is_the_mean_of_the_others(rewards: list[int]) -> None:
    found = values([reward / 4 for reward in rewards], "rloo")
    for own, value in enumerate(found):
        others = [Fraction(reward, 4) for number, reward in enumerate(rewards) if number != own]
        assert value == pytest.approx(float(Fraction(rewards[own], 4) - sum(others) / len(others)), abs=1e-14)


def test_formulas_of_a_batch() -> None:
    members = [*group([1.0, 0.0], "a"), *group([1.0, 1.0, 1.0, 0.5], "b"), *group([0.0], "c")]
    rewards = [1.0, 0.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    expected = (np.array(rewards) - np.mean(rewards)) / np.std(rewards)
    settings: dict[str, Any] = {"std": "population", "eps": 0.0}
    found = group_advantages(members, AdvantageConfig(estimator="reinforce++", **settings)).values
    assert list(found.values()) == pytest.approx(expected.tolist(), rel=1e-14)
    centred = [0.5, -0.5, 0.125, 0.125, 0.125, -0.375, 0.0]
    found = group_advantages(members, AdvantageConfig(estimator="reinforce++-baseline", **settings)).values
    assert list(found.values()) == pytest.approx([c / np.std(centred) for c in centred], rel=1e-14)


def test_a_batch_baseline_gives_groups_of_one_a_signal() -> None:
    members = [
        GroupMember(rollout_id=name, group_id=name, reward=reward) for name, reward in zip("abc", (1.0, 0.0, 0.0), strict=True)
    ]
    found = group_advantages(members, AdvantageConfig(estimator="reinforce++")).values
    assert found["a"] > 0.0 > found["b"] == found["c"]
    assert not any(group_advantages(members).values.values())


# --- groups that say nothing -------------------------------------------------------------------------------------------------


def test_rollouts_without_a_usable_reward_have_no_vote_and_are_counted() -> None:
    rewards = [1.0, None, 0.0, math.nan, math.inf, -math.inf, 1e101, None]
    result = group_advantages(group(rewards), AdvantageConfig(estimator="dr-grpo"))
    assert result.values == {"g-0": 0.5, "g-2": -0.5}
    assert result.excluded == {"no_reward": 2, "invalid_reward": 4}
    assert (result.groups[0].members, result.groups[0].voters) == (8, 2)


@by_name
@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([1.0], "one_reward"),
        ([1.0, None, None], "one_reward"),
        ([0.1] * 3, "equal_rewards"),  # their mean is not 0.1 in float64
        ([0.3, 0.1 + 0.2], "equal_rewards"),
        ([float(np.float32(0.3)), 0.3], "equal_rewards"),
        ([1e99] * 5, "equal_rewards"),
        ([None, math.nan], "no_reward"),
    ],
)
def test_a_group_that_says_nothing_gives_exactly_zero(rewards: list[float | None], signal: str, name: str) -> None:
    result = group_advantages(group(rewards), AdvantageConfig(estimator=name, eps=0.0, min_std=0.0))
    assert all(value == 0.0 for value in result.values.values())
    assert (result.groups[0].signal, result.groups[0].nonzero) == (signal, 0)


def test_a_small_standard_deviation_counts_as_min_std() -> None:
    small = [0.5, 0.5002]
    assert values(small, min_std=0.1, eps=0.0) == pytest.approx([-0.001, 0.001], rel=1e-9)
    assert values(small, min_std=0.0, eps=0.0) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-9)


def test_a_group_that_lost_all_its_rollouts_is_an_alarm_and_one_of_zeros_is_not() -> None:
    lost = group_advantages([*group([None, None], "lost"), *group([0.0, 0.0], "zeros")])
    assert lost.alarms == ("no rollout has a reward in 1 of 2 groups, e.g. lost",)
    assert group_advantages(group([0.0, 0.0])).alarms == ()


def test_partial_credit_is_no_alarm_though_nothing_passed() -> None:
    found = group_advantages(group([0.2, 0.0, 0.6]))
    assert (found.groups[0].passed, found.groups[0].outcomes_differ, found.unearned, found.alarms) == (0, True, 0.0, ())


def test_advantages_of_groups_that_failed_alike_are_measured() -> None:
    solved = group([1.0, 0.0], "solved")
    shaped = [GroupMember(rollout_id=f"f{n}", group_id="f", reward=0.01 * n, outcome=0.0) for n in range(2)]
    config = AdvantageConfig(estimator="dr-grpo")
    found = group_advantages([*solved, *shaped], config)
    assert found.unearned == pytest.approx(0.01 / 1.01)
    assert found.alarms == ()
    assert group_advantages(shaped, config).unearned == 1.0
    assert "100% of the advantages" in group_advantages(shaped, config).alarms[0]


# --- whatever comes in ------------------------------------------------------------------------------------------------------

usable = st.floats(-1e100, 1e100) | st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1e-12])
anything = st.none() | usable | st.floats(allow_nan=True, allow_infinity=True)
small = st.sampled_from([0.0, 1e-300, 1e-6, 1e-4, 1.0])


@given(
    rewards=st.lists(st.lists(anything, max_size=6), max_size=3),
    name=st.sampled_from(NAMES),
    eps=small,
    min_std=small,
    resolution=small,
)
def test_nothing_non_finite_ever_comes_out(
    rewards: list[list[float | None]], name: str, eps: float, min_std: float, resolution: float
) -> None:
    members = [member for number, one in enumerate(rewards) for member in group(one, f"g{number}")]
    result = group_advantages(members, AdvantageConfig(estimator=name, eps=eps, min_std=min_std, resolution=resolution))
    assert all(math.isfinite(value) for value in result.values.values())
    assert all(math.isfinite(one.mean) and math.isfinite(one.std) for one in result.groups)
    assert len(result.values) + sum(result.excluded.values()) == len(members)


@given(rewards=st.lists(st.floats(-10, 10), min_size=1, max_size=9), name=st.sampled_from(NAMES))
def test_advantages_are_centred(rewards: list[float], name: str) -> None:
    found = values(rewards, name)
    assert abs(math.fsum(found)) <= 1e-9 * max(1.0, *map(abs, found))


@given(rewards=st.lists(st.floats(-10, 10), min_size=2, max_size=64), name=st.sampled_from(["grpo", "rloo-scaled"]))
def test_a_shared_scale_bounds_every_advantage(rewards: list[float], name: str) -> None:
    assert max(map(abs, values(rewards, name))) <= math.sqrt(len(rewards)) * (1 + 1e-9)


batches = st.lists(st.lists(anything, min_size=1, max_size=5), min_size=1, max_size=5)


@given(data=st.data(), rewards=batches, name=st.sampled_from(OF_GROUP))
def test_an_advantage_depends_on_its_own_group_alone(data: st.DataObject, rewards: list[Any], name: str) -> None:
    groups = [group(one, f"g{number}") for number, one in enumerate(rewards)]
    config = AdvantageConfig(estimator=name)
    apart: dict[str, float] = {}
    for members in groups:
        apart |= group_advantages(members, config).values
    members = data.draw(st.permutations(list(itertools.chain.from_iterable(groups))))
    assert group_advantages(members, config).values == apart


@given(data=st.data(), rewards=batches, name=st.sampled_from(NAMES))
def test_nothing_depends_on_the_order_of_rollouts(data: st.DataObject, rewards: list[Any], name: str) -> None:
    members = [member for number, one in enumerate(rewards) for member in group(one, f"g{number}")]
    config = AdvantageConfig(estimator=name)
    assert group_advantages(data.draw(st.permutations(members)), config) == group_advantages(members, config)


@by_name
def test_an_empty_batch_has_no_advantages(name: str) -> None:
    result = group_advantages([], AdvantageConfig(estimator=name))
    assert (result.values, result.groups, result.excluded, result.unearned) == ({}, (), {}, 0.0)


# --- configuration -----------------------------------------------------------------------------------------------------------


def test_useless_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="eps"):
        convert(AdvantageConfig, {"eps": -1e-9}, "run.toml")
    for bad in (math.nan, math.inf):
        with pytest.raises(ConfigurationError, match=r"give a finite number|>= 0"):
            convert(AdvantageConfig, {"min_std": bad}, "run.toml")
    with pytest.raises(ConfigurationError, match=r"run.toml: .*'grp' is not known: did you mean grpo\?"):
        convert(AdvantageConfig, {"estimator": "grp"}, "run.toml")


def ranked(rewards: Sequence[Float64], settings: AdvantageConfig) -> list[Float64]:
    return [np.argsort(np.argsort(one)) - (len(one) - 1) / 2 for one in rewards]


def one_less(rewards: Sequence[Float64], settings: AdvantageConfig) -> list[Float64]:
    return [one[1:] for one in rewards]


def divides(rewards: Sequence[Float64], settings: AdvantageConfig) -> list[Float64]:
    return [one + math.nan for one in rewards]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under a name that can be imported."""
    monkeypatch.setitem(sys.modules, "own_estimators", sys.modules[__name__])


@pytest.mark.usefixtures("own")
def test_a_users_own_estimator() -> None:
    assert values([0.5, 7.0, 1.0], "own_estimators:ranked") == [-1.0, 1.0, 0.0]
    with pytest.raises(AlignmentError, match=r"own_estimators:one_less.*other shapes"):
        values([0.5, 7.0], "own_estimators:one_less")
    with pytest.raises(NonFiniteError, match="own_estimators:divides"):
        values([0.5, 7.0], "own_estimators:divides")
