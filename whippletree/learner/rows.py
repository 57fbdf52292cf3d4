"""From samples and a plan to rows of tensors.

Samples of a row that begin with the same tokens (the harness's fixed prompt, the task) are laid behind one copy of that
beginning: it is computed once, forward and backward, and attention lets every sample see it.

Invariants (tests/learner/test_learner_model.py):
- every trained token of every planned sample is in exactly one row;
- nothing trained is shared, and what comes right before a trained token in the row is its own sample's;
- a column of a row, taken apart by sample and laid again, is the same column;
- a rollout with an advantage of exactly zero contributes no row (its gradient is zero) but keeps its vote in the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from whippletree.errors import AlignmentError
from whippletree.learner.model import SHARED, Row
from whippletree.types import Sample


def build_row(samples: Sequence[Sample], advantages: Mapping[str, float], weights: Mapping[str, float]) -> Row:
    """Lay samples end to end behind what all of them begin with. `advantages` is by rollout_id; `weights` is the weight of
    each trained token by sample_id."""
    shared = shared_beginning(samples)

    def lay(columns: Sequence[npt.NDArray[Any]], dtype: torch.dtype) -> torch.Tensor:
        """One column per sample → the row's: the shared beginning once, then the rest of each."""
        parts = [columns[0][:shared], *(column[shared:] for column in columns)]
        return torch.as_tensor(np.concatenate(parts)).to(dtype)

    def numbers(number: int, sample: Sample) -> npt.NDArray[np.int64]:
        return np.where(np.arange(len(sample.token_ids)) < shared, SHARED, number)

    return Row(
        token_ids=lay([sample.token_ids for sample in samples], torch.long),
        positions=lay([np.arange(len(sample.token_ids)) for sample in samples], torch.long),
        segments=lay([numbers(number, sample) for number, sample in enumerate(samples)], torch.long),
        targets=lay([sample.trained for sample in samples], torch.bool),
        sampler_logprobs=lay([sample.logprobs for sample in samples], torch.float32),
        versions=lay([sample.versions for sample in samples], torch.long),
        advantages=lay([np.where(sample.trained, advantages[sample.rollout_id], 0.0) for sample in samples], torch.float32),
        weights=lay([np.where(sample.trained, weights[sample.sample_id], 0.0) for sample in samples], torch.float32),
        sample_ids=tuple(sample.sample_id for sample in samples),
    )


def shared_beginning(samples: Sequence[Sample]) -> int:
    """Length of what all samples begin with, ended before the token that predicts any sample's first trained one; 0 for a
    single sample."""
    if len(samples) < 2:
        return 0
    limit = min(max(0, int(sample.trained.argmax()) - 1) for sample in samples)
    first = samples[0].token_ids[:limit]
    for sample in samples[1:]:
        differs = np.flatnonzero(first != sample.token_ids[: len(first)])
        first = first[: int(differs[0])] if len(differs) else first
    return len(first)


def by_sample(row: Row, column: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
    """A row's column [T] as one column per sample, [L], by sample_id: the shared beginning, then what is its own."""
    return {name: column[_places(row, number)].numpy() for number, name in enumerate(row.sample_ids)}


def lay_column(row: Row, columns: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
    """Columns of samples, [L] by sample_id, as the row's column [T], float32. Raises AlignmentError where a length differs."""
    laid = torch.zeros(len(row.token_ids))
    for number, name in enumerate(row.sample_ids):
        places = _places(row, number)
        given = np.array(columns[name], dtype=np.float32)
        if len(given) != len(places):
            raise AlignmentError(f"sample {name} has {len(places)} tokens, and a column of {len(given)}", "give one per token")
        laid[places] = torch.from_numpy(given)
    return laid


def _places(row: Row, number: int) -> torch.Tensor:
    """Places of a sample's tokens in its row, in order."""
    return torch.nonzero((row.segments == SHARED) | (row.segments == number))[:, 0]
