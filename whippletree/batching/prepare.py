"""The whole way from judged rollouts to a plan, on metadata alone.

    members ─► shaping ─► advantages ─► filters ─┐
                                                 ├─► samples that are trained ─► updates, micro-batches, ranks
    samples ─► loss weights ─────────────────────┘
               `judge`                                                            `plan_batch`
Advantages and weights are fixed on everything that has a vote; only then are rows dropped, each under one cause.

Invariants (tests/batching/test_batching_prepare.py):
- dropping a group, a stale sample or a rollout without advantage changes no advantage and no weight of another;
- a sample is planned once, or counted once under the first cause that leaves it out;
- rollouts and samples meet by id: no order of either changes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from whippletree.batching.advantages import Advantages, GroupMember, group_advantages
from whippletree.batching.call_advantages import per_call
from whippletree.batching.config import PER_CALL, BatchingConfig, PackingConfig, ZeroAdvantageFilter
from whippletree.batching.estimators import ESTIMATORS
from whippletree.batching.filters import FILTERS, KeptGroups, filter_name, keep_groups
from whippletree.batching.packing import SampleLength
from whippletree.batching.ranks import BatchPlan, plan_batch
from whippletree.batching.shaping import HOOKS, HookRecord, hook_name, shape_rewards
from whippletree.batching.trees import PrefixOrder
from whippletree.batching.weights import WEIGHTS, LossWeights, SampleTokens, loss_weights
from whippletree.errors import AlignmentError
from whippletree.types import Struct

LeftOut = Literal["no_vote", "nothing_trained", "stale", "no_teacher", "group_dropped", "zero_advantage"]


class SampleFacts(Struct):
    """What planning knows of a sample: its length and how many of its tokens it trains. `oldest_version` is the oldest policy
    version that sampled one of these (-1: not known).

    Example: SampleFacts(sample_id="s0003-g02-m5/0", rollout_id="s0003-g02-m5", tokens=412, trained_tokens=37, oldest_version=6)
    """

    sample_id: str
    rollout_id: str
    tokens: int
    trained_tokens: int
    oldest_version: int = -1


class Swept(Struct):
    """Samples that are too old to be trained, and how many trained tokens are wasted with them.

    Example: Swept(sample_ids=("s0003-g02-m5/0",), wasted_tokens=37)
    """

    sample_ids: tuple[str, ...]
    wasted_tokens: int


class Judged(Struct):
    """What a batch's rollouts have to teach. `trained`: the samples that are, in order of their names; `left_out` counts the
    others by cause, `left_out_tokens` their trained tokens.

    Example: Judged(advantages=Advantages(...), shaping=(), kept=KeptGroups(...), weights=LossWeights(...),
                    trained=("a/0", "a/1"), left_out={"zero_advantage": 3}, left_out_tokens={"zero_advantage": 120})
    """

    advantages: Advantages
    shaping: tuple[HookRecord, ...]
    kept: KeptGroups
    weights: LossWeights
    trained: tuple[str, ...]
    left_out: dict[LeftOut, int]
    left_out_tokens: dict[LeftOut, int]


class Prepared(Struct):
    """A batch that is ready to be packed.

    Example: Prepared(judged=Judged(...), plan=BatchPlan(...))
    """

    judged: Judged
    plan: BatchPlan


def sweep_stale(samples: Sequence[SampleFacts], *, policy_version: int, max_staleness: int) -> Swept:
    """The samples with a trained token that is more than `max_staleness` versions older than `policy_version`. Their rollouts
    keep their votes, and the others of their groups stay."""
    stale = [
        sample for sample in samples if 0 <= sample.oldest_version < policy_version - max_staleness and sample.trained_tokens
    ]
    return Swept(
        sample_ids=tuple(sorted(sample.sample_id for sample in stale)),
        wasted_tokens=sum(sample.trained_tokens for sample in stale),
    )


def check_names(config: BatchingConfig) -> None:
    """Look up every function that the configuration names, so that a wrong one is refused before the first rollout.

    Raises ConfigurationError.
    """
    if config.advantages.estimator != PER_CALL:
        ESTIMATORS.find(config.advantages.estimator)
    WEIGHTS.find(config.weights.mode)
    for hook in config.shaping:
        HOOKS.find(hook_name(hook))
    for group_filter in config.filters:
        FILTERS.find(filter_name(group_filter))


def judge(
    members: Sequence[GroupMember],
    samples: Sequence[SampleFacts],
    config: BatchingConfig,
    *,
    updates: int = 1,
    stale: Collection[str] = (),
    unscored: Collection[str] = (),
    every_row: bool = False,
) -> Judged:
    """Advantages and weights of one batch, and which samples are trained. `updates`: optimiser updates that it is spread over;
    `stale` and `unscored` (by no teacher): sample_ids that are not trained; `every_row`: the loss has a gradient where the
    advantage is 0 too, so neither rows nor groups are left out for that.

    Raises what the parts raise, and AlignmentError for a sample of a rollout that is not among the members.
    """
    known = {member.rollout_id: member.group_id for member in members}
    for sample in samples:
        if sample.rollout_id not in known:
            raise AlignmentError(
                f"sample {sample.sample_id} is of rollout {sample.rollout_id}, which is not in the batch", "list its rollout"
            )
    shaped = shape_rewards(members, config.shaping, passing=config.passing)
    advantages = (
        per_call(shaped.members, config.calls, config.advantages, passing=config.passing)
        if config.advantages.estimator == PER_CALL
        else group_advantages(shaped.members, config.advantages, passing=config.passing)
    )
    filters = [one for one in config.filters if not (every_row and isinstance(one, ZeroAdvantageFilter))]
    kept = keep_groups(advantages, filters)
    weights = loss_weights(
        [
            SampleTokens(sample_id=sample.sample_id, rollout_id=sample.rollout_id, trained_tokens=sample.trained_tokens)
            for sample in samples
            if sample.rollout_id in advantages.values
        ],
        config.weights.mode,
        constant_tokens=config.weights.constant_tokens,
        updates=updates,
    )
    lost: dict[str, LeftOut] = {**dict.fromkeys(unscored, "no_teacher"), **dict.fromkeys(stale, "stale")}
    trained, left_out, tokens = _choose(samples, known, advantages, kept, lost, every_row=every_row)
    return Judged(
        advantages=advantages,
        shaping=shaped.records,
        kept=kept,
        weights=weights,
        trained=tuple(sorted(trained)),
        left_out=dict(left_out),
        left_out_tokens=dict(tokens),
    )


def prepare(
    members: Sequence[GroupMember],
    samples: Sequence[SampleFacts],
    config: BatchingConfig,
    packing: PackingConfig,
    *,
    ranks: int = 1,
    order: PrefixOrder | None = None,
    stale: Collection[str] = (),
    unscored: Collection[str] = (),
    every_row: bool = False,
) -> Prepared:
    """`judge`, and the plan of what is trained. `order`: the prefix order of the samples, which packing "tree" needs."""
    judged = judge(members, samples, config, updates=packing.updates, stale=stale, unscored=unscored, every_row=every_row)
    trained = set(judged.trained)
    lengths = [
        SampleLength(sample_id=sample.sample_id, rollout_id=sample.rollout_id, tokens=sample.tokens)
        for sample in samples
        if sample.sample_id in trained
    ]
    return Prepared(judged=judged, plan=plan_batch(lengths, packing, ranks, order))


def _choose(
    samples: Sequence[SampleFacts],
    group_of: Mapping[str, str],
    advantages: Advantages,
    kept: KeptGroups,
    lost: Mapping[str, LeftOut],
    *,
    every_row: bool,
) -> tuple[list[str], Counter[LeftOut], Counter[LeftOut]]:
    """Samples that are trained; how many others there are by cause, and their trained tokens."""
    groups = set(kept.group_ids)
    trained: list[str] = []
    left_out: Counter[LeftOut] = Counter()
    tokens: Counter[LeftOut] = Counter()
    for sample in samples:
        cause: LeftOut | None = None
        if sample.rollout_id not in advantages.values:
            cause = "no_vote"
        elif not sample.trained_tokens:
            cause = "nothing_trained"
        elif sample.sample_id in lost:
            cause = lost[sample.sample_id]
        elif group_of[sample.rollout_id] not in groups:
            cause = "group_dropped"
        elif not every_row and advantages.silent(sample.rollout_id):
            cause = "zero_advantage"
        if cause is None:
            trained.append(sample.sample_id)
        else:
            left_out[cause] += 1
            tokens[cause] += sample.trained_tokens
    return trained, left_out, tokens
