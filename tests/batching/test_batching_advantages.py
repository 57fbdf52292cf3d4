from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import GroupMember, group_advantages
from whippletree.batching.advantages import Baseline, Std
from whippletree.errors import AlignmentError, ConfigurationError

CHOICES: list[tuple[Baseline, Std]] = list(itertools.product(("mean", "leave-one-out"), ("sample", "population", "none")))


def group(rewards: list[float | None], group_id: str = "g") -> list[GroupMember]:
    return [GroupMember(rollout_id=f"{group_id}-{n}", group_id=group_id, reward=reward) for n, reward in enumerate(rewards)]


def values(rewards: list[float | None], baseline: Baseline = "mean", std: Std = "none", eps: float = 1e-4) -> list[float]:
    return list(group_advantages(group(rewards), baseline=baseline, std=std, eps=eps).values.values())


def test_figure_4_the_baseline_has_one_vote_per_rollout() -> None:
    """Rollout 1 (reward 1) split into three samples, rollout 2 (reward 0) is one: the baseline is 1/2, not 3/4."""
    result = group_advantages(group([1.0, 0.0]), std="none")
    assert result.groups[0].mean == Fraction(1, 2)
    assert result.values == {"g-0": Fraction(1, 2), "g-1": Fraction(-1, 2)}


def test_a_rollout_listed_once_per_sample_is_refused() -> None:
    members = group([1.0, 0.0])
    with pytest.raises(AlignmentError, match="g-0 is listed twice"):
        group_advantages([members[0], members[0], members[0], members[1]])


def test_formulas() -> None:
    rewards: list[float | None] = [1.0, 0.0, 0.0, 0.0]
    mean, sample, population = 1 / 4, math.sqrt(3 / 4 / 3), math.sqrt(3 / 4 / 4)
    centred = [0.75, -0.25, -0.25, -0.25]
    assert values(rewards) == centred
    assert values(rewards, std="sample", eps=0.5) == pytest.approx([c / (sample + 0.5) for c in centred], rel=1e-15)
    assert values(rewards, std="population", eps=0.0) == pytest.approx([c / population for c in centred], rel=1e-15)
    assert values(rewards, baseline="leave-one-out") == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], rel=1e-15)
    statistics = group_advantages(group(rewards)).groups[0]
    assert (statistics.mean, statistics.std, statistics.voters, statistics.signal) == (mean, pytest.approx(0.5), 4, "signal")


def test_rollouts_without_a_usable_reward_have_no_vote_and_are_counted() -> None:
    result = group_advantages(group([1.0, None, 0.0, math.nan, math.inf, -math.inf, 1e101, None]), std="none")
    assert result.values == {"g-0": 0.5, "g-2": -0.5}
    assert result.excluded == {"no_reward": 2, "invalid_reward": 4}
    assert (result.groups[0].members, result.groups[0].voters) == (8, 2)


@pytest.mark.parametrize(("baseline", "std"), CHOICES)
@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([1.0], "one_reward"),
        ([1.0, None, None], "one_reward"),
        ([0.1] * 3, "equal_rewards"),  # their mean is not 0.1 in float64
        ([0.3, 0.1 + 0.2], "equal_rewards"),
        ([1e99] * 5, "equal_rewards"),
        ([None, math.nan], "no_reward"),
    ],
)
def test_a_group_that_says_nothing_gives_exactly_zero(
    rewards: list[float | None], signal: str, baseline: Baseline, std: Std
) -> None:
    result = group_advantages(group(rewards), baseline=baseline, std=std, eps=0.0)
    assert all(value == 0.0 for value in result.values.values())
    assert result.groups[0].signal == signal


usable = st.floats(-1e100, 1e100) | st.sampled_from([0.0, 1.0, 0.5, 1e-300, 1e-12])
anything = st.none() | usable | st.floats(allow_nan=True, allow_infinity=True)


@given(
    rewards=st.lists(anything, max_size=9),
    choice=st.sampled_from(CHOICES),
    eps=st.sampled_from([0.0, 1e-300, 1e-6, 1e-4, 1.0]),
)
def test_nothing_non_finite_ever_comes_out(rewards: list[float | None], choice: tuple[Baseline, Std], eps: float) -> None:
    result = group_advantages(group(rewards), baseline=choice[0], std=choice[1], eps=eps)
    assert all(math.isfinite(value) for value in result.values.values())
    assert all(math.isfinite(one.mean) and math.isfinite(one.std) for one in result.groups)
    assert len(result.values) + sum(result.excluded.values()) == len(rewards)


@given(rewards=st.lists(st.floats(-10, 10), min_size=1, max_size=9), choice=st.sampled_from(CHOICES))
def test_advantages_of_a_group_sum_to_zero(rewards: list[float | None], choice: tuple[Baseline, Std]) -> None:
    given_values = values(rewards, *choice)
    assert abs(math.fsum(given_values)) <= 1e-9 * max(1.0, *map(abs, given_values))


@given(data=st.data(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_an_advantage_depends_on_its_own_group_alone_and_on_no_order(data: st.DataObject, sizes: list[int]) -> None:
    groups = [
        group(data.draw(st.lists(anything, min_size=size, max_size=size)), f"g{number}") for number, size in enumerate(sizes)
    ]
    apart: dict[str, float] = {}
    for members in groups:
        apart |= group_advantages(members).values
    together = group_advantages(data.draw(st.permutations([member for members in groups for member in members])))
    assert together.values == apart


@pytest.mark.parametrize("eps", [-1e-9, math.nan, math.inf])
def test_a_useless_eps_is_refused(eps: float) -> None:
    with pytest.raises(ConfigurationError, match="eps"):
        group_advantages([], eps=eps)


def test_an_empty_batch_has_no_advantages() -> None:
    result = group_advantages([])
    assert (result.values, result.groups, result.excluded) == ({}, (), {})
