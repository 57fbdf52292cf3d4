"""What the tests of batching are made of."""

from __future__ import annotations

from typing import Any

from whippletree.batching import GroupMember


def member(name: str, reward: float | None, **metadata: Any) -> GroupMember:
    """The first letter of a rollout's name is its group."""
    return GroupMember(rollout_id=name, group_id=name[0], reward=reward, **metadata)
