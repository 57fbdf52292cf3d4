"""From finished rollouts to the rows of updates: samples, shaping, advantages, filters, loss weights, packing.

    rollouts ─► calls + payloads ─► trace ─► samples ─┬─► prefix order ─┐
        └────► groups ─► advantages (one vote each) ──┴─► weights ──────┴─► plan ─► rows
Invariants (tests/loop/test_batch.py):
- advantages and loss weights are fixed before any row is dropped;
- a rollout without a reward is in no row; a rollout whose advantage is exactly 0 is in no row but counts in the weights, unless
  the loss has a gradient there too (`LearnerConfig.trains_all_rows`);
- a sample with a trained token that is too old is in no row; its rollout keeps its vote, and its group its other rows;
- what shaping added to a rollout's reward is on its record, once;
- a rollout with calls and no trained token, and a batch that trains too little of what was sampled, is in `alarms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from whippletree.batching import (
    BatchingConfig,
    BatchPlan,
    GroupMember,
    Judged,
    SampleFacts,
    UpdatePlan,
    prefix_order,
    prepare,
)
from whippletree.batching.advantages import exclusion
from whippletree.batching.config import PER_CALL, PackingConfig
from whippletree.batching.prepare import sweep_stale
from whippletree.learner.config import LearnerConfig
from whippletree.learner.rows import Row, build_row, lay_column
from whippletree.loop.calls import acts_of, call_rewards_of, rewards_of, with_call_advantages
from whippletree.loop.credit import Values, credited, shaped_rewards
from whippletree.loop.metrics import mean
from whippletree.loop.teacher import failures_told, teacher_columns, teacher_of_sample
from whippletree.protocols import Store
from whippletree.traces import Funnel, Trace, TracesConfig, add_funnels, alarm, build_samples, call_numbers, funnel, load_trace
from whippletree.types import Call, Cause, Event, Float32, Rollout, Sample

ALARMS_NAMED = 3
NEWEST = 2**31 - 1  # a version that no sample is older than


@dataclass(frozen=True)
class Batch:
    """Rows of each update, of all ranks, and what there is to say about where they came from. `plan` has as many updates.
    `causes` counts those of failed rollouts, `cause` is one of them."""

    updates: list[list[Row]]
    samples: int
    rollouts: int
    failed: int
    causes: Mapping[str, int]
    cause: Cause | None
    rewards: list[float]
    calls: list[Call]
    judged: Judged
    plan: BatchPlan
    staleness: list[int]
    with_reward: int
    funnel: Funnel
    alarms: tuple[str, ...]
    attempts: Mapping[str, int]
    source_of: Mapping[str, str]
    teacher_failures: Mapping[str, int]

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
            "groups_without_signal": len(self.judged.kept.dropped),
            "groups_by_source": dict(Counter(self.source_of[name] for name in self.judged.kept.group_ids)),
            "groups_dropped": self.judged.kept.counts,
            "samples_left_out": dict(self.judged.left_out),
            "tokens_left_out": dict(self.judged.left_out_tokens),
            "shaping": self.shaping,
            "staleness_mean": mean(self.staleness) or 0.0,
            "staleness_max": max(self.staleness, default=0),
            "row_fill": self.fill,
            "sample_tokens": sum(update.sample_tokens for update in self.plan.updates),
            "row_tokens": sum(update.tokens for update in self.plan.updates),
            "distinct_tokens": sum(update.distinct_tokens for update in self.plan.updates),
            "prefix_breaks": dict(breaks),
            "trained_share": self.funnel.trained_share,
            "alarms": self.alarms,
            "teacher_failures": dict(self.teacher_failures),
        }

    @property
    def rows(self) -> list[Row]:
        """The rows of all updates."""
        return [row for update in self.updates for row in update]

    @property
    def fill(self) -> float | None:
        """Tokens over room of all rows; None without rows."""
        laid = [update for update in self.plan.updates if update.tokens]
        room = sum(update.tokens / update.fill for update in laid)
        return sum(update.tokens for update in laid) / room if laid else None

    @property
    def shaping(self) -> dict[str, float]:
        """By how much each hook moved the mean reward."""
        moved: dict[str, float] = {}
        for record in self.judged.shaping:
            moved[record.hook] = moved.get(record.hook, 0.0) + record.mean_after - record.mean_before
        return moved

    def shaping_events(self, step: int, now: float) -> list[Event]:
        """What shaping added to each rollout's reward, hook by hook, for its record. Repeats are no-ops."""
        terms: dict[str, dict[str, float]] = {}
        for record in self.judged.shaping:
            for rollout_id, term in record.terms.items():
                of_rollout = terms.setdefault(rollout_id, {})
                of_rollout[record.hook] = of_rollout.get(record.hook, 0.0) + term
        return [
            Event(
                event_id=f"{rollout_id}-shaping-{step}",
                rollout_id=rollout_id,
                attempt=self.attempts[rollout_id],
                time=now,
                kind="shaping",
                data={"step": step, "terms": added},
            )
            for rollout_id, added in terms.items()
        ]


