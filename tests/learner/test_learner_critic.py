"""whippletree/learner/critic.py"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, parameters, same

from whippletree.errors import ConfigurationError, StoreError
from whippletree.learner import checkpoint
from whippletree.learner.critic import Critic, FloatColumn, with_returns
from whippletree.learner.learner import Learner
from whippletree.learner.model import Row
from whippletree.learner.rows import build_row
from whippletree.types import Sample

KINDS: list[dict[str, Any]] = [{"kind": "head"}, {"kind": "model"}]
REWARDS = {"s0": 1.0, "s1": 0.0, "s2": 0.5, "s3": -1.0}
by_kind = pytest.mark.parametrize("critic", KINDS, ids=["head", "model"])


def monte_carlo(rewards: FloatColumn, values: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """γ = λ = 1: the return is what is still to come."""
    returns = rewards[::-1].cumsum()[::-1]
    return returns - values, returns


def rows_of(found: Learner, samples: list[Sample]) -> list[Row]:
    rows = [build_row(samples, ADVANTAGES, WEIGHTS)]
    return with_returns(rows, found.values(rows), REWARDS, monte_carlo)


def critic_of(found: Learner) -> Critic:
    assert found.critic is not None
    return found.critic


@by_kind
def test_values_begin_at_zero_and_learn_the_returns(small_model: Path, sample_batch: list[Sample], critic: dict[str, Any]):
    found = make_learner(small_model, critic={**critic, "clip": 0.0, "learning_rate": 0.02}, learning_rate=0.0)
    rows = rows_of(found, sample_batch)
    assert found.values(rows)[0].abs().sum() == 0
    first = found.update(rows).metrics["value_error"]
    for _ in range(40):
        last = found.update(rows).metrics["value_error"]
    assert last < 0.2 * first
    assert found.values(rows)[0][~rows[0].targets].abs().sum() == 0


@by_kind
def test_values_do_not_depend_on_the_row(small_model: Path, sample_batch: list[Sample], critic: dict[str, Any]):
    found = make_learner(small_model, critic=critic)
    torch.nn.init.normal_(critic_of(found).head.weight)
    together = found.values([build_row(sample_batch, ADVANTAGES, WEIGHTS)])[0]
    apart = torch.cat(found.values([build_row([sample], ADVANTAGES, WEIGHTS) for sample in sample_batch]))
    assert together.abs().sum() > 0
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)


def test_a_value_model_leaves_the_policy_alone_and_a_head_does_not(small_model: Path, sample_batch: list[Sample]):
    """With advantages of zero only the value loss moves anything."""
    moved = {}
    for critic in KINDS:
        found = make_learner(small_model, critic={**critic, "clip": 0.0})
        rows = [replace(row, advantages=torch.zeros_like(row.advantages)) for row in rows_of(found, sample_batch)]
        torch.nn.init.normal_(critic_of(found).head.weight)
        before, held = parameters(found), [parameter.detach().clone() for parameter in critic_of(found).parameters]
        found.update(rows)
        moved[critic["kind"]] = not same(before, parameters(found))
        assert not same(held, critic_of(found).parameters)
    assert moved == {"head": True, "model": False}


def test_the_heads_loss_reaches_the_policy_times_its_coefficient(small_model: Path, sample_batch: list[Sample]):
    norms = []
    for coefficient in (0.1, 0.2):
        found = make_learner(small_model, critic={"kind": "head", "coefficient": coefficient, "clip": 0.0}, max_grad_norm=0.0)
        torch.manual_seed(0)
        torch.nn.init.normal_(critic_of(found).head.weight)
        rows = [replace(row, advantages=torch.zeros_like(row.advantages)) for row in rows_of(found, sample_batch)]
        norms.append(found.update(rows).grad_norm)
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-4)


def test_each_path_has_advantages_and_returns_of_its_own(small_model: Path, sample_batch: list[Sample]):
    found = make_learner(small_model, critic={"kind": "head"})
    rows = [build_row(sample_batch[:2], ADVANTAGES, WEIGHTS), build_row(sample_batch[2:], ADVANTAGES, WEIGHTS)]
    values = [torch.where(row.targets, 0.25, 0.0) for row in rows]
    seen = []

    def estimate(rewards: FloatColumn, given: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        seen.append((rewards.tolist(), given.tolist()))
        return monte_carlo(rewards, given)

    filled = with_returns(rows, values, REWARDS, estimate)
    counts = [int(sample.trained.sum()) for sample in sample_batch]
    assert [len(rewards) for rewards, _ in seen] == counts
    assert [rewards[-1] for rewards, _ in seen] == [1.0, 0.0, 0.5, -1.0]
    assert all(sum(map(abs, rewards[:-1])) == 0 and set(given) == {0.25} for rewards, given in seen)
    for row, first in zip(filled, (0, 2), strict=True):
        assert row.returns is not None
        for number in (0, 1):
            own = row.targets & (row.segments == number)
            reward = REWARDS[f"s{first + number}"]
            assert set(row.returns[own].tolist()) == {reward}
            assert set(row.advantages[own].tolist()) == {reward - 0.25}
        assert row.returns[~row.targets].abs().sum() == 0
    assert found.update(filled).metrics["value"] == 0.0


def test_a_shared_token_is_trained_and_weighted_once(small_model: Path, sample_batch: list[Sample]):
    """Two paths of a rollout that share their first answer: the second sample does not train it, so its value loss counts once,
    with one return."""
    first = sample_batch[3]
    second = Sample(**{**{f: getattr(first, f) for f in first.__struct_fields__}, "sample_id": "s4"})
    half = np.arange(30) >= 15
    second = Sample(**{**{f: getattr(second, f) for f in first.__struct_fields__}, "trained": first.trained & half})
    row = build_row([first, second], ADVANTAGES, {**WEIGHTS, "s4": 0.01})
    found = make_learner(small_model, critic={"kind": "head"})
    filled = with_returns([row], found.values([row]), {"s3": 1.0, "s4": 0.0}, monte_carlo)[0]
    assert filled.returns is not None
    shared = filled.targets & (filled.positions < 15)
    assert int(shared.sum()) == int(first.trained[:15].sum())
    assert set(filled.returns[shared].tolist()) == {1.0}
    assert set(filled.returns[filled.targets & (filled.segments == 1)].tolist()) == {0.0}


def test_without_a_critic_values_are_zero_and_rows_without_returns_are_refused(small_model: Path, sample_batch: list[Sample]):
    rows = [build_row(sample_batch, ADVANTAGES, WEIGHTS)]
    assert make_learner(small_model).values(rows)[0].tolist() == [0.0] * len(rows[0].targets)
    with pytest.raises(ConfigurationError, match="returns"):
        make_learner(small_model, critic={"kind": "head"}).update(rows)
    with pytest.raises(ConfigurationError, match="trains no value head"):
        make_learner(small_model, critic={"kind": "head", "coefficient": 0.0})


@by_kind
def test_a_restored_critic_makes_the_same_next_update(
    small_model: Path, sample_batch: list[Sample], tmp_path: Path, critic: dict[str, Any]
):
    first = make_learner(small_model, critic=critic)
    first.update(rows_of(first, sample_batch))
    path = checkpoint.save(first, tmp_path, step=1, tokenizer_from=small_model)
    second = make_learner(small_model, critic=critic)
    checkpoint.restore(second, path)
    first.update(rows_of(first, sample_batch))
    second.update(rows_of(second, sample_batch))
    assert same(parameters(first), parameters(second))
    assert same(critic_of(first).parameters, critic_of(second).parameters)


def test_a_checkpoint_without_a_critic_is_refused(small_model: Path, tmp_path: Path):
    path = checkpoint.save(make_learner(small_model), tmp_path, step=1, tokenizer_from=small_model)
    with pytest.raises(StoreError, match="without a critic"):
        checkpoint.restore(make_learner(small_model, critic={"kind": "head"}), path)
