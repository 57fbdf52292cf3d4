"""Sampling of one token per row, with exact logprobs.

Invariants (tests/engines/test_embedded_sampling.py):
- a logprob is that of the token under softmax(logits / temperature) over the whole vocabulary, truncation or not;
- temperature 0 takes the most likely token and reports logprobs at temperature 1;
- which token is drawn depends on the row's own uniform number and distribution only; a token of probability 0 is never drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from whippletree.types import Sampling


def sample(logits: torch.Tensor, settings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Token ids and logprobs for logits [n, vocabulary] (float32, overwritten); uniforms [n] in [0, 1).

    A row whose logits are not finite gets the logprob NaN; the caller must refuse its token.
    """
    temperatures = {setting.temperature for setting in settings}
    if temperatures - {0.0, 1.0}:
        scales = torch.tensor([setting.temperature or 1.0 for setting in settings], dtype=torch.float32)
        logits.div_(scales[:, None])
    logprobs = torch.log_softmax(logits, -1)
    if temperatures == {0.0}:
        tokens = logprobs.argmax(-1, keepdim=True)
    else:
        tokens = _draw(logprobs, settings, uniforms)
        if 0.0 in temperatures:
            greedy = torch.tensor([setting.temperature == 0.0 for setting in settings])[:, None]
            tokens = torch.where(greedy, logprobs.argmax(-1, keepdim=True), tokens)
    return tokens[:, 0].tolist(), logprobs.gather(1, tokens)[:, 0].tolist()


def _draw(logprobs: torch.Tensor, settings: Sequence[Sampling], uniforms: Sequence[float]) -> torch.Tensor:
    """Inverse-CDF draw, [n, 1]: one uniform number per row, sums in float64 so that rounding cannot shift a token."""
    probabilities = logprobs.exp()
    for row, setting in enumerate(settings):
        if setting.top_k > 0 or setting.top_p < 1.0:
            probabilities[row] = _truncate(probabilities[row], setting.top_k, setting.top_p)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:] * (1.0 - 2.0**-52)  # so that no product below rounds up to the total itself
    wanted = torch.tensor(uniforms, dtype=torch.float64)[:, None] * total
    # right=True: the first entry strictly above `wanted`, which a token of probability 0 cannot be.
    return torch.searchsorted(cumulative, wanted, right=True).clamp_(max=logprobs.shape[1] - 1)


def _truncate(probabilities: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Zero all but the top_k most likely tokens and of those all but the smallest set with mass top_p; shape [vocabulary]."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    if 0 < top_k < len(ordered):
        ordered[top_k:] = 0.0
    if top_p < 1.0:
        before = ordered.cumsum(0, dtype=torch.float64) - ordered
        ordered[before >= top_p * ordered.sum()] = 0.0
    return torch.zeros_like(probabilities).scatter_(0, order, ordered)
