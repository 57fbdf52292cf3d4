"""Loss weights: what one trained token of each sample counts for in the batch's loss.

The loss of a batch is the sum over trained tokens of weight × token loss. With R rollouts, N samples, L the trained tokens of
a sample, T those of its whole rollout and C a constant (Agent Lightning v1.0, Eqs. 14 to 16; Dr. GRPO, arXiv:2503.20783):

| mode | weight of a token | |
|---|---|---|
| rollout-mean | 1 / (R T) | Eq. 16: each rollout counts the same; the default |
| token-mean | 1 / (sum of all T) | Eq. 14: each token counts the same; long rollouts dominate |
| sequence-mean | 1 / (N L) | Eq. 15: each sample counts the same; rollouts that split count more |
| constant | 1 / (R C) | Dr. GRPO: each token counts the same in every batch, so length is not rewarded |

Every shipped mode divides 1 by a whole number, which is kept beside the weight, so that sums can be checked exactly.

Invariants (tests/batching/test_batching_weights.py):
- weights sum to exactly 1 over a batch's trained tokens (constant: to the number of tokens over R C);
- the sum does not depend on how rollouts split into samples, and but for sequence-mean the weight of no token does;
- in rollout-mean and constant, what a rollout weighs relative to another does not depend on how many rows there are;
- samples and rollouts without trained tokens get weight 0 and do not count in R or N.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from whippletree.batching.registry import Registry
from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.types import Struct


class SampleTokens(Struct):
    """How many tokens a sample trains.

    Example: SampleTokens(sample_id="s0003-g02-m5/0", rollout_id="s0003-g02-m5", trained_tokens=37)
    """

    sample_id: str
    rollout_id: str
    trained_tokens: int


class TokenCounts(Struct):
    """What a weight is made of: trained tokens of the sample, of its rollout and of the whole batch; rollouts and samples of
    the batch that train any; and the configured constant.

    Example: TokenCounts(sample=37, rollout=90, batch=4100, rollouts=64, samples=71, constant=4096)
    """

    sample: int
    rollout: int
    batch: int
    rollouts: int
    samples: int
    constant: int


Divisor = Callable[[TokenCounts], int | float]
"""What 1 is divided by for the weight of one token; above 0."""


def rollout_mean(counts: TokenCounts) -> int:
    """R T (Eq. 16)."""
    return counts.rollouts * counts.rollout


def token_mean(counts: TokenCounts) -> int:
    """The sum of all T (Eq. 14)."""
    return counts.batch


def sequence_mean(counts: TokenCounts) -> int:
    """N L (Eq. 15)."""
    return counts.samples * counts.sample


def constant(counts: TokenCounts) -> int:
    """R C (Dr. GRPO)."""
    return counts.rollouts * counts.constant


WEIGHTS: Registry[Divisor] = Registry(
    what="loss weight mode",
    arguments=("counts",),
    shipped={
        "rollout-mean": rollout_mean,
        "token-mean": token_mean,
        "sequence-mean": sequence_mean,
        "constant": constant,
    },
)


class LossWeights(Struct):
    """Weight of each trained token, by sample_id, and the divisors that they come from (0 without trained tokens). `total` is
    the sum of weights over tokens: the number of updates, up to rounding (but for "constant" and a user's own mode), 0 without
    tokens.

    Example: LossWeights(per_token={"a/0": 0.01, "a/1": 0.01}, divisors={"a/0": 100, "a/1": 100}, total=1.0, rollouts=1,
                         samples=2, empty_samples=0)
    """

    per_token: dict[str, float]
    divisors: dict[str, int | float]
    total: float
    rollouts: int
    samples: int
    empty_samples: int


def loss_weights(
    samples: Sequence[SampleTokens], mode: str = "rollout-mean", *, constant_tokens: int = 4096, updates: int = 1
) -> LossWeights:
    """Weights of a whole batch (all micro-batches and ranks together).

    Where the batch is spread over several `updates`, weights are that many times as large: then each update is an average of
    its own part, up to how evenly the batch is spread, and every rollout counts the same whichever update it is in.
    Raises AlignmentError when a sample is listed twice or has a negative count, ConfigurationError for an unknown mode or one
    whose divisor is not above 0.
    """
    divisor_of = WEIGHTS.find(mode)
    tokens_of = tokens_by_rollout(samples)
    rollouts = sum(1 for tokens in tokens_of.values() if tokens)
    full = sum(1 for sample in samples if sample.trained_tokens)
    batch = tokens_of.total()
    divisors: dict[str, int | float] = {}
    for sample in samples:
        divisor: int | float = 0
        if sample.trained_tokens:
            counts = TokenCounts(
                sample=sample.trained_tokens,
                rollout=tokens_of[sample.rollout_id],
                batch=batch,
                rollouts=rollouts,
                samples=full,
                constant=constant_tokens,
            )
            divisor = divisor_of(counts)
            if not 0 < divisor < math.inf:
                raise ConfigurationError(f"loss weight mode {mode!r} gave the divisor {divisor}", f"of {counts}; above 0")
        divisors[sample.sample_id] = divisor
    per_token = {name: updates / divisor if divisor else 0.0 for name, divisor in divisors.items()}
    return LossWeights(
        per_token=per_token,
        divisors=divisors,
        total=math.fsum(per_token[sample.sample_id] * sample.trained_tokens for sample in samples),
        rollouts=rollouts,
        samples=full,
        empty_samples=len(samples) - full,
    )


def tokens_by_rollout(samples: Sequence[SampleTokens]) -> Counter[str]:
    """Trained tokens of each rollout. Raises AlignmentError when a sample is listed twice or has a negative count."""
    tokens_of: Counter[str] = Counter()
    seen: set[str] = set()
    for sample in samples:
        if sample.sample_id in seen:
            raise AlignmentError(f"sample {sample.sample_id} is listed twice", "list each sample once")
        if sample.trained_tokens < 0:
            raise AlignmentError(f"sample {sample.sample_id} has {sample.trained_tokens} trained tokens", "count its mask")
        seen.add(sample.sample_id)
        tokens_of[sample.rollout_id] += sample.trained_tokens
    return tokens_of
