"""From finished rollouts to rows: samples, advantages, loss weights, packing.

    rollouts ─► calls + payloads ─► trace ─► samples ─┐
        └────► groups ─► advantages (one vote each) ──┼─► weights (Eq. 16) ─► plan ─► rows
Invariants (tests/loop/test_batch.py):
- advantages and loss weights are fixed before any row is dropped;
- a rollout without a reward is in no row; a rollout whose advantage is exactly 0 is in no row but counts in the weights;
- a rollout with calls and no trained token, and a batch that trains too little of what was sampled, is in `alarms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whippletree.batching.advantages import Advantages, GroupMember, group_advantages
from whippletree.batching.config import AdvantageConfig
from whippletree.batching.filters import keep_groups
from whippletree.batching.packing import SampleLength, plan_rows
from whippletree.batching.weights import SampleTokens, loss_weights
from whippletree.learner.config import LearnerConfig
from whippletree.learner.model import Row
from whippletree.learner.rows import build_row
from whippletree.loop.metrics import mean
from whippletree.protocols import Store
from whippletree.traces import Funnel, Trace, TracesConfig, add_funnels, alarm, build_samples, funnel, load_trace
from whippletree.types import Call, Rollout, Sample

ALARMS_NAMED = 3


@dataclass(frozen=True)
class Batch:
    """Rows of one update, and what there is to say about where they came from."""

    rows: list[Row]
    samples: int
    rollouts: int
    failed: int
    causes: Mapping[str, int]
    rewards: list[float]
    calls: list[Call]
    groups_without_signal: int
    fill: float
    staleness: list[int]
    with_reward: int
    funnel: Funnel
    alarms: tuple[str, ...]

    def metrics(self) -> dict[str, Any]:
        """The part of StepMetrics that the batch knows."""
        breaks = Counter(call.prefix_break for call in self.calls if call.prefix_break not in ("", "first"))
        return {
            "rollouts": self.rollouts,
            "failed": self.failed,
            "reward_mean": mean(self.rewards),
            "calls": len(self.calls),
            "turns_mean": len(self.calls) / self.with_reward if self.with_reward else None,
            "samples": self.samples,
            "groups_without_signal": self.groups_without_signal,
            "staleness_mean": mean(self.staleness) or 0.0,
            "staleness_max": max(self.staleness, default=0),
            "row_fill": self.fill if self.rows else None,
            "prefix_breaks": dict(breaks),
            "trained_share": self.funnel.trained_share,
            "alarms": self.alarms,
        }


def collect(store: Store, rollout: Rollout, config: TracesConfig) -> tuple[Trace, list[Sample]]:
    """Trace and samples of a rollout's last attempt."""
    trace = load_trace(store, rollout, config)
    return trace, build_samples(trace, rollout.spec)


def alarms_of(funnels: Mapping[str, Funnel], config: TracesConfig) -> tuple[str, ...]:
    """What is wrong with single rollouts, by id, and with the batch as a whole; at most a few are named."""
    silent = {name: alarm(counts) for name, counts in funnels.items() if not counts.trained_tokens}
    named = [f"{name}: {told}" for name, told in silent.items() if told]
    more = (f"and {len(named) - ALARMS_NAMED} rollouts more without one trained token",) if len(named) > ALARMS_NAMED else ()
    whole = alarm(add_funnels(funnels.values()), config.least_trained_share)
    return (*((f"batch: {whole}",) if whole else ()), *named[:ALARMS_NAMED], *more)


def advantages_of(rollouts: Sequence[Rollout], *, normalise_std: bool) -> Advantages:
    """Group-relative advantages of a batch's rollouts."""
    members = [
        GroupMember(rollout_id=rollout.spec.rollout_id, group_id=rollout.spec.group_id, reward=rollout.reward)
        for rollout in rollouts
    ]
    return group_advantages(members, AdvantageConfig(estimator="grpo" if normalise_std else "dr-grpo"))


def build_batch(
    store: Store,
    rollouts: Sequence[Rollout],
    config: LearnerConfig,
    *,
    policy_version: int,
    traces: TracesConfig = TracesConfig(),  # noqa: B008 - immutable
) -> Batch:
    """Rows of one update. `policy_version` is the learner's, for staleness. Raises StoreError, AlignmentError."""
    advantages = advantages_of(rollouts, normalise_std=config.normalise_std)
    calls: list[Call] = []
    samples: list[Sample] = []
    funnels: dict[str, Funnel] = {}
    for rollout in rollouts:
        if rollout.spec.rollout_id in advantages.values:
            trace, found_samples = collect(store, rollout, traces)
            funnels[rollout.spec.rollout_id] = funnel(trace)
            calls += [node.call for node in trace.nodes]
            samples += found_samples
    counts = [
        SampleTokens(sample_id=sample.sample_id, rollout_id=sample.rollout_id, trained_tokens=int(sample.trained.sum()))
        for sample in samples
    ]
    weights = loss_weights(counts, config.loss_weights)
    by_id = {sample.sample_id: sample for sample in samples}
    plan = plan_rows(
        [
            SampleLength(sample_id=sample.sample_id, rollout_id=sample.rollout_id, tokens=len(sample.token_ids))
            for sample in samples
            if advantages.values[sample.rollout_id] != 0.0 and sample.trained.any()
        ],
        config.token_budget,
    )
    failed = [rollout for rollout in rollouts if rollout.reward is None]
    return Batch(
        rows=[build_row([by_id[name] for name in row.sample_ids], advantages.values, weights.per_token) for row in plan.rows],
        samples=len(samples),
        rollouts=len(rollouts),
        failed=len(failed),
        causes=Counter(str(rollout.cause.cause) if rollout.cause else "unknown" for rollout in failed),
        rewards=[rollout.reward for rollout in rollouts if rollout.reward is not None],
        calls=calls,
        groups_without_signal=len(keep_groups(advantages).dropped),
        fill=plan.fill,
        staleness=[policy_version - call.version_start for call in calls if call.version_start >= 0],
        with_reward=len(advantages.values),
        funnel=add_funnels(funnels.values()),
        alarms=alarms_of(funnels, traces),
    )
