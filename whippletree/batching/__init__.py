"""Advantages, loss weights and packing plans: pure functions on arrays and metadata.

members ─► group_advantages ─► keep_groups ─► the rollouts that have something to teach
samples ─► loss_weights     ─► weight of each trained token
samples ─► plan_rows        ─► rows of one update
"""

from whippletree.batching.advantages import Advantages, GroupMember, GroupStatistics, group_advantages
from whippletree.batching.filters import KeptGroups, keep_groups
from whippletree.batching.packing import Plan, PlannedRow, SampleLength, plan_rows
from whippletree.batching.weights import LossWeights, SampleTokens, loss_weights

__all__ = [
    "Advantages",
    "GroupMember",
    "GroupStatistics",
    "KeptGroups",
    "LossWeights",
    "Plan",
    "PlannedRow",
    "SampleLength",
    "SampleTokens",
    "group_advantages",
    "keep_groups",
    "loss_weights",
    "plan_rows",
]
