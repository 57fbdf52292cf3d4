"""Cases of what a batch's rewards, rows and rollouts come to: advantages, filters, loss weights, plans."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.batching import (
    BatchingConfig,
    CallRewards,
    GroupMember,
    SampleFacts,
    SampleTokens,
    call_advantages,
    group_advantages,
    keep_groups,
    loss_weights,
    prepare,
    sweep_stale,
)
from whippletree.batching.config import (
    AdvantageConfig,
    CallAdvantageConfig,
    PackingConfig,
    PassRateFilter,
    ZeroAdvantageFilter,
)
from whippletree.batching.estimators import ESTIMATORS
from whippletree.learner.rows import build_row
from whippletree.types import Sample


def group(rewards: Sequence[float | None], group_id: str = "g") -> list[GroupMember]:
    return [GroupMember(rollout_id=f"{group_id}{n}", group_id=group_id, reward=reward) for n, reward in enumerate(rewards)]


def facts(rollout_id: str, number: int, tokens: int = 8, trained: int = 4, version: int = -1) -> SampleFacts:
    return SampleFacts(
        sample_id=f"{rollout_id}/{number}", rollout_id=rollout_id, tokens=tokens, trained_tokens=trained, oldest_version=version
    )


def test_C03_no_rounding_residue_is_blown_up_to_an_advantage() -> None:
    rewards = [float(np.float32(0.35))] * 7 + [0.0]
    plain = group_advantages(group(rewards), AdvantageConfig(estimator="rloo")).values
    assert plain["g7"] == pytest.approx(-0.35, rel=1e-6)
    for name in ESTIMATORS.shipped:
        values = group_advantages(group(rewards), AdvantageConfig(estimator=name, eps=0.0, min_std=0.0)).values
        assert max(map(abs, values.values())) <= math.sqrt(8), name
    alike = group_advantages(group([float(np.float32(0.1) * 3), float(np.float32(0.3)), 0.3]), AdvantageConfig())
    assert not any(alike.values.values())


@settings(deadline=None)
@given(
    rewards=st.lists(st.floats(-10, 10) | st.sampled_from([0.3, 0.35, 0.6]), min_size=2, max_size=16),
    name=st.sampled_from(["grpo", "rloo-scaled", "reinforce++"]),
)
def test_C03_no_advantage_is_above_a_few_units_for_any_rewards(rewards: list[float], name: str) -> None:
    values = group_advantages(group(rewards), AdvantageConfig(estimator=name, eps=0.0, min_std=0.0)).values
    assert max(map(abs, values.values())) <= math.sqrt(len(rewards)) * (1 + 1e-6)


def test_C05_shaping_does_not_train_groups_in_which_all_failed() -> None:
    shaped = [0.01, 0.012, 0.009, 0.011]
    members = [GroupMember(rollout_id=f"g{n}", group_id="g", reward=reward, outcome=0.0) for n, reward in enumerate(shaped)]
    blown_up = group_advantages(members, AdvantageConfig(min_std=0.0))
    assert max(map(abs, blown_up.values.values())) > 1.0
    assert keep_groups(blown_up).group_ids == ("g",)  # by the shaped sum, it differs
    kept = keep_groups(blown_up, [PassRateFilter(), ZeroAdvantageFilter()])
    assert (kept.group_ids, kept.counts) == ((), {"pass-rate: none_passed": 1})
    floored = group_advantages(members, AdvantageConfig(min_std=0.1))
    assert max(map(abs, floored.values.values())) < 0.02
    assert any("groups that failed alike" in alarm for alarm in blown_up.alarms)
    assert group_advantages([*members, *group([1.0, 0.0], "h")], AdvantageConfig(min_std=0.1)).alarms == ()


@pytest.mark.parametrize("name", [name for name in ESTIMATORS.shipped if name != "reinforce++"])
def test_C06_a_group_that_shrank_to_one_rollout_says_nothing(name: str) -> None:
    members = group([1.0, None, None, None])
    found = group_advantages(members, AdvantageConfig(estimator=name, eps=0.0, min_std=0.0))
    assert found.values == {"g0": 0.0}
    assert found.excluded == {"no_reward": 3}
    assert keep_groups(found).counts == {"zero-advantage: one_reward": 1}
    assert found.alarms == ()
    lost = group_advantages(group([None] * 4), AdvantageConfig(estimator=name))
    assert lost.values == {}
    assert lost.groups[0].signal == "no_reward"
    assert "no rollout has a reward in 1 of 1 groups, e.g. g" in lost.alarms


def test_C08_any_number_of_rows_runs_on_any_number_of_ranks_with_the_same_gradient() -> None:
    """37 rows of 19 rollouts in groups of four, eight ranks, two updates; the gradient in exact fractions."""
    draw = random.Random(8)
    owners = [n // 2 for n in range(37)]
    members = [GroupMember(rollout_id=f"r{n:02}", group_id=f"g{n // 4}", reward=float(draw.random() < 0.5)) for n in range(19)]
    samples = [
        facts(f"r{owner:02}", n, tokens=draw.randrange(5, 60), trained=draw.randrange(1, 5)) for n, owner in enumerate(owners)
    ]
    config = BatchingConfig(advantages=AdvantageConfig(estimator="dr-grpo"), filters=())
    packing = PackingConfig(token_budget=64, updates=2)
    by_id = {sample.sample_id: sample for sample in samples}
    slope = {sample.sample_id: Fraction(draw.randrange(-9, 9)) for sample in samples}  # of a token's loss

    def gradients(ranks: int) -> list[Fraction]:
        found = prepare(members, samples, config, packing, ranks=ranks, every_row=True)
        assert found.judged.left_out == {}
        sums = []
        for update in found.plan.updates:
            assert len(update.ranks) == ranks
            assert len({len(rows) for rows in update.ranks}) == 1
            names = [name for rows in update.ranks for row in rows for name in row.sample_ids]
            assert len(names) == len(set(names))
            for row in itertools.chain.from_iterable(update.ranks):
                assert row.sample_ids or (row.tokens, row.rollout_ids) == (0, ())
            sums.append(
                sum(
                    Fraction(by_id[name].trained_tokens, int(found.judged.weights.divisors[name]))
                    * Fraction(found.judged.advantages.values[by_id[name].rollout_id])
                    * slope[name]
                    for name in names
                )
            )
        return [Fraction(value) for value in sums]

    assert gradients(8) == gradients(1) == gradients(5)
    eight, one = (prepare(members, samples, config, packing, ranks=ranks) for ranks in (8, 1))
    assert eight.judged == one.judged


def test_C09_the_number_of_updates_is_the_configured_one_however_rollouts_split() -> None:
    rewards = [float(n % 2) for n in range(64)]
    members = [GroupMember(rollout_id=f"r{n:02}", group_id=f"g{n // 4}", reward=reward) for n, reward in enumerate(rewards)]
    split = [facts(f"r{n % 64:02}", n // 64, trained=2 + n % 7) for n in range(181)]
    whole = [facts(f"r{n:02}", 0) for n in range(64)]
    packing = PackingConfig(token_budget=32, updates=4)
    for samples in (split, whole):
        found = prepare(members, samples, BatchingConfig(), packing)
        assert [len(update.rollout_ids) for update in found.plan.updates] == [16] * 4
        weights = {
            member.rollout_id: sum(
                Fraction(4 * sample.trained_tokens, int(found.judged.weights.divisors[sample.sample_id]))
                for sample in samples
                if sample.rollout_id == member.rollout_id
            )
            for member in members
        }
        assert set(weights.values()) == {Fraction(1, 16)}


def test_C10_rollouts_with_different_numbers_of_samples_form_a_batch() -> None:
    members = group([1.0, 0.0])
    samples = [facts("g0", 0), facts("g1", 0), facts("g1", 1)]
    found = prepare(members, samples, BatchingConfig(advantages=AdvantageConfig(estimator="dr-grpo")), PackingConfig())
    assert found.judged.advantages.values == {"g0": 0.5, "g1": -0.5}
    assert found.judged.advantages.groups[0].voters == 2
    assert found.plan.updates[0].rollout_ids == ("g0", "g1")
    counts = [SampleTokens(sample_id=one.sample_id, rollout_id=one.rollout_id, trained_tokens=4) for one in samples]
    assert loss_weights(counts).divisors == {"g0/0": 8, "g1/0": 16, "g1/1": 16}


@pytest.mark.parametrize("seed", range(5))
def test_C18_an_advantage_lands_on_its_own_rollouts_tokens_in_any_order(seed: int) -> None:
    """Two rollouts of one task, each with a first step: nothing about a row but its ids says whose it is."""
    draw = random.Random(seed)
    members = [
        GroupMember(rollout_id="r1", group_id="t1", reward=1.0),
        GroupMember(rollout_id="r2", group_id="t1", reward=0.0),
    ]
    samples = [facts(name, number) for name in ("r1", "r2") for number in range(3)]
    columns = {
        sample.sample_id: Sample(
            sample_id=sample.sample_id,
            rollout_id=sample.rollout_id,
            group_id="t1",
            call_ids=("0",),
            token_ids=np.arange(8, dtype=np.int32),
            trained=np.arange(8) >= 4,
            logprobs=np.zeros(8, np.float32),
            versions=np.zeros(8, np.int32),
        )
        for sample in samples
    }
    draw.shuffle(members)
    draw.shuffle(samples)
    found = prepare(members, samples, BatchingConfig(), PackingConfig(token_budget=20), ranks=draw.randrange(1, 5))
    seen = []
    for planned in itertools.chain.from_iterable(found.plan.updates[0].ranks):
        if planned.sample_ids:
            row = build_row(
                [columns[name] for name in planned.sample_ids],
                found.judged.advantages.values,
                found.judged.weights.per_token,
                shared=planned.shared,
            )
            for number, name in enumerate(row.sample_ids):
                mine = row.advantages[row.samples == number]
                assert len(mine) == 4
                assert bool((mine > 0).all()) if name.startswith("r1") else bool((mine < 0).all())
                seen.append(name)
    assert sorted(seen) == sorted(columns)


def test_C19_only_the_stale_rollout_is_left_out_and_its_reward_still_votes() -> None:
    versions = [10, 10, 10, 4]
    members = group([1.0, 0.0, 0.0, 1.0])
    samples = [facts(f"g{n}", 0, version=version) for n, version in enumerate(versions)]
    swept = sweep_stale(samples, policy_version=11, max_staleness=4)
    assert (swept.sample_ids, swept.wasted_tokens) == (("g3/0",), 4)
    config = BatchingConfig(advantages=AdvantageConfig(estimator="dr-grpo"))
    found = prepare(members, samples, config, PackingConfig(), stale=swept.sample_ids)
    assert found.judged.advantages.groups[0].mean == 0.5
    assert found.plan.updates[0].rollout_ids == ("g0", "g1", "g2")
    assert (found.judged.left_out, found.judged.left_out_tokens) == ({"stale": 1}, {"stale": 4})


Estimate = Callable[[Sequence[Sequence[float]]], Sequence[Sequence[float]]]


def per_turn(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """The estimator of the report: normalised per turn over the rollouts that have it, then summed."""
    longest = max(map(len, rewards))
    means = [sum(one[t] for one in rewards if len(one) > t) / sum(len(one) > t for one in rewards) for t in range(longest)]
    return [[sum(one[k] - means[k] for k in range(t, len(one))) for t in range(len(one))] for one in rewards]


def ours(rewards: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    batch = [CallRewards(rollout_id=f"g{n}", group_id="g", rewards=tuple(one)) for n, one in enumerate(rewards)]
    return list(call_advantages(batch, CallAdvantageConfig(scaled=False)).values.values())


def stop_gradient(estimate: Estimate) -> Fraction:
    """Expected gradient of "go on after the first call": probability 1/2 of each of one or two calls, 1/4 paid for each."""
    total = Fraction(0)
    for lengths in itertools.product((1, 2), repeat=2):
        found = estimate([[0.25] * length for length in lengths])
        for length, advantages in zip(lengths, found, strict=True):
            total += (
                Fraction(1, 4) * Fraction(1, 2) * Fraction(advantages[0]) * (Fraction(1, 2) if length == 2 else Fraction(-1, 2))
            )
    return total


def test_C23_the_baseline_of_a_call_does_not_depend_on_the_rollouts_own_length() -> None:
    reported = [(0.1, 1.0), (0.1, 0.1, 0.1, 1.0)]
    values = ours(reported)
    assert values[0] == pytest.approx((1.1 - 1.3, 1.0 - 1.2))
    assert values[1] == pytest.approx((1.3 - 1.1, 1.2 - 1.0, 1.1 - 1.0, 1.0 - 1.0))
    for own in ((0.1,), (0.1, 0.1, 0.1), (0.1, 5.0, 0.1, 0.1, 0.1, 1.0)):
        first = ours([own, reported[1]])[0][0]
        assert sum(own) - first == pytest.approx(1.3)  # what it is compared with is the other's return, whatever it did
    returns = stop_gradient(lambda rewards: [[sum(one[t:]) for t in range(len(one))] for one in rewards])
    assert returns == Fraction(1, 4) * Fraction(1, 4)  # the bonus times the slope of the probability
    assert stop_gradient(ours) == returns
    assert stop_gradient(per_turn) == 0
