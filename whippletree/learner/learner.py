"""One optimiser update from rows, with the numbers that say whether it can be trusted.

Invariants (tests/learner/test_learner_update.py):
- an update from packed rows equals the update from one row per sample, to float32 tolerance;
- a row with a non-finite loss or gradient stops the step, names its samples, and leaves the parameters untouched;
- sampler and learner logprobs are compared on tokens that the current policy version sampled, before the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whippletree.errors import NonFiniteError
from whippletree.learner.config import LearnerConfig
from whippletree.learner.loss import ppo_clip
from whippletree.learner.model import load_model, row_logprobs, score
from whippletree.learner.rows import Row


@dataclass(frozen=True)
class UpdateStats:
    """Numbers of one update. `logprob_*` compare sampler and learner on tokens of the current version (NaN where none)."""

    tokens: int
    rows: int
    loss: float
    grad_norm: float
    clip_fraction: float
    ratio_max: float
    logprob_max_abs_diff: float
    logprob_correlation: float
    compared_tokens: int


@dataclass
class _Sums:
    tokens: int = 0
    clipped: int = 0
    loss: float = 0.0
    ratio_max: float = 1.0
    sampler: list[torch.Tensor] = field(default_factory=list)
    learner: list[torch.Tensor] = field(default_factory=list)


class Learner:
    """The policy with its optimiser. `policy_version` counts updates from 0, the weights that the run began with."""

    def __init__(self, directory: Path, config: LearnerConfig, *, temperature: float) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self.temperature = temperature
        self.model = load_model(
            directory, train_top_layers=config.train_top_layers, packing=config.packing, attention=config.attention
        )
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.policy_version = 0

    def score(self, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logprobs at temperature 1 of token_ids[1:] under the current weights."""
        return score(self.model, token_ids)

    def update(self, rows: Sequence[Row]) -> UpdateStats:
        """One AdamW step over all rows. Raises NonFiniteError, with parameters and optimiser as they were before.

        An update of no rows (no group had any signal) changes no parameter but still counts as a policy version.
        """
        self.optimizer.zero_grad(set_to_none=True)
        sums = _Sums()
        for row in rows:
            self._accumulate(row, sums)
        norm = self._clip(rows) if rows else 0.0
        if rows:
            self._set_learning_rate()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.policy_version += 1
        return _stats(sums, len(rows), norm)

    def _accumulate(self, row: Row, sums: _Sums) -> None:
        logprobs = row_logprobs(self.model, row, self.temperature)
        sampler = row.sampler_logprobs
        loss, clipped = ppo_clip(
            logprobs,
            sampler,
            row.advantages,
            row.weights,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        if not torch.isfinite(loss):
            raise NonFiniteError(
                f"loss {loss.item()} in the row of samples {', '.join(row.sample_ids)}",
                "read them with `whippletree rollouts show`",
            )
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            current = row.versions == self.policy_version
            sums.sampler.append(sampler[current])
            sums.learner.append(logprobs.detach()[current])
            sums.tokens += len(row.targets)
            sums.clipped += int(clipped.sum())
            sums.loss += float(loss)
            sums.ratio_max = max(sums.ratio_max, float(torch.exp(logprobs - sampler).max()))

    def _clip(self, rows: Sequence[Row]) -> float:
        limit = self.config.max_grad_norm or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        if not np.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            names = ", ".join(name for row in rows for name in row.sample_ids)
            raise NonFiniteError(
                f"gradient norm {norm} from samples {names}", "lower learner.learning_rate or look at the rows"
            )
        return norm

    def _set_learning_rate(self) -> None:
        share = min(1.0, (self.policy_version + 1) / max(1, self.config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * share


def _stats(sums: _Sums, rows: int, norm: float) -> UpdateStats:
    sampler = torch.cat(sums.sampler).double().numpy() if sums.sampler else np.zeros(0)
    learner = torch.cat(sums.learner).double().numpy() if sums.learner else np.zeros(0)
    enough = len(sampler) > 1 and sampler.std() > 0 and learner.std() > 0
    return UpdateStats(
        tokens=sums.tokens,
        rows=rows,
        loss=sums.loss,
        grad_norm=norm,
        clip_fraction=sums.clipped / max(1, sums.tokens),
        ratio_max=sums.ratio_max,
        logprob_max_abs_diff=float(np.abs(sampler - learner).max()) if len(sampler) else float("nan"),
        logprob_correlation=float(np.corrcoef(sampler, learner)[0, 1]) if enough else float("nan"),
        compared_tokens=len(sampler),
    )
