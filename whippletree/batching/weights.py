"""Loss weights: what one trained token of each sample counts for in the batch's loss.

The loss of a batch is the sum over trained tokens of weight * token loss. With R rollouts, N samples, L the trained tokens of
a sample and T those of its whole rollout (Agent Lightning v1.0, Eqs. 14 to 16):

| mode | weight of a token | |
|---|---|---|
| rollout-mean | 1 / (R T) | Eq. 16: each rollout counts the same; the default |
| token-mean | 1 / (sum of all T) | Eq. 14: each token counts the same; long rollouts dominate |
| sequence-mean | 1 / (N L) | Eq. 15: each sample counts the same; rollouts that split count more |

Invariants (tests/batching/test_batching_weights.py):
- weights sum to 1 over the batch's trained tokens, in every mode, however rollouts split into samples;
- in rollout-mean and token-mean the weight of each token, too, does not depend on how its rollout split;
- samples and rollouts without trained tokens get weight 0 and do not count in R or N.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from whippletree.errors import AlignmentError
from whippletree.types import Struct

Mode = Literal["rollout-mean", "token-mean", "sequence-mean"]


class SampleTokens(Struct):
    """How many tokens a sample trains.

    Example: SampleTokens(sample_id="s0003-g02-m5/0", rollout_id="s0003-g02-m5", trained_tokens=37)
    """

    sample_id: str
    rollout_id: str
    trained_tokens: int


class LossWeights(Struct):
    """Weight of each trained token, by sample_id. `total` is their sum over tokens: 1 up to rounding, 0 without tokens.

    Example: LossWeights(per_token={"a/0": 0.01, "a/1": 0.01}, total=1.0, rollouts=1, samples=2, empty_samples=0)
    """

    per_token: dict[str, float]
    total: float
    rollouts: int
    samples: int
    empty_samples: int


def loss_weights(samples: Sequence[SampleTokens], mode: Mode = "rollout-mean") -> LossWeights:
    """Weights of a whole batch (one optimiser update, all micro-batches and ranks together).

    Raises AlignmentError when a sample is listed twice or has a negative count.
    """
    tokens_of: Counter[str] = Counter()
    seen: set[str] = set()
    for sample in samples:
        if sample.sample_id in seen:
            raise AlignmentError(f"sample {sample.sample_id} is listed twice", "list each sample once")
        if sample.trained_tokens < 0:
            raise AlignmentError(f"sample {sample.sample_id} has {sample.trained_tokens} trained tokens", "count its mask")
        seen.add(sample.sample_id)
        tokens_of[sample.rollout_id] += sample.trained_tokens
    rollouts = sum(1 for tokens in tokens_of.values() if tokens)
    full = sum(1 for sample in samples if sample.trained_tokens)
    all_tokens = tokens_of.total()
    per_token: dict[str, float] = {}
    for sample in samples:
        divisor = {
            "rollout-mean": rollouts * tokens_of[sample.rollout_id],
            "token-mean": all_tokens,
            "sequence-mean": full * sample.trained_tokens,
        }[mode]
        per_token[sample.sample_id] = 1.0 / divisor if sample.trained_tokens else 0.0
    return LossWeights(
        per_token=per_token,
        total=math.fsum(per_token[sample.sample_id] * sample.trained_tokens for sample in samples),
        rollouts=rollouts,
        samples=full,
        empty_samples=len(samples) - full,
    )
