"""Advantages, shaping, filters, loss weights and packing plans: pure functions on arrays and metadata.

members ─► shape_rewards ─► group_advantages ─► keep_groups ─► the rollouts that have something to teach
samples ─► loss_weights ─► weight of each trained token
samples, prefix_order ─► plan_batch ─► rows of each update and rank

`judge` is the first two lines in one call, `prepare` all of it.
"""

from whippletree.batching.advantages import Advantages, GroupMember, GroupStatistics, group_advantages
from whippletree.batching.call_advantages import CallAdvantages, CallRewards, call_advantages
from whippletree.batching.config import BatchingConfig
from whippletree.batching.filters import DroppedGroup, KeptGroups, keep_groups
from whippletree.batching.gae import Path, TokenAdvantages, path_advantages
from whippletree.batching.packing import PlannedRow, SampleLength
from whippletree.batching.prepare import Judged, Prepared, SampleFacts, Swept, check_names, judge, prepare, sweep_stale
from whippletree.batching.ranks import BatchPlan, UpdatePlan, plan_batch
from whippletree.batching.shaping import HookRecord, Shaped, shape_rewards
from whippletree.batching.trees import Packing, Part, PrefixOrder, prefix_order
from whippletree.batching.weights import LossWeights, SampleTokens, loss_weights

__all__ = [
    "Advantages",
    "BatchPlan",
    "BatchingConfig",
    "CallAdvantages",
    "CallRewards",
    "DroppedGroup",
    "GroupMember",
    "GroupStatistics",
    "HookRecord",
    "Judged",
    "KeptGroups",
    "LossWeights",
    "Packing",
    "Part",
    "Path",
    "PlannedRow",
    "PrefixOrder",
    "Prepared",
    "SampleFacts",
    "SampleLength",
    "SampleTokens",
    "Shaped",
    "Swept",
    "TokenAdvantages",
    "UpdatePlan",
    "call_advantages",
    "check_names",
    "group_advantages",
    "judge",
    "keep_groups",
    "loss_weights",
    "path_advantages",
    "plan_batch",
    "prefix_order",
    "prepare",
    "shape_rewards",
    "sweep_stale",
]
