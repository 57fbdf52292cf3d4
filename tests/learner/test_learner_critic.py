"""whippletree/learner/critic.py"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, parameters, same

from whippletree.errors import AlignmentError, ConfigurationError, StoreError
from whippletree.learner import checkpoint
from whippletree.learner.critic import Critic, with_returns
from whippletree.learner.learner import Learner
from whippletree.learner.rows import Row, build_row, by_sample, lay_column
from whippletree.types import Sample

KINDS: list[dict[str, Any]] = [{"kind": "head"}, {"kind": "model"}]
REWARDS = {"s0": 1.0, "s1": 0.0, "s2": 0.5, "s3": -1.0, "s4": 2.0}
Columns = dict[str, npt.NDArray[Any]]
by_kind = pytest.mark.parametrize("critic", KINDS, ids=["head", "model"])


def estimated(row: Row, values: torch.Tensor) -> tuple[Columns, Columns]:
    """γ = λ = 1: the return of every trained token is its sample's reward. What a row's samples are worth, by sample_id."""
    expected = by_sample(row, values)
    returns = {name: np.full(len(expected[name]), REWARDS[name]) for name in row.sample_ids}
    return {name: returns[name] - expected[name] for name in row.sample_ids}, returns


def credited(found: Learner, rows: list[Row]) -> list[Row]:
    values = found.values(rows)
    columns = [estimated(row, column) for row, column in zip(rows, values, strict=True)]
    advantages, returns = ({name: part[name] for part in side for name in part} for side in zip(*columns, strict=True))
    return with_returns(rows, values, advantages, returns)


def rows_of(found: Learner, samples: list[Sample]) -> list[Row]:
    return credited(found, [build_row(samples, ADVANTAGES, WEIGHTS)])


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


@by_kind
def test_values_do_not_depend_on_the_row(small_model: Path, sample_batch: list[Sample], critic: dict[str, Any]):
    found = make_learner(small_model, critic=critic)
    torch.nn.init.normal_(critic_of(found).head.weight)
    together = found.values([build_row(sample_batch, ADVANTAGES, WEIGHTS)])[0]
    row = build_row(sample_batch, ADVANTAGES, WEIGHTS)
    for sample in sample_batch:
        (alone,) = found.values([build_row([sample], ADVANTAGES, WEIGHTS)])
        own = together[row.samples == row.sample_ids.index(sample.sample_id)]
        assert own.abs().sum() > 0
        torch.testing.assert_close(own, alone, rtol=1e-4, atol=1e-5)


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
    torch.nn.init.constant_(critic_of(found).head.bias, 0.25)
    rows = [build_row(sample_batch[:2], ADVANTAGES, WEIGHTS), build_row(sample_batch[2:], ADVANTAGES, WEIGHTS)]
    filled = credited(found, rows)
    for row in filled:
        assert row.returns is not None and row.old_values is not None
        for number, name in enumerate(row.sample_ids):
            own, reward = row.samples == number, REWARDS[name]
            assert set(row.returns[own].tolist()) == {reward}
            assert set(row.advantages[own].tolist()) == {reward - 0.25}
            assert set(row.old_values[own].tolist()) == {0.25}
    assert found.update(filled).metrics["value"] == 0.25


def test_a_shared_token_is_trained_and_weighted_once(small_model: Path, sample_batch: list[Sample]):
    """Two paths of a rollout that share their first answer: the second sample does not train it, so its value loss counts once,
    with one return, and its weight is one sample's."""
    first = sample_batch[3]
    half = np.arange(30) >= 15
    second = msgspec.structs.replace(first, sample_id="s4", trained=first.trained & half)
    row = build_row([first, second], ADVANTAGES, {**WEIGHTS, "s4": 0.02})
    filled = credited(make_learner(small_model, critic={"kind": "head"}), [row])[0]
    assert filled.returns is not None
    shared = filled.positions[filled.targets] < 15
    assert int(shared.sum()) == int(first.trained[:15].sum())
    assert set(filled.returns[shared].tolist()) == {REWARDS["s3"]}
    assert filled.weights[shared].sum().item() == pytest.approx(0.01 * int(first.trained[:15].sum()))
    assert set(filled.returns[filled.samples == filled.sample_ids.index("s4")].tolist()) == {REWARDS["s4"]}


def test_columns_of_samples_come_back_from_a_row_with_a_shared_beginning(sample_batch: list[Sample]):
    head = np.arange(20, dtype=np.int32)
    samples = [
        msgspec.structs.replace(
            sample,
            token_ids=np.concatenate([head, sample.token_ids]),
            trained=np.concatenate([np.zeros(20, np.bool_), sample.trained]),
            logprobs=np.concatenate([np.zeros(20, np.float32), sample.logprobs]),
            versions=np.concatenate([np.full(20, -1, np.int32), sample.versions]),
        )
        for sample in sample_batch
    ]
    row = build_row(samples, ADVANTAGES, WEIGHTS)
    assert row.branched
    apart = by_sample(row, row.sampler_logprobs)
    for sample in samples:
        assert apart[sample.sample_id].tolist() == sample.logprobs[sample.trained].tolist()
    assert torch.equal(lay_column(row, apart), row.sampler_logprobs)
    count = int(samples[1].trained.sum())
    with pytest.raises(AlignmentError, match=f"sample s1 has {count} targets, and a column of {count - 1}"):
        lay_column(row, {**apart, "s1": apart["s1"][1:]})


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
