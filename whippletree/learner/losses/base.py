"""What a loss sees and what it gives back: per-token tensors, never rollouts.

Invariants (tests/learner/test_losses_base.py):
- a log-ratio beyond ±RATIO_LIMIT counts as that limit and gets no gradient, so neither its exponential nor the gradient
  overflows;
- `select` keeps the chosen tokens of every column, and a token that is not chosen has no influence on anything;
- a sequence's mean and sum are those of its own tokens, in whatever order sequences lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from whippletree.errors import ConfigurationError

RATIO_LIMIT = 20.0
"""Largest absolute log-ratio that is exponentiated, nats; exp(20) is 4.9e8."""


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of a row. Columns have shape [N] (two have [N, K]); only `logprobs`, `entropy`, `student_top_logprobs`
    and `values` carry gradients. All logprobs are at the run's temperature.

    `sampler_logprobs` are those of the policy μ that sampled. `proximal_logprobs` are the trainer's own of the policy before
    the update. `old_logprobs` is which of the two a ratio is taken to. `sequences` numbers the samples, in any order. Optional
    columns are None where nothing needs them.

    Example: three tokens of one sample: Tokens(logprobs=tensor([-1.0, -2.0, -0.5]), ..., sequences=tensor([0, 0, 0]))
    """

    logprobs: torch.Tensor
    sampler_logprobs: torch.Tensor
    proximal_logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    sequences: torch.Tensor
    entropy: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None
    teacher_logprobs: torch.Tensor | None = None
    teacher_top_logprobs: torch.Tensor | None = None
    student_top_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    old_values: torch.Tensor | None = None
    returns: torch.Tensor | None = None

    def select(self, chosen: torch.Tensor) -> Tokens:
        """The tokens that `chosen` (bool [N]) marks."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        found: dict[str, Any] = {name: None if values is None else values[chosen] for name, values in columns.items()}
        return Tokens(**found)

    def with_advantages(self, advantages: torch.Tensor) -> Tokens:
        """The same tokens with other advantages."""
        return replace(self, advantages=advantages)


@dataclass(frozen=True)
class LossOutput:
    """Loss of each token [N], before weights; a scalar loss is the weighted sum of it. `diagnostics` are tensors without
    gradient, one entry per token or per sequence. A log line shows their mean over the update, or the largest where a name ends
    in `_max`. "clipped" is what `clip_fraction` counts.

    Example: LossOutput(per_token=tensor([-0.5, 1.0]), diagnostics={"clipped": tensor([True, False])})
    """

    per_token: torch.Tensor
    diagnostics: Mapping[str, torch.Tensor] = field(default_factory=dict)


def column(values: torch.Tensor | None, name: str) -> torch.Tensor:
    """An optional column that a loss cannot do without. Raises ConfigurationError where the rows do not bring it."""
    if values is None:
        raise ConfigurationError(
            f"the loss needs {name}, which the rows do not bring", f"fill Row.{name}, or choose another learner.loss"
        )
    return values


def safe_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """exp(logprobs - old_logprobs), shape [N], its logarithm held within ±RATIO_LIMIT."""
    return torch.exp((logprobs - old_logprobs).clamp(-RATIO_LIMIT, RATIO_LIMIT))


def sequence_index(sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of sequences → (index of each token's sequence [N], number of tokens of each sequence [S])."""
    _, index, counts = torch.unique(sequences, return_inverse=True, return_counts=True)
    return index, counts


def sequence_sum(values: torch.Tensor, index: torch.Tensor, count: int) -> torch.Tensor:
    """Sum of `values` [N] over each sequence: [count]."""
    return values.new_zeros(count).index_add(0, index, values)


def sequence_mean(values: torch.Tensor, index: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Mean of `values` [N] over each sequence: [S]. `counts` are the sequences' tokens."""
    return sequence_sum(values, index, len(counts)) / counts
