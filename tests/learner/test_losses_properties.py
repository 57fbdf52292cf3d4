"""What holds of every loss, over wide ranges of numbers (whippletree/learner/losses/)"""

from __future__ import annotations

import typing
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from losses_parts import in_float32, random_tokens, value_and_gradient

from whippletree.configuration import convert
from whippletree.learner.config import LearnerConfig
from whippletree.learner.losses.base import Tokens
from whippletree.learner.losses.config import CustomLoss, DistillForwardLoss, LossConfig
from whippletree.learner.objective import Objective

PLAIN = [kind() for kind in typing.get_args(LossConfig) if kind not in (CustomLoss, DistillForwardLoss)]
CORRECTED = {"old_logprobs": "learner", "correction": {"truncate": "sequence", "cap": 0.0, "mask": "token", "mask_high": 1e6}}
EVERYTHING: list[dict[str, Any]] = [
    {},
    *({"loss": {"name": name}, **CORRECTED} for name in ("gspo", "cispo", "dual-clip", "reinforce")),
    {"kl": {"coefficient": 0.1, "estimator": "k3"}},
    {"kl": {"coefficient": 0.1, "estimator": "k2"}},
    {"kl": {"coefficient": 0.1, "where": "reward", "estimator": "k3"}},
]

logprob = st.floats(-1e4, 0.0, width=32)
rows = st.lists(st.tuples(logprob, logprob, logprob, logprob, st.floats(-10, 10, width=32)), min_size=1, max_size=6)


def objective(**found: Any) -> Objective:
    return Objective(convert(LearnerConfig, found, "run.toml"))


def tokens_of(found: list[tuple[float, ...]]) -> Tokens:
    logprobs, sampler, proximal, reference, advantages = torch.tensor(found, dtype=torch.float32).T
    return Tokens(
        logprobs=logprobs,
        sampler_logprobs=sampler,
        proximal_logprobs=proximal,
        old_logprobs=proximal,
        advantages=advantages,
        weights=torch.ones(len(found)),
        sequences=torch.arange(len(found)) // 2,
        reference_logprobs=reference,
        teacher_logprobs=reference,
    )


@settings(deadline=None, max_examples=60)
@given(rows)
def test_whatever_the_logprobs_are_losses_and_gradients_are_finite(found: list[tuple[float, ...]]):
    tokens = tokens_of(found)
    losses = [Objective(LearnerConfig(loss=loss)) for loss in PLAIN] + [objective(**each) for each in EVERYTHING]
    for loss in losses:
        value, gradient = value_and_gradient(loss, tokens)
        assert torch.isfinite(value).all(), loss.config
        assert torch.isfinite(gradient).all(), loss.config
        assert all(torch.isfinite(told).all() for told in loss(tokens).diagnostics.values()), loss.config


@pytest.mark.parametrize("loss", PLAIN, ids=lambda loss: type(loss).__struct_config__.tag)
def test_a_tokens_gradient_is_proportional_to_its_weight(loss: LossConfig):
    """The weights alone decide the average; GSPO's tokens share their sample's weights through its ratio."""
    tokens = random_tokens(3)
    run = Objective(LearnerConfig(loss=loss))
    _, once = value_and_gradient(run, tokens)
    _, thrice = value_and_gradient(run, replace(tokens, weights=3 * tokens.weights))
    assert thrice.tolist() == pytest.approx((3 * once).tolist(), abs=1e-12)
    _, none = value_and_gradient(run, replace(tokens, weights=torch.zeros_like(tokens.weights)))
    assert none.abs().sum() == 0


@pytest.mark.parametrize("loss", PLAIN, ids=lambda loss: type(loss).__struct_config__.tag)
def test_a_loss_changes_none_of_its_inputs_and_reports_without_gradient(loss: LossConfig):
    tokens = replace(in_float32(random_tokens(1)), logprobs=in_float32(random_tokens(1)).logprobs.requires_grad_(True))
    before = tokens.select(torch.ones(24, dtype=torch.bool))
    output = Objective(LearnerConfig(loss=loss))(tokens)
    assert output.per_token.dtype == torch.float32
    assert output.per_token.shape == (24,)
    assert not any(told.requires_grad for told in output.diagnostics.values())
    for name in ("logprobs", "sampler_logprobs", "advantages", "weights", "teacher_logprobs"):
        assert torch.equal(getattr(tokens, name), getattr(before, name))
