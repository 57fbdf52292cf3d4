from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import GroupMember, group_advantages, keep_groups


def members(rewards: dict[str, list[float | None]]) -> list[GroupMember]:
    return [
        GroupMember(rollout_id=f"{group_id}-{n}", group_id=group_id, reward=reward)
        for group_id, group in rewards.items()
        for n, reward in enumerate(group)
    ]


def test_groups_that_say_nothing_are_dropped_and_counted_by_cause() -> None:
    kept = keep_groups(
        group_advantages(
            members(
                {
                    "solved": [1.0, 1.0],
                    "mixed": [1.0, None, 0.0],
                    "lost": [None, None],
                    "alone": [1.0, None],
                    "unsolved": [0.0, 0.0, 0.0],
                    "graded": [0.0, 0.5, 1.0],
                }
            )
        )
    )
    assert kept.group_ids == ("mixed", "graded")
    assert kept.dropped == {"equal_rewards": 2, "no_reward": 1, "one_reward": 1}


def test_a_kept_group_keeps_a_rollout_of_advantage_zero() -> None:
    advantages = group_advantages(members({"g": [0.0, 0.5, 1.0]}))
    assert advantages.values["g-1"] == 0.0
    assert keep_groups(advantages).group_ids == ("g",)


@given(
    rewards=st.dictionaries(
        st.sampled_from("abcdef"), st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4)
    )
)
def test_a_group_is_kept_if_and_only_if_its_rewards_differ(rewards: dict[str, list[float | None]]) -> None:
    kept = keep_groups(group_advantages(members(rewards)))
    differ = {name for name, group in rewards.items() if len({reward for reward in group if reward is not None}) > 1}
    assert set(kept.group_ids) == differ
    assert len(kept.group_ids) + sum(kept.dropped.values()) == len(rewards)
