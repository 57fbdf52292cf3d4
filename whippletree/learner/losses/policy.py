"""Policy-gradient losses with one ratio per token.

All take `Tokens` and give back the loss of each token before weights. r = π/π_old is the ratio to `old_logprobs`, A the
advantage.

Invariants (tests/learner/test_losses_policy.py):
- each equals a plain float64 reference, in value and gradient;
- with ratio 1 everywhere the gradient is that of the plain policy gradient, -A·∇log π;
- tokens outside a clip or mask get exactly zero gradient on the side that it closes, and stay finite at any log-ratio.
"""

from __future__ import annotations

import torch

from whippletree.learner.losses.base import RATIO_LIMIT, LossOutput, Tokens, safe_ratio


def reinforce(tokens: Tokens) -> LossOutput:
    """-A·log π (Williams 1992). Looks at no old logprobs: samples count as the current policy's own, unless a correction
    (learner.correction) says how far off they are."""
    return LossOutput(-(tokens.logprobs * tokens.advantages))


def ppo_clip(tokens: Tokens, *, clip_low: float, clip_high: float) -> LossOutput:
    """-min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A): PPO's clipped surrogate (Schulman et al. 2017, Eq. 7) with separate
    widths below and above (DAPO's clip-higher, arXiv:2503.14476)."""
    ratio = safe_ratio(tokens.logprobs, tokens.old_logprobs)
    plain = ratio * tokens.advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * tokens.advantages
    return LossOutput(-torch.minimum(plain, clipped), {"clipped": clipped < plain, "ratio": ratio.detach()})


def dual_clip(tokens: Tokens, *, clip_low: float, clip_high: float, bound: float) -> LossOutput:
    """PPO's clipped surrogate, and for A < 0 never below bound·A (Ye et al. 2020, arXiv:1912.09729, where `bound` is c):
    a token that has become much more likely since it was sampled cannot dominate an update."""
    single = ppo_clip(tokens, clip_low=clip_low, clip_high=clip_high)
    ceiling = -bound * tokens.advantages
    bounded = (tokens.advantages < 0) & (ceiling < single.per_token)
    per_token = torch.where(bounded, ceiling, single.per_token)
    clipped = single.diagnostics["clipped"] | bounded
    return LossOutput(per_token, {**single.diagnostics, "clipped": clipped, "dual_clipped": bounded})


def cispo(tokens: Tokens, *, clip_low: float, clip_high: float) -> LossOutput:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high))·A·log π (MiniMax-M1, arXiv:2506.13585; sg stops the gradient): the
    importance weight is clipped, and every token keeps its gradient."""
    ratio = safe_ratio(tokens.logprobs, tokens.old_logprobs).detach()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return LossOutput(-(weight * tokens.advantages * tokens.logprobs), {"clipped": weight != ratio, "ratio": ratio})


def masked_importance(
    tokens: Tokens, *, positive_low: float, positive_high: float, negative_low: float, negative_high: float
) -> LossOutput:
    """-r·M·A·log π with r = sg(π/μ) per token, and M zero outside four bounds: [positive_low, positive_high] for A ≥ 0 and
    [negative_low, negative_high] for A < 0 (MiMo-V2.6 report; one pair of bounds for both signs is IcePop's mask).

    μ is always the sampler. M is a selection: a token outside its bounds is not computed with at all.
    """
    log_ratio = (tokens.logprobs - tokens.sampler_logprobs).detach()
    ratio = torch.exp(log_ratio.clamp(-RATIO_LIMIT, RATIO_LIMIT))
    within_positive = (ratio >= positive_low) & (ratio <= positive_high)
    within_negative = (ratio >= negative_low) & (ratio <= negative_high)
    kept = torch.where(tokens.advantages >= 0, within_positive, within_negative)
    weight = torch.where(kept, ratio * tokens.advantages, 0.0)
    return LossOutput(-(weight * torch.where(kept, tokens.logprobs, 0.0)), {"clipped": ~kept, "ratio": ratio})