def collect(store: Store, rollout: Rollout, config: TracesConfig, *, routing: bool = False) -> tuple[Trace, list[Sample]]:
    """Trace and samples of a rollout's last attempt. `routing`: with the experts that tokens went to."""
    trace = load_trace(store, rollout, config)
    return trace, build_samples(trace, rollout.spec, routing=routing)


def alarms_of(funnels: Mapping[str, Funnel], config: TracesConfig) -> tuple[str, ...]:
    """What is wrong with single rollouts, by id, and with the batch as a whole; at most a few are named."""
    silent = {name: alarm(counts) for name, counts in funnels.items() if not counts.trained_tokens}
    named = [f"{name}: {told}" for name, told in silent.items() if told]
    more = (f"and {len(named) - ALARMS_NAMED} rollouts more without one trained token",) if len(named) > ALARMS_NAMED else ()
    whole = alarm(add_funnels(funnels.values()), config.least_trained_share)
    return (*((f"batch: {whole}",) if whole else ()), *named[:ALARMS_NAMED], *more)


def members_of(
    rollouts: Sequence[Rollout],
    calls: Mapping[str, Sequence[Call]],
    call_rewards: Mapping[str, tuple[float | None, ...]] = {},
) -> list[GroupMember]:
    """What advantages and shaping ask for. `calls` by rollout_id, of the rollouts with a reward; `call_rewards` too, where the
    estimator asks for them."""
    members = []
    for rollout in rollouts:
        sampled = [call.sampled_tokens for call in calls.get(rollout.spec.rollout_id, ())]
        members.append(
            GroupMember(
                rollout_id=rollout.spec.rollout_id,
                group_id=rollout.spec.group_id,
                reward=rollout.reward,
                sampled_tokens=sum(sampled),
                longest_call=max(sampled, default=0),
                calls=len(sampled),
                call_rewards=call_rewards.get(rollout.spec.rollout_id, ()),
            )
        )
    return members


def facts_of(sample: Sample) -> SampleFacts:
    """What planning asks for."""
    return SampleFacts(
        sample_id=sample.sample_id,
        rollout_id=sample.rollout_id,
        tokens=len(sample.token_ids),
        trained_tokens=int(sample.trained.sum()),
        oldest_version=int(sample.versions[sample.trained].min(initial=NEWEST)),
    )


@dataclass(frozen=True)
class _Gathered:
    """What the store knows of a batch's rollouts with a reward. `calls`, `funnels` by rollout_id; `numbers` by sample_id: the
    call of each trained token on the sample's path. For the estimator "per-call" too: `call_rewards` by rollout_id, `acts` by
    sample_id (the act that sampled each trained token), `alarms` about those. With a teacher on a server: `taught` by sample_id
    (its logprobs, where it gave them), `teacher_failures` by cause."""

    samples: dict[str, Sample]
    calls: dict[str, list[Call]]
    funnels: dict[str, Funnel]
    numbers: dict[str, npt.NDArray[np.int32]]
    call_rewards: dict[str, tuple[float | None, ...]]
    acts: dict[str, npt.NDArray[np.int32]]
    alarms: list[str]
    taught: dict[str, Float32]
    teacher_failures: Counter[str]


def _gather(
    store: Store, rollouts: Sequence[Rollout], traces: TracesConfig, *, per_call: bool, taught: bool, routing: bool
) -> _Gathered:
    found = _Gathered({}, {}, {}, {}, {}, {}, [], {}, Counter())
    for rollout in rollouts:
        if exclusion(rollout.reward) is not None:
            continue
        trace, samples = collect(store, rollout, traces, routing=routing)
        by_call = {node.call_id: node for node in trace.nodes}
        found.funnels[rollout.spec.rollout_id] = funnel(trace)
        found.calls[rollout.spec.rollout_id] = [node.call for node in trace.nodes]
        found.samples.update({sample.sample_id: sample for sample in samples})
        found.numbers.update({sample.sample_id: call_numbers(sample, by_call) for sample in samples})
        if per_call:
            _add_call_rewards(found, store, rollout, trace, samples)
        if taught:
            _add_teacher(found, store, rollout, trace, samples)
    if routing and found.samples and all(sample.routing is None for sample in found.samples.values()):
        found.alarms.append("learner.moe.replay is set, and the engine recorded no routed experts: routers choose anew")
    if per_call and not any(any(rewards) for rewards in found.call_rewards.values()):
        found.alarms.append("no rollout has a reward of a single call: each call gets its rollout's")
    return found


def _add_call_rewards(found: _Gathered, store: Store, rollout: Rollout, trace: Trace, samples: Sequence[Sample]) -> None:
    name = rollout.spec.rollout_id
    found.call_rewards[name], wrong = rewards_of(trace, call_rewards_of(store, rollout))
    if wrong:
        found.alarms.append(f"{name}: {wrong}")
    places = {node.call_id: place for place, node in enumerate(acts_of(trace))}
    for sample in samples:
        of_path = np.array([places.get(call_id, -1) for call_id in sample.call_ids], np.int32)
        found.acts[sample.sample_id] = of_path[found.numbers[sample.sample_id]]


