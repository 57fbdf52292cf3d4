"""Corrections between the policy that sampled (μ, the engine's logprobs) and the trainer's before the update (π_old).

ρ = π_old/μ per token; of a sample, the product of its tokens' ρ, or their geometric mean. Truncation multiplies a token's loss
by min(ρ, cap); masking leaves out tokens or samples whose ρ is outside bounds. Both compose with any loss.

Invariants (tests/learner/test_losses_corrections.py):
- a product over a sample is formed in log space: no inf, whatever the length;
- no gradient flows through ρ;
- a sample is kept whole or left out whole where the mask looks at samples;
- with π_old = μ nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from whippletree.learner.losses.base import RATIO_LIMIT, Tokens, sequence_index, sequence_sum

Truncation = Literal["off", "token", "sequence"]
Masking = Literal["off", "token", "sequence", "geometric"]


@dataclass(frozen=True)
class Correction:
    """`factors` [N] multiply the tokens' losses, `kept` [N] (bool) says which tokens count at all; None: nothing to do."""

    factors: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    diagnostics: dict[str, torch.Tensor] = field(default_factory=dict)


def mismatch(tokens: Tokens) -> torch.Tensor:
    """log ρ = log π_old - log μ of each token: [N], no gradient."""
    return (tokens.proximal_logprobs - tokens.sampler_logprobs).detach()


def truncation(
    tokens: Tokens, *, level: Literal["token", "sequence"], cap: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """min(ρ, cap) of each token: truncated importance sampling, TIS (Ionides 2008; between engine and trainer: Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training"). `level` "sequence" takes the product over the
    sample. cap = 0: no cap but exp(RATIO_LIMIT), as in decoupled PPO (arXiv:2505.24298)."""
    logs = mismatch(tokens)
    if level == "sequence":
        index, counts = sequence_index(tokens.sequences)
        logs = sequence_sum(logs, index, len(counts))[index]
    limit = min(RATIO_LIMIT, math.log(cap)) if cap else RATIO_LIMIT
    return torch.exp(logs.clamp(max=limit)), {"truncated": logs > limit, "sampler_ratio": safe_exp(logs)}


def mask(
    tokens: Tokens, *, level: Literal["token", "sequence", "geometric"], low: float, high: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Which tokens have low ≤ ρ ≤ high. `level` "token" looks at each token's ρ (IcePop), "sequence" at the product over the
    sample (MIS), "geometric" at the geometric mean of the sample's ρ, which does not drift with length."""
    logs = mismatch(tokens)
    bottom, top = (math.log(low) if low else -math.inf), (math.log(high) if high else math.inf)
    if level == "token":
        kept = (logs >= bottom) & (logs <= top)
        return kept, {"masked": ~kept}
    index, counts = sequence_index(tokens.sequences)
    sums = sequence_sum(logs, index, len(counts))
    of_sequence = sums / counts if level == "geometric" else sums
    kept = (of_sequence >= bottom) & (of_sequence <= top)
    return kept[index], {"masked": ~kept[index], "masked_sequences": ~kept}


def correct(
    tokens: Tokens, *, truncate: Truncation, cap: float, masking: Masking, mask_low: float, mask_high: float
) -> Correction:
    """Both corrections, as configured."""
    factors: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    diagnostics: dict[str, torch.Tensor] = {}
    if truncate != "off":
        factors, found = truncation(tokens, level=truncate, cap=cap)
        diagnostics |= found
    if masking != "off":
        kept, found = mask(tokens, level=masking, low=mask_low, high=mask_high)
        diagnostics |= found
    return Correction(factors, kept, diagnostics)


def safe_exp(logs: torch.Tensor) -> torch.Tensor:
    """exp with its argument held within ±RATIO_LIMIT."""
    return torch.exp(logs.clamp(-RATIO_LIMIT, RATIO_LIMIT))
