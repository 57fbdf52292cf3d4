from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import GroupMember, GroupStatistics, group_advantages, keep_groups
from whippletree.batching.config import (
    AdvantageConfig,
    BatchingConfig,
    FunctionFilter,
    PassRateFilter,
    VotersFilter,
    ZeroAdvantageFilter,
)
from whippletree.configuration import convert
from whippletree.errors import ConfigurationError


def members(rewards: dict[str, list[float | None]]) -> list[GroupMember]:
    return [
        GroupMember(rollout_id=f"{group_id}-{n}", group_id=group_id, reward=reward)
        for group_id, group in rewards.items()
        for n, reward in enumerate(group)
    ]


BATCH: dict[str, list[float | None]] = {
    "alone": [1.0, None],
    "graded": [0.0, 0.5, 0.9],
    "lost": [None, None],
    "mixed": [1.0, None, 0.0],
    "solved": [1.0, 1.0],
    "unsolved": [0.0, 0.0, 0.0],
}


def test_groups_that_say_nothing_are_dropped_and_counted_by_cause() -> None:
    kept = keep_groups(group_advantages(members(BATCH)))
    assert kept.group_ids == ("graded", "mixed")
    assert kept.counts == {
        "zero-advantage: equal_rewards": 2,
        "zero-advantage: no_reward": 1,
        "zero-advantage: one_reward": 1,
    }
    assert {group.group_id for group in kept.dropped} == {"alone", "lost", "solved", "unsolved"}


def test_the_band_is_judged_on_the_share_of_passed_voters() -> None:
    kept = keep_groups(group_advantages(members(BATCH)), [PassRateFilter()])
    assert kept.group_ids == ("mixed",)
    assert kept.counts == {"pass-rate: none_passed": 2, "pass-rate: all_passed": 2, "pass-rate: no_reward": 1}
    quarter = group_advantages(members({"g": [1.0, 0.0, 0.0, 0.0], "h": [1.0, 1.0, 1.0, 0.0]}))
    assert keep_groups(quarter, [PassRateFilter(low=0.25, high=0.75)]).group_ids == ("g", "h")
    assert keep_groups(quarter, [PassRateFilter(low=0.3, high=0.7)]).counts == {
        "pass-rate: too_hard": 1,
        "pass-rate: too_easy": 1,
    }
    everything = keep_groups(quarter, [PassRateFilter(low=0.0, high=1.0)])
    assert (everything.group_ids, everything.dropped) == (("g", "h"), ())


def test_filters_are_applied_in_order_and_a_group_is_counted_once() -> None:
    advantages = group_advantages(members(BATCH))
    first = keep_groups(advantages, [VotersFilter(least=2), PassRateFilter(low=0.01, high=1.0), ZeroAdvantageFilter()])
    assert first.group_ids == ("mixed",)
    assert first.counts == {"voters: few_voters": 2, "pass-rate: none_passed": 2, "zero-advantage: equal_rewards": 1}
    other = keep_groups(advantages, [ZeroAdvantageFilter(), PassRateFilter(low=0.01, high=1.0), VotersFilter(least=2)])
    assert other.group_ids == first.group_ids
    assert other.counts == {
        "zero-advantage: equal_rewards": 2,
        "zero-advantage: no_reward": 1,
        "zero-advantage: one_reward": 1,
        "pass-rate: none_passed": 1,
    }


def test_a_batch_baseline_keeps_groups_of_equal_rewards_that_it_gives_an_advantage() -> None:
    advantages = group_advantages(members(BATCH), AdvantageConfig(estimator="reinforce++"))
    assert keep_groups(advantages).group_ids == ("alone", "graded", "mixed", "solved", "unsolved")


def test_a_kept_group_keeps_a_rollout_of_advantage_zero() -> None:
    advantages = group_advantages(members({"g": [0.0, 0.5, 1.0]}))
    assert advantages.values["g-1"] == 0.0
    assert keep_groups(advantages).group_ids == ("g",)


some = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4)
)


@given(rewards=some)
def test_a_group_is_kept_if_and_only_if_its_rewards_differ(rewards: dict[str, list[float | None]]) -> None:
    kept = keep_groups(group_advantages(members(rewards)))
    differ = {name for name, group in rewards.items() if len({reward for reward in group if reward is not None}) > 1}
    assert set(kept.group_ids) == differ
    assert len(kept.group_ids) + len(kept.dropped) == len(rewards)


filters = st.lists(
    st.builds(PassRateFilter, low=st.floats(0, 0.5), high=st.floats(0.5, 1))
    | st.builds(VotersFilter, least=st.integers(1, 4))
    | st.just(ZeroAdvantageFilter()),
    max_size=4,
)


@given(rewards=some, chain=filters, data=st.data())
def test_every_group_is_kept_or_counted_once_in_every_order_of_rollouts(
    rewards: dict[str, list[float | None]], chain: list[Any], data: st.DataObject
) -> None:
    batch = members(rewards)
    kept = keep_groups(group_advantages(batch), chain)
    assert sorted([*kept.group_ids, *(group.group_id for group in kept.dropped)]) == sorted(rewards)
    assert sum(kept.counts.values()) == len(kept.dropped)
    assert keep_groups(group_advantages(data.draw(st.permutations(batch))), chain) == kept
    assert keep_groups(group_advantages(batch), []).group_ids == tuple(sorted(rewards))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(group: GroupStatistics, settings: FunctionFilter) -> str:
        return "large" if group.members > settings.settings["most"] else ""

    module = types.ModuleType("own_filters")
    module.__dict__.update(large=large, truth=lambda group, settings: True)
    monkeypatch.setitem(sys.modules, "own_filters", module)


@pytest.mark.usefixtures("own")
def test_a_users_own_filter() -> None:
    advantages = group_advantages(members(BATCH))
    kept = keep_groups(advantages, [ZeroAdvantageFilter(), FunctionFilter(function="own_filters:large", settings={"most": 2})])
    assert kept.group_ids == ()
    assert kept.counts["own_filters:large: large"] == 2
    with pytest.raises(ConfigurationError, match="own_filters:truth' gave True"):
        keep_groups(advantages, [FunctionFilter(function="own_filters:truth")])


def test_the_configuration_names_filters_by_kind() -> None:
    config = convert(BatchingConfig, {"filters": [{"kind": "pass-rate", "low": 0.2}, {"kind": "zero-advantage"}]}, "run.toml")
    assert config.filters == (PassRateFilter(low=0.2), ZeroAdvantageFilter())
    with pytest.raises(ConfigurationError, match=r"filters.0.kind is 'pass-rat' \(did you mean pass-rate\?"):
        convert(BatchingConfig, {"filters": [{"kind": "pass-rat"}]}, "run.toml")
    with pytest.raises(ConfigurationError, match="above high"):
        convert(BatchingConfig, {"filters": [{"kind": "pass-rate", "low": 0.8, "high": 0.2}]}, "run.toml")