def _add_teacher(found: _Gathered, store: Store, rollout: Rollout, trace: Trace, samples: Sequence[Sample]) -> None:
    columns, cause = teacher_columns(store, rollout)
    told = {sample.sample_id: teacher_of_sample(trace, sample, columns) for sample in samples}
    missing = [name for name, column in told.items() if column is None]
    if cause or missing:
        found.teacher_failures[cause or "missing"] += 1
    found.taught.update({name: column for name, column in told.items() if column is not None and not cause})


def _rows(plan: UpdatePlan, found: _Gathered, judged: Judged, *, taught: bool) -> list[Row]:
    """The rows of an update, of all ranks."""
    rows = [
        build_row(
            [found.samples[name] for name in row.sample_ids],
            judged.advantages.values,
            judged.weights.per_token,
            shared=row.shared,
        )
        for of_rank in plan.ranks
        for row in of_rank
        if row.sample_ids  # the learner deals rows to ranks, and gives empty ones where there are none
    ]
    return [replace(row, teacher_logprobs=lay_column(row, found.taught)) for row in rows] if taught else rows


def _credit(
    updates: list[list[Row]],
    found: _Gathered,
    judged: Judged,
    rollouts: Sequence[Rollout],
    *,
    values: Values | None,
    batching: BatchingConfig,
) -> list[list[Row]]:
    """The rows with advantages of single calls, or of a critic, where there are such."""
    rollout_of = {name: sample.rollout_id for name, sample in found.samples.items()}
    if of_calls := judged.advantages.calls:
        updates = [with_call_advantages(rows, of_calls, acts=found.acts, rollout_of=rollout_of) for rows in updates]
    if values is None:
        return updates
    rewards = shaped_rewards(rollouts, judged.shaping)
    rows = [row for update in updates for row in update]
    settled = iter(credited(rows, values, calls=found.numbers, rewards=rewards, rollout_of=rollout_of, config=batching))
    return [[next(settled) for _ in update] for update in updates]


def _alarms(found: _Gathered, judged: Judged, traces: TracesConfig) -> tuple[str, ...]:
    """What is wrong with the batch, in sentences."""
    own, taught = found.alarms[:ALARMS_NAMED], failures_told(found.teacher_failures)
    return (*alarms_of(found.funnels, traces), *judged.advantages.alarms, *own, *taught)


def build_batch(
    store: Store,
    rollouts: Sequence[Rollout],
    config: LearnerConfig,
    *,
    policy_version: int,
    batching: BatchingConfig = BatchingConfig(),  # noqa: B008 - immutable
    traces: TracesConfig = TracesConfig(),  # noqa: B008 - immutable
    max_staleness: int = NEWEST,
    values: Values | None = None,
    taught: bool = False,
) -> Batch:
    """The rows of a batch's updates. `policy_version` is the learner's; samples with a token that is more than `max_staleness`
    versions older are left out. `values`: of a critic, which advantages then come from. `taught`: rows have the logprobs of a
    teacher on a server; what it did not score is left out. Raises StoreError, AlignmentError."""
    found = _gather(
        store,
        rollouts,
        traces,
        per_call=batching.advantages.estimator == PER_CALL,
        taught=taught,
        routing=config.moe.replay,
    )
    facts = [facts_of(sample) for sample in found.samples.values()]
    prepared = prepare(
        members_of(rollouts, found.calls, found.call_rewards),
        facts,
        batching,
        PackingConfig(packing=config.packing, token_budget=config.token_budget, updates=config.updates),
        ranks=config.ranks.data,
        order=prefix_order({name: sample.token_ids for name, sample in found.samples.items() if sample.trained.any()}),
        stale=sweep_stale(facts, policy_version=policy_version, max_staleness=max_staleness).sample_ids,
        unscored=found.samples.keys() - found.taught.keys() if taught else (),
        every_row=config.trains_all_rows,
    )
    judged = prepared.judged
    updates = [_rows(plan, found, judged, taught=taught) for plan in prepared.plan.updates]
    updates = _credit(updates, found, judged, rollouts, values=values, batching=batching)
    failed = [rollout for rollout in rollouts if rollout.reward is None]
    every_call = [call for of_rollout in found.calls.values() for call in of_rollout]
    return Batch(
        updates=updates,
        samples=len(found.samples),
        rollouts=len(rollouts),
        failed=len(failed),
        causes=Counter(str(rollout.cause.cause) if rollout.cause else "unknown" for rollout in failed),
        cause=next((rollout.cause for rollout in failed if rollout.cause), None),
        rewards=[rollout.reward for rollout in rollouts if rollout.reward is not None],
        calls=every_call,
        judged=judged,
        plan=prepared.plan,
        staleness=[policy_version - call.version_start for call in every_call if call.version_start >= 0],
        with_reward=len(judged.advantages.values),
        funnel=add_funnels(found.funnels.values()),
        alarms=_alarms(found, judged, traces),
        attempts={rollout.spec.rollout_id: rollout.attempt for rollout in rollouts},
        source_of={rollout.spec.group_id: rollout.spec.source for rollout in rollouts},
        teacher_failures=found.teacher_failures,
    )
