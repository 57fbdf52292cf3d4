"""The numbers of an update: sums over rows and passes, folded into one struct; and those of a batch's updates together.

Invariants (tests/learner/test_learner_update.py):
- a diagnostic is the mean over all its entries of the update, however they lie in rows, or the largest where its name ends in
  `_max`;
- sampler and learner are compared on tokens that the current version sampled, before the update; over none it is NaN, not 0;
- of several updates of a batch, tokens add up, and means are over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from whippletree.learner.config import LearnerConfig
from whippletree.learner.losses.base import LossOutput, Tokens, safe_ratio


@dataclass(frozen=True)
class UpdateStats:
    """Numbers of one update. `logprob_*` compare sampler and learner on tokens of the current version (NaN where none).
    `metrics` are the diagnostics of the loss (docs/learner.md); `alarms` say in sentences what should be looked at. Of several
    passes, `loss`, `clip_fraction` and `metrics` are means, `grad_norm` is the last one's.

    Example: UpdateStats(tokens=512, rows=2, loss=0.01, ..., metrics={"ratio": 1.002}, alarms=())
    """

    tokens: int
    rows: int
    loss: float
    grad_norm: float
    clip_fraction: float
    ratio_max: float
    logprob_max_abs_diff: float
    logprob_correlation: float
    compared_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchStats:
    """Numbers of the updates that one batch was spread over, in order, and of all of them together (`whole`): there `loss` is
    the batch's, a mean over updates, and `grad_norm` the largest of theirs.

    Example: BatchStats(whole=UpdateStats(tokens=5, ...), updates=(UpdateStats(tokens=3, ...), UpdateStats(tokens=2, ...)))
    """

    whole: UpdateStats
    updates: tuple[UpdateStats, ...]


@dataclass
class Sums:
    """What rows add up to."""

    tokens: int = 0
    rows: int = 0
    seen: int = 0
    clipped: int = 0
    loss: float = 0.0
    ratio_max: float = 1.0
    sampler: list[torch.Tensor] = field(default_factory=list)
    learner: list[torch.Tensor] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, tokens: Tokens, output: LossOutput, loss: float, *, current: torch.Tensor, first: bool) -> None:
        """One row in one pass. `current` marks tokens that the current version sampled; only the first pass compares those."""
        count = len(tokens.logprobs)
        self.seen += count
        self.loss += loss
        if first:
            self.tokens += count
            self.sampler.append(tokens.sampler_logprobs[current].cpu())
            self.learner.append(tokens.logprobs.detach()[current].cpu())
        if count:
            self.ratio_max = max(self.ratio_max, float(safe_ratio(tokens.logprobs, tokens.sampler_logprobs).max()))
        if "clipped" in output.diagnostics:
            self.clipped += int(output.diagnostics["clipped"].sum())
        for name, values in output.diagnostics.items():
            if not values.numel():
                continue
            if name.endswith("_max"):
                self.totals[name] = max(self.totals.get(name, -np.inf), float(values.max()))
                self.counts[name] = 1
            else:
                self.totals[name] = self.totals.get(name, 0.0) + float(values.double().sum())
                self.counts[name] = self.counts.get(name, 0) + values.numel()

    def add_mean(self, name: str, value: float, count: int) -> None:
        """A number of one row, that counts `count` times in the mean."""
        self.totals[name] = self.totals.get(name, 0.0) + value * count
        self.counts[name] = self.counts.get(name, 0) + count

    def merge(self, other: Sums) -> None:
        """Add what other rows, of another rank or update, add up to."""
        self.tokens += other.tokens
        self.rows += other.rows
        self.seen += other.seen
        self.clipped += other.clipped
        self.loss += other.loss
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.sampler += other.sampler
        self.learner += other.learner
        for name, total in other.totals.items():
            if name.endswith("_max"):
                self.totals[name] = max(self.totals.get(name, -np.inf), total)
                self.counts[name] = 1
            else:
                self.totals[name] = self.totals.get(name, 0.0) + total
                self.counts[name] = self.counts.get(name, 0) + other.counts[name]

    def mark(self, name: str) -> tuple[float, int]:
        """Where a diagnostic stands, for a mean of what comes after."""
        return self.totals.get(name, 0.0), self.counts.get(name, 0)

    def mean(self, name: str, since: tuple[float, int] = (0.0, 0)) -> float:
        """A diagnostic; 0.0 where no row had it."""
        total, count = self.mark(name)
        return (total - since[0]) / max(1, count - since[1])

    def stats(self, config: LearnerConfig, *, passes: int, norm: float) -> UpdateStats:
        """The folded numbers."""
        sampler = torch.cat(self.sampler).double().numpy() if self.sampler else np.zeros(0)
        learner = torch.cat(self.learner).double().numpy() if self.learner else np.zeros(0)
        enough = len(sampler) > 1 and sampler.std() > 0 and learner.std() > 0
        return UpdateStats(
            tokens=self.tokens,
            rows=self.rows,
            loss=self.loss / passes,
            grad_norm=norm,
            clip_fraction=self.clipped / max(1, self.seen),
            ratio_max=self.ratio_max,
            logprob_max_abs_diff=float(np.abs(sampler - learner).max()) if len(sampler) else float("nan"),
            logprob_correlation=float(np.corrcoef(sampler, learner)[0, 1]) if enough else float("nan"),
            compared_tokens=len(sampler),
            metrics={name: self.mean(name) for name in sorted(self.totals)},
            alarms=self._alarms(config),
        )

    def _alarms(self, config: LearnerConfig) -> tuple[str, ...]:
        limit = config.correction.max_masked_share
        for name, what in (("masked_sequences", "samples"), ("masked", "tokens")):
            share = self.mean(name)
            if share > limit:
                bounds = f"[{config.correction.mask_low:g}, {config.correction.mask_high:g}]"
                told = f"learner.correction.mask leaves out {share:.0%} of the {what}, more than {limit:.0%}"
                return (f"{told}: sampler and learner are further apart than the bounds {bounds} allow",)
        return ()


def batch_stats(updates: Sequence[tuple[Sums, float]], config: LearnerConfig) -> BatchStats:
    """Fold the sums and gradient norms of a batch's updates."""
    folded = tuple(sums.stats(config, passes=config.passes, norm=norm) for sums, norm in updates)
    if len(folded) == 1:
        return BatchStats(folded[0], folded)
    total = Sums()
    for sums, _ in updates:
        total.merge(sums)
    largest = max((norm for _, norm in updates), default=0.0)
    whole = total.stats(config, passes=config.passes * max(1, len(updates)), norm=largest)
    return BatchStats(replace(whole, alarms=tuple(dict.fromkeys(told for one in folded for told in one.alarms))), folded)
