"""What is added to a loss: KL to a reference policy, entropy, and the critic's value loss.

Invariants (tests/learner/test_losses_regularisers.py):
- each equals a plain float64 reference, in value and gradient;
- KL estimates are finite in float32, forward and backward, at any pair of logprobs, and always pull towards the reference;
- k2 and k3 are never negative; k1, k2 and k3 vanish where policy and reference agree;
- a KL in the reward reaches only tokens of its own sample, and only those not after it.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from whippletree.learner.losses.base import LossOutput, Tokens, column

KL_LIMIT = 10.0
"""log(π_ref/π) above which k3's exponential goes on as its tangent, and k2's square as well, nats."""

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """KL(π‖π_ref) estimated from the sampled token (Schulman, "Approximating KL divergence"), x = log π_ref - log π:
    k1 = -x, k2 = x²/2, k3 = exp(x) - 1 - x. Shape [N].

    Beyond KL_LIMIT the growing part of k2 and k3 is continued as its tangent: it neither overflows nor loses its gradient.
    """
    gap = reference_logprobs - logprobs
    if estimator == "k1":
        return -gap
    if estimator == "k2":
        inside = gap.clamp(-KL_LIMIT, KL_LIMIT)
        return torch.where(gap.abs() <= KL_LIMIT, 0.5 * inside * inside, KL_LIMIT * gap.abs() - 0.5 * KL_LIMIT**2)
    slope = math.exp(KL_LIMIT)
    tangent = slope * (gap - KL_LIMIT) + math.expm1(KL_LIMIT)
    grown = torch.where(gap <= KL_LIMIT, torch.expm1(gap.clamp(max=KL_LIMIT)), tangent)
    return grown - gap


def kl_loss(tokens: Tokens, *, estimator: Estimator) -> LossOutput:
    """KL to the reference as a loss of its own."""
    reference = column(tokens.reference_logprobs, "reference_logprobs")
    return LossOutput(kl_estimate(tokens.logprobs, reference, estimator), _kl_diagnostics(tokens, reference))


def kl_in_reward(tokens: Tokens, *, estimator: Estimator, coefficient: float) -> tuple[Tokens, LossOutput]:
    """The tokens with coefficient·(Σ of the KL estimates from each token to its sample's end) taken off their advantages: the
    return of a reward of -coefficient·KL per token, undiscounted (as in REINFORCE++, arXiv:2501.03262). The estimates are
    those of the policy before the update, without gradient. The tokens of a sample must be in order."""
    reference = column(tokens.reference_logprobs, "reference_logprobs")
    estimates = kl_estimate(tokens.proximal_logprobs, reference, estimator).detach()
    penalty = torch.empty_like(estimates)
    for number in torch.unique(tokens.sequences):
        own = tokens.sequences == number
        penalty[own] = estimates[own].flip(0).cumsum(0).flip(0)
    changed = tokens.with_advantages(tokens.advantages - coefficient * penalty)
    return changed, LossOutput(torch.zeros_like(estimates), _kl_diagnostics(tokens, reference))


def _kl_diagnostics(tokens: Tokens, reference: torch.Tensor) -> dict[str, torch.Tensor]:
    """k3 whatever estimator trains: it is the one with little variance, and what the alarm looks at."""
    return {"reference_kl": kl_estimate(tokens.logprobs.detach(), reference, "k3")}


def entropy_bonus(tokens: Tokens) -> LossOutput:
    """-H(π) of the distribution that the token was drawn from, nats: minimised, it keeps the policy from collapsing."""
    entropy = column(tokens.entropy, "entropy")
    return LossOutput(-entropy, {"entropy": entropy.detach()})


def value_loss(tokens: Tokens, *, clip: float) -> LossOutput:
    """½·max((V - R)², (clip(V, V_old ± clip) - R)²), the clipped value loss of PPO's implementation; clip = 0 is ½·(V - R)²."""
    values, returns = column(tokens.values, "values"), column(tokens.returns, "returns")
    plain = (values - returns).square()
    diagnostics = {"value": values.detach(), "value_error": plain.detach()}
    if clip == 0:
        return LossOutput(0.5 * plain, diagnostics)
    old = column(tokens.old_values, "old_values")
    held = (old + (values - old).clamp(-clip, clip) - returns).square()
    diagnostics["value_clipped"] = (held > plain).detach()
    return LossOutput(0.5 * torch.maximum(plain, held), diagnostics)
