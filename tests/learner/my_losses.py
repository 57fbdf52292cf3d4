"""Losses as a user would write them."""

from __future__ import annotations

import torch

from whippletree.learner.losses.base import LossOutput, Tokens


def halved(tokens: Tokens, *, factor: float = 0.5) -> LossOutput:
    return LossOutput(-factor * tokens.advantages * tokens.logprobs, {"seen_max": tokens.advantages})


def scalar(tokens: Tokens) -> torch.Tensor:
    return tokens.logprobs.sum()


def too_short(tokens: Tokens) -> LossOutput:
    return LossOutput(tokens.logprobs[1:])


NOT_A_FUNCTION = 3


def constant_where_empty(tokens: Tokens) -> LossOutput:
    """REINFORCE, which without tokens is a number that depends on no parameter."""
    if not len(tokens.logprobs):
        return LossOutput(torch.zeros(0, dtype=tokens.logprobs.dtype), {})
    return LossOutput(-tokens.logprobs * tokens.advantages, {})
