"""Samples: training sequences."""

from __future__ import annotations

import msgspec

from whippletree.types.base import Bool, Float32, Int16, Int32


class Sample(msgspec.Struct, kw_only=True, frozen=True):
    """One training sequence: a root-to-leaf path of a rollout's trace. All columns have shape [L], but for `routing`.

    `trained` marks sampled, delivered tokens that this sample trains (shared prefixes are trained in one sample only);
    `logprobs` are the sampler's (0.0 where nothing was sampled); `versions` is the policy version (-1 in context). `routing`,
    [L, layers, k], where it was asked for and any call has it: the experts that each token went to, -1 where nobody recorded
    them.
    """

    sample_id: str
    rollout_id: str
    group_id: str
    call_ids: tuple[str, ...]
    token_ids: Int32
    trained: Bool
    logprobs: Float32
    versions: Int32
    routing: Int16 | None = None
