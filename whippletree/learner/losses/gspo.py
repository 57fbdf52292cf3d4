"""Group sequence policy optimisation (GSPO, arXiv:2507.18071): one ratio per sequence, a sequence being a sample.

s = exp(mean over the sample's trained tokens of (log π - log π_old)), its length-normalised likelihood ratio.

Invariants (tests/learner/test_losses_gspo.py):
- both variants equal a plain float64 reference, in value and gradient, however samples lie in rows;
- where a sample's tokens share one advantage and one weight, the two variants have the same value and gradient;
- all tokens of a sample are clipped, or none.
"""

from __future__ import annotations

import torch

from whippletree.learner.losses.base import RATIO_LIMIT, LossOutput, Tokens, sequence_index, sequence_mean


def gspo(tokens: Tokens, *, clip_low: float, clip_high: float) -> LossOutput:
    """-min(s·A, clip(s, 1 - clip_low, 1 + clip_high)·A) for each token of the sample; the gradient goes through s."""
    index, counts = sequence_index(tokens.sequences)
    log_ratio = sequence_mean(tokens.logprobs - tokens.old_logprobs, index, counts)
    ratio = torch.exp(log_ratio.clamp(-RATIO_LIMIT, RATIO_LIMIT))[index]
    return _clipped(ratio, tokens.advantages, clip_low, clip_high)


def gspo_token(tokens: Tokens, *, clip_low: float, clip_high: float) -> LossOutput:
    """GSPO-token: s_t = sg(s)·π_t/sg(π_t) in place of s, which is the same number, but each token's gradient is weighted by its
    own advantage."""
    index, counts = sequence_index(tokens.sequences)
    log_ratio = sequence_mean((tokens.logprobs - tokens.old_logprobs).detach(), index, counts)
    whole = torch.exp(log_ratio.clamp(-RATIO_LIMIT, RATIO_LIMIT))[index]
    return _clipped(whole * torch.exp(tokens.logprobs - tokens.logprobs.detach()), tokens.advantages, clip_low, clip_high)


def _clipped(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> LossOutput:
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return LossOutput(-torch.minimum(plain, clipped), {"clipped": clipped < plain, "ratio": ratio.detach()})
