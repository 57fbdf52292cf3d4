"""whippletree/learner/objective.py"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from losses_parts import check_float32, check_layout, of_logprobs, random_tokens, value_and_gradient

from whippletree.configuration import convert
from whippletree.learner.config import LearnerConfig
from whippletree.learner.losses.corrections import correct
from whippletree.learner.losses.policy import cispo, ppo_clip
from whippletree.learner.losses.regularisers import entropy_bonus, kl_loss, value_loss
from whippletree.learner.objective import Objective


def objective(**settings: Any) -> Objective:
    return Objective(convert(LearnerConfig, settings, "run.toml"))


def test_the_default_is_the_loss_alone():
    tokens = random_tokens(0)
    alone = ppo_clip(tokens, clip_low=0.2, clip_high=0.2)
    found = objective()(tokens)
    assert torch.equal(found.per_token, alone.per_token)
    assert found.diagnostics.keys() == alone.diagnostics.keys()


def test_every_term_is_added_with_its_own_coefficient():
    tokens = random_tokens(1)
    found = objective(
        kl={"coefficient": 0.3, "estimator": "k3"}, entropy_bonus=0.07, critic={"kind": "head", "coefficient": 0.6, "clip": 0.1}
    )(tokens)
    expected = (
        ppo_clip(tokens, clip_low=0.2, clip_high=0.2).per_token
        + 0.3 * kl_loss(tokens, estimator="k3").per_token
        + 0.07 * entropy_bonus(tokens).per_token
        + 0.6 * value_loss(tokens, clip=0.1).per_token
    )
    assert found.per_token.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert {"clipped", "ratio", "reference_kl", "entropy", "value", "value_error", "value_clipped"} == found.diagnostics.keys()


def test_a_kl_alarm_without_a_coefficient_watches_and_adds_nothing():
    tokens = random_tokens(1)
    found = objective(kl={"stop_above": 1.0})(tokens)
    assert torch.equal(found.per_token, ppo_clip(tokens, clip_low=0.2, clip_high=0.2).per_token)
    assert "reference_kl" in found.diagnostics


def test_kl_in_the_reward_changes_advantages_and_adds_no_term():
    tokens = random_tokens(2)
    found = objective(kl={"coefficient": 0.3, "where": "reward", "estimator": "k1"}, loss={"name": "reinforce"})(tokens)
    assert tokens.reference_logprobs is not None
    penalty = 0.3 * (tokens.proximal_logprobs - tokens.reference_logprobs)
    to_go = torch.stack([penalty[n:][tokens.sequences[n:] == tokens.sequences[n]].sum() for n in range(24)])
    assert found.per_token.tolist() == pytest.approx((-(tokens.advantages - to_go) * tokens.logprobs).tolist(), abs=1e-12)


@pytest.mark.parametrize(("masking", "low", "high"), [("token", 0.6, 2.0), ("sequence", 0.6, 2.0), ("geometric", 0.9, 1.1)])
def test_corrections_multiply_and_select_the_loss_but_not_the_other_terms(masking: str, low: float, high: float):
    tokens = random_tokens(3, spread=0.6)
    settings: dict[str, Any] = {"truncate": "token", "cap": 1.1, "mask": masking, "mask_low": low, "mask_high": high}
    found = objective(old_logprobs="learner", loss={"name": "cispo"}, correction=settings, entropy_bonus=0.5)(tokens)
    correction = correct(tokens, truncate="token", cap=1.1, masking=masking, mask_low=low, mask_high=high)  # type: ignore[arg-type]
    assert correction.kept is not None and correction.factors is not None
    assert 0 < int(correction.kept.sum()) < 24
    alone = cispo(tokens, clip_low=1.0, clip_high=4.0).per_token * correction.factors
    expected = torch.where(correction.kept, alone, 0.0) + 0.5 * entropy_bonus(tokens).per_token
    assert found.per_token.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert found.diagnostics["masked"].tolist() == (~correction.kept).tolist()


def test_a_masked_token_counts_for_no_sequence_ratio():
    tokens = random_tokens(4)
    far = replace(tokens, proximal_logprobs=tokens.sampler_logprobs.clone())
    far.proximal_logprobs[5] += 9.0
    kept = torch.arange(24) != 5
    masked = objective(loss={"name": "gspo"}, correction={"mask": "token"})
    assert torch.equal(masked(far).per_token[kept], objective(loss={"name": "gspo"})(far.select(kept)).per_token)


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, 1e30, -1e30])
def test_a_masked_token_has_no_loss_and_no_gradient_whatever_it_holds(value: float):
    tokens = of_logprobs([-1.0, -1.0], [-1.0, value], [1.0, 1.0])
    tokens = replace(tokens, proximal_logprobs=tokens.logprobs)
    masked = objective(correction={"mask": "token"})
    found, gradient = value_and_gradient(masked, tokens)
    assert found.tolist() == [-1.0, 0.0]
    assert gradient.tolist() == [-1.0, 0.0]


COMPOSED = {
    "decoupled ppo": {"old_logprobs": "learner", "correction": {"truncate": "token", "cap": 0.0}},
    "everything": {
        "old_logprobs": "learner", "loss": {"name": "gspo-token"}, "entropy_bonus": 0.1, "kl": {"coefficient": 0.2},
        "correction": {"truncate": "sequence", "mask": "geometric", "mask_low": 0.8, "mask_high": 1.2},
        "critic": {"kind": "head"},
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", COMPOSED.values(), ids=COMPOSED)
def test_layout_does_not_matter_and_float32_agrees(settings: dict[str, Any]):
    check_layout(objective(**settings), random_tokens(5))
    check_float32(objective(**settings), random_tokens(6))
