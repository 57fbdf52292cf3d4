"""Cases of what ranks do with batches that do not divide, on real processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from learner_parts import make_sample, write_model
from ranks_parts import InDouble, RankedInDouble, many, one_process, ranks, run_ranks, same_on_ranks

from whippletree.batching import BatchingConfig, GroupMember, SampleFacts, prefix_order, prepare
from whippletree.batching.config import AdvantageConfig, PackingConfig
from whippletree.learner.rows import Row, build_row
from whippletree.types import Sample


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("cases-ranks"))


def planned(samples: list[Sample], members: list[GroupMember], world: int, *, updates: int = 1) -> list[list[Row]]:
    """Rows of each update, as a loop builds them for `world` ranks."""
    facts = [
        SampleFacts(
            sample_id=one.sample_id,
            rollout_id=one.rollout_id,
            tokens=len(one.token_ids),
            trained_tokens=int(one.trained.sum()),
        )
        for one in samples
    ]
    by_id = {one.sample_id: one for one in samples}
    found = prepare(
        members,
        facts,
        BatchingConfig(advantages=AdvantageConfig(estimator="dr-grpo"), filters=()),
        PackingConfig(packing="single", token_budget=64, updates=updates),
        ranks=world,
        order=prefix_order({one.sample_id: one.token_ids for one in samples}),
        every_row=True,
    )
    advantages, weights = found.judged.advantages.values, found.judged.weights.per_token
    assert not found.judged.left_out
    return [
        [
            build_row([by_id[name] for name in row.sample_ids], advantages, weights, shared=row.shared)
            for of_rank in update.ranks
            for row in of_rank
            if row.sample_ids
        ]
        for update in found.plan.updates
    ]


def same_everywhere(policy: Path, batches: list[list[Row]], alone: list[list[Row]], world: int) -> None:
    one = one_process(policy, alone, {}, kind=InDouble)
    found = run_ranks(world, many, policy, batches, {"ranks": ranks(data=world)}, RankedInDouble)
    same_on_ranks(one, found, tolerance=1e-9)


def test_C08_37_rows_on_eight_ranks_make_the_gradient_of_one(policy: Path):
    """37 samples in groups of four, mini-batches of about 16 rows, eight processes; some have empty rows."""
    draw = np.random.default_rng(8)
    samples = [make_sample(number, int(draw.integers(4, 20)), draw) for number in range(37)]
    members = [GroupMember(rollout_id=f"r{n}", group_id=f"g{n // 4}", reward=float(draw.random() < 0.5)) for n in range(37)]
    batches, alone = (planned(samples, members, world, updates=3) for world in (8, 1))
    assert [len(rows) for rows in batches] == [13, 12, 12]
    same_everywhere(policy, batches, alone, 8)


def test_C10_one_sample_and_two_make_a_batch_of_two_ranks(policy: Path):
    draw = np.random.default_rng(10)
    one, two, three = (make_sample(number, 6 + 5 * number, draw) for number in range(3))
    third = Sample(**{name: getattr(three, name) for name in Sample.__struct_fields__} | {"rollout_id": two.rollout_id})
    members = [GroupMember(rollout_id=name, group_id="g0", reward=reward) for name, reward in (("r0", 1.0), ("r1", 0.0))]
    batches, alone = (planned([one, two, third], members, world) for world in (2, 1))
    assert {float(row.advantages[0]) for row in batches[0]} == {0.5, -0.5}
    same_everywhere(policy, batches, alone, 2)
