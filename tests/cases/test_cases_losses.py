"""Cases of the losses, by id: masked tokens with wild numbers, importance weights of long samples, overflow in k3."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, make_samples, on_policy, parameters, same, write_model
from losses_parts import of_logprobs, value_and_gradient

from whippletree.errors import DivergedError, NonFiniteError
from whippletree.learner import checkpoint
from whippletree.learner.losses.corrections import mask, truncation
from whippletree.learner.losses.policy import masked_importance, ppo_clip
from whippletree.learner.losses.regularisers import kl_loss
from whippletree.learner.rows import Row, build_row

LOSSES: list[dict[str, Any]] = [
    {"name": "ppo"}, {"name": "dual-clip"}, {"name": "gspo"}, {"name": "gspo-token"}, {"name": "cispo"}, {"name": "reinforce"},
    {"name": "masked-importance"}, {"name": "sft"},
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("drifted"), seed=8)


# --- C01: {"trainer_logp": [-1.0], "rollout_logp": [-100.0], "keep_mask": [0], "advantage": [1.0]} ---------------------------


def test_C01_a_masked_token_with_a_huge_ratio_has_loss_and_gradient_zero():
    tokens = of_logprobs([-1.0], [-100.0], [1.0])
    loss = partial(masked_importance, positive_low=0.5, positive_high=5.0, negative_low=0.5, negative_high=5.0)
    value, gradient = value_and_gradient(loss, tokens)
    assert loss(tokens).diagnostics["clipped"].tolist() == [True]
    assert (value.tolist(), gradient.tolist()) == ([0.0], [0.0])
    value, gradient = value_and_gradient(partial(ppo_clip, clip_low=0.2, clip_high=0.2), tokens)
    assert value.tolist() == pytest.approx([-1.2])
    assert gradient.tolist() == [0.0]


def test_C01_the_update_is_that_of_the_row_without_the_token(model: Path):
    found, without = (make_learner(model, correction={"mask": "token"}) for _ in range(2))
    row = build_row(on_policy(found, make_samples()), ADVANTAGES, WEIGHTS)
    place = 4
    far = row.sampler_logprobs.clone()
    far[place] = -100.0
    stats = found.update([replace(row, sampler_logprobs=far)])
    without.update([row.select(torch.arange(len(row.targets)) != place)])
    assert stats.metrics["masked"] == pytest.approx(1 / len(row.targets))
    assert all(torch.isfinite(parameter).all() for parameter in found.parameters)
    for a, b in zip(parameters(found), parameters(without), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_C01_a_non_finite_loss_stops_before_the_optimiser_and_no_weights_are_pushed(model: Path, tmp_path: Path):
    found = make_learner(model)
    published = checkpoint.write_weights(found, tmp_path, tokenizer_from=model)
    before = parameters(found)
    row = build_row(make_samples(), ADVANTAGES, WEIGHTS)
    advantages = torch.where(row.samples == row.sample_ids.index("s2"), math.inf, row.advantages)
    with pytest.raises(NonFiniteError, match=r"advantages inf at token \d+ of sample s2"):
        found.update([replace(row, advantages=advantages)])
    assert same(before, parameters(found))
    assert not found.optimizer.state
    assert found.policy_version == published.policy_version  # there is no new version that could be published


# --- C07 -----------------------------------------------------------------------------------------------------------------


def long_sample(log_ratio: float, length: int):
    tokens = of_logprobs([-1.0] * length, [-1.0 - log_ratio] * length, [1.0] * length)
    return replace(tokens, proximal_logprobs=tokens.logprobs)


def test_C07_long_samples_have_finite_weights():
    """Case 1: a ratio of 0.7 per token over 300 tokens, with a lower bound of 0.8."""
    tokens = long_sample(math.log(0.7), 300)
    for level in ("token", "sequence"):
        factors, _ = truncation(tokens, level=level, cap=2.0)  # type: ignore[arg-type]
        assert torch.isfinite(factors).all()
        assert factors.max().item() <= 0.7 + 1e-6
    for level in ("token", "sequence", "geometric"):
        kept, told = mask(tokens, level=level, low=0.8, high=2.0)  # type: ignore[arg-type]
        assert not kept.any()
        assert told["masked"].all()
    rising, _ = truncation(long_sample(-math.log(0.7), 3000), level="sequence", cap=0.0)
    assert torch.isfinite(rising).all()


def test_C07_a_mild_drift_is_masked_by_the_product_and_kept_by_the_geometric_mean():
    """Case 2: a mean log-ratio of 0.005 over 300 tokens, with an upper bound of 3."""
    tokens = long_sample(0.005, 300)
    kept, told = mask(tokens, level="sequence", low=0.5, high=3.0)
    assert not kept.any()
    assert told["masked_sequences"].tolist() == [True]
    assert mask(tokens, level="geometric", low=0.5, high=3.0)[0].all()


def test_C07_the_share_of_masked_samples_is_a_metric_and_warns_above_a_limit(model: Path):
    found = make_learner(model, correction={"mask": "sequence", "mask_high": 3.0})
    samples = on_policy(found, make_samples())
    count = min(int(sample.trained.sum()) for sample in samples)
    drift = 1.5 / count  # the sum passes log 3 in every sample
    row = build_row(samples, ADVANTAGES, WEIGHTS)
    before = parameters(found)
    stats = found.update([replace(row, sampler_logprobs=row.sampler_logprobs - drift)])
    assert stats.metrics["masked_sequences"] == 1.0
    assert stats.loss == 0.0
    assert same(before, parameters(found))
    assert len(stats.alarms) == 1
    assert "leaves out 100% of the samples" in stats.alarms[0]
    geometric = make_learner(model, correction={"mask": "geometric", "mask_high": 3.0})
    stats = geometric.update([replace(row, sampler_logprobs=row.sampler_logprobs - drift)])
    assert (stats.metrics["masked_sequences"], stats.alarms) == (0.0, ())


# --- C16: {"ref_logp": [-1.0], "logp": [-101.0]} ------------------------------------------------------------------------------


def test_C16_k3_is_finite_and_still_pulls_towards_the_reference():
    tokens = replace(of_logprobs([-101.0], [-101.0], [0.0]), reference_logprobs=torch.tensor([-1.0]))
    value, gradient = value_and_gradient(partial(kl_loss, estimator="k3"), tokens)
    assert 0 < value.item() < math.inf
    assert -math.inf < gradient.item() < 0  # descending raises the token's probability


def test_C16_the_kl_alarm_stops_before_any_weights_are_pushed(model: Path, drifted: Path, tmp_path: Path):
    found = make_learner(model, kl={"coefficient": 0.1, "estimator": "k3", "reference": str(drifted), "stop_above": 0.05})
    version = checkpoint.write_weights(found, tmp_path, tokenizer_from=model).policy_version
    before = parameters(found)
    with pytest.raises(DivergedError, match="from its reference"):
        found.update([build_row(make_samples(), ADVANTAGES, WEIGHTS)])
    assert same(before, parameters(found))
    assert found.policy_version == version


# --- C20: {"placeholder_values": [1.0, 0.0, -inf, NaN, None], "mask": 0} ------------------------------------------------------


def with_placeholder(value: float | None) -> Row:
    """A row of samples that hold `value` as the logprob of every token that is not trained, and of one (s1) whose weight is 0
    and which holds it in every column."""
    number = float(np.array([value], dtype=np.float32)[0])  # None becomes NaN
    samples = [
        msgspec.structs.replace(one, logprobs=np.where(one.trained, one.logprobs, np.float32(number))) for one in make_samples()
    ]
    row = build_row(samples, ADVANTAGES, {**WEIGHTS, "s1": 0.0})
    zeros = torch.zeros(len(row.targets))
    row = replace(row, reference_logprobs=row.sampler_logprobs + 0.5, returns=row.advantages, old_values=zeros)
    masked = row.weights == 0
    columns = ("sampler_logprobs", "advantages", "reference_logprobs", "returns", "old_values")
    return replace(row, **{name: torch.where(masked, number, getattr(row, name)) for name in columns})


@pytest.mark.parametrize("loss", LOSSES, ids=[loss["name"] for loss in LOSSES])
def test_C20_placeholders_at_masked_positions_change_nothing(model: Path, loss: dict[str, Any]):
    outcomes = []
    for value in (1.0, 0.0, -math.inf, math.nan, None, 1e38):
        found = make_learner(model, loss=loss, kl={"coefficient": 0.1}, critic={"kind": "head"})
        stats = found.update([with_placeholder(value)])
        assert 0 < stats.tokens < sum(int(sample.trained.sum()) for sample in make_samples())
        outcomes.append((stats, parameters(found)))
    for stats, weights in outcomes[1:]:
        assert stats == outcomes[0][0]
        assert same(weights, outcomes[0][1])
