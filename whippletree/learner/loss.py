"""Losses: functions of per-token tensors and weights, never of rollouts.

Invariants (tests/learner/test_loss.py):
- with ratio 1 everywhere the gradient is that of the plain policy gradient;
- tokens outside the clip get exactly zero gradient on the side that the clip closes;
- the weights alone decide how tokens are averaged.
"""

from __future__ import annotations

import torch


def ppo_clip(
    logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate (Schulman et al. 2017, Eq. 7) with separate widths below and above (DAPO's clip-higher).

    All tensors have shape [N]: trained tokens of a row. Returns the weighted sum to minimise (scalar) and, per token,
    whether the clip was active (bool [N]).
    """
    ratio = torch.exp(logprobs - sampler_logprobs)
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -(torch.minimum(plain, clipped) * weights).sum(), clipped < plain
