"""Learning from text or from a teacher: SFT and distillation.

Invariants (tests/learner/test_losses_imitation.py):
- each equals a plain float64 reference, in value and gradient;
- on-policy distillation of a teacher that agrees has zero gradient;
- forward KL is never negative, also when only the teacher's K best tokens are known, and is finite at any logprob.
"""

from __future__ import annotations

import math

import torch

from whippletree.learner.losses.base import LossOutput, Tokens, column, safe_ratio

LARGEST_TOTAL = -1e-6
"""The logarithm of the probability that a top-K list holds is taken as at most this, so that what is left over has a
logarithm."""


def sft(tokens: Tokens) -> LossOutput:
    """-log π: supervised fine-tuning, the negative log-likelihood of the token. Looks at neither advantages nor old
    logprobs."""
    return LossOutput(-tokens.logprobs)


def distill_reverse(tokens: Tokens, *, ratio_cap: float, advantage_limit: float, reward_share: float) -> LossOutput:
    """On-policy distillation by the reverse KL of each token: -sg(min(r, ratio_cap)·D)·log π, D = clip(log π_T - log π,
    ±advantage_limit) + reward_share·A, where π_T is the teacher and r = π/π_old (MOPD, arXiv:2601.02780, is reward_share > 0).

    For samples of π itself the expected gradient is that of KL(π‖π_T) over the next token.
    """
    teacher = column(tokens.teacher_logprobs, "teacher_logprobs")
    gap = (teacher - tokens.logprobs).detach()
    advantage = gap.clamp(-advantage_limit, advantage_limit) + reward_share * tokens.advantages
    ratio = safe_ratio(tokens.logprobs, tokens.old_logprobs).detach()
    weight = ratio.clamp(max=ratio_cap)
    diagnostics = {"clipped": weight != ratio, "ratio": ratio, "teacher_kl": -gap}
    return LossOutput(-(weight * advantage * tokens.logprobs), diagnostics)


def distill_forward(tokens: Tokens) -> LossOutput:
    """Forward KL(π_T‖π) over the teacher's K best tokens and one bucket for all others, which keeps it a KL divergence:
    Σ_k p_k·(log p_k - log π_k) + (1 - P)·(log(1 - P) - log(1 - Q)), P = Σ p_k, Q = Σ π_k."""
    teacher = column(tokens.teacher_top_logprobs, "teacher_top_logprobs")
    student = column(tokens.student_top_logprobs, "student_top_logprobs")
    share = torch.exp(teacher)
    listed = torch.where(share > 0, share * (teacher - student), 0.0).sum(-1)
    teacher_rest = _log_rest(torch.logsumexp(teacher, -1))
    student_rest = _log_rest(torch.logsumexp(student, -1))
    per_token = listed + torch.exp(teacher_rest) * (teacher_rest - student_rest)
    return LossOutput(per_token, {"teacher_kl": per_token.detach(), "teacher_listed": share.sum(-1).detach()})


def _log_rest(log_total: torch.Tensor) -> torch.Tensor:
    """log(1 - exp(log_total)), each branch where it is accurate."""
    total = log_total.clamp(max=LARGEST_TOTAL)
    near_one = total > -math.log(2.0)
    close = torch.log(-torch.expm1(torch.where(near_one, total, -1.0)))
    far = torch.log1p(-torch.exp(torch.where(near_one, -1.0, total)))
    return torch.where(near_one, close, far)
