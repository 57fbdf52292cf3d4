"""From samples and a plan to rows of tensors.

Invariants (tests/learner/test_rows.py):
- every trained token of every planned sample is in exactly one row;
- a rollout with an advantage of exactly zero contributes no row (its gradient is zero) but keeps its vote in the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from whippletree.learner.model import Row
from whippletree.types import Sample


def build_row(samples: Sequence[Sample], advantages: Mapping[str, float], weights: Mapping[str, float]) -> Row:
    """Lay samples end to end. `advantages` is by rollout_id; `weights` is the weight of each trained token by sample_id."""
    segments = [np.full(len(sample.token_ids), number) for number, sample in enumerate(samples)]
    per_token_advantage = [np.where(sample.trained, advantages[sample.rollout_id], 0.0) for sample in samples]
    per_token_weight = [np.where(sample.trained, weights[sample.sample_id], 0.0) for sample in samples]

    def column(parts: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.concatenate(parts)).to(dtype)

    return Row(
        token_ids=column([sample.token_ids for sample in samples], torch.long),
        positions=column([np.arange(len(sample.token_ids)) for sample in samples], torch.long),
        segments=column(segments, torch.long),
        targets=column([sample.trained for sample in samples], torch.bool),
        sampler_logprobs=column([sample.logprobs for sample in samples], torch.float32),
        versions=column([sample.versions for sample in samples], torch.long),
        advantages=column(per_token_advantage, torch.float32),
        weights=column(per_token_weight, torch.float32),
        sample_ids=tuple(sample.sample_id for sample in samples),
    )
