"""What the tokens of a row see: masks made of a forest's intervals, and the check that a model obeys them.

Token i sees token j if and only if j <= i < exit(j): j is on i's path (learner/rows.py). With d the depth in the tree, which is
the position that the model is told:

| layers | sees besides |
|---|---|
| full_attention | nothing else is asked |
| sliding_attention, window w | d(i) - d(j) < w |
| chunked_attention, chunks of c | d(i) // c = d(j) // c |

A layer whose state runs along the row (linear attention, convolution, state space) would carry one sample into the next: such
models take one sample per row. Nothing is believed: `check_rows` tries each model on a small forest when it is loaded.

Three ways to compute it: by runs (learner/runs.py), which is exact in cost as well; FlexAttention's block masks on a GPU, which
leave out blocks that nobody sees; and dense masks, which every model can do.

Invariants (tests/learner/test_tree_models.py):
- in every supported model a sample's logprobs and gradients are those that it has alone;
- a model whose layers do not obey is refused with the reason and what to set instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from whippletree.errors import ConfigurationError
from whippletree.learner import runs
from whippletree.learner.rows import Row, all_trained, build_row

Kind = Literal["full_attention", "sliding_attention", "chunked_attention"]
KINDS: tuple[Kind, ...] = ("full_attention", "sliding_attention", "chunked_attention")
Sees = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Indices in a row of those who look and of those who are looked at, broadcast together → bool."""

Way = Literal["auto", "runs", "flex", "dense"]

PROBE = ((3, 5, 7, 9, 11, 4), (3, 5, 7, 9, 2, 6, 8), (3, 5, 1), (10, 12, 14, 3))
"""Token ids of the samples that a model is tried on: a tree of three, and one that shares nothing."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Largest difference of logprobs (in half precision: mean) that counts as rounding: a wrong mask is off by far more."""


def layer_kinds(model: Any) -> tuple[str, ...]:
    """The kinds of attention in a model's layers, each once."""
    config = model.config.get_text_config()
    listed = getattr(config, "layer_types", None)
    if listed:
        return tuple(dict.fromkeys(listed))
    return ("sliding_attention",) if getattr(config, "sliding_window", None) else ("full_attention",)


def sees(row: Row, kind: Kind, config: Any) -> Sees:
    """Which token of the row sees which, in a layer of that kind of a model with that (text) configuration."""
    exits, depth = row.exits, row.positions

    def on_path(i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (j <= i) & (i < exits[j])

    match kind:
        case "full_attention":
            return on_path
        case "sliding_attention":
            window = config.sliding_window
            return lambda i, j: on_path(i, j) & (depth[i] - depth[j] < window)
        case "chunked_attention":
            chunk = config.attention_chunk_size
            return lambda i, j: on_path(i, j) & (depth[i] // chunk == depth[j] // chunk)


def look(model: Any, row: Row) -> dict[str, Any]:
    """What to tell the model of who sees whom in a row: arguments of its forward. One sample alone is plainly causal.

    Raises ConfigurationError for a model with a kind of layer that sees more than its mask.
    """
    by_runs = model.config._attn_implementation == runs.NAME
    if len(row.sample_ids) <= 1 and not by_runs:
        return {"attention_mask": None}
    kinds = layer_kinds(model)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        kinds_said = ", ".join(unknown)
        raise ConfigurationError(f"this model's layers of kind {kinds_said} carry state from one sample to the next", _INSTEAD)
    if by_runs:  # a mask of four axes is left alone
        return {"attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool), "runs": runs.runs_of(row)}
    config = model.config.get_text_config()
    made = {kind: _mask(sees(row, kind, config), row, model) for kind in KINDS if kind in kinds}
    return {"attention_mask": made if len(made) > 1 else next(iter(made.values()))}


def _mask(seen: Sees, row: Row, model: Any) -> Any:
    length, device = len(row.token_ids), row.token_ids.device
    implementation = model.config._attn_implementation
    if implementation == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(lambda b, h, i, j: seen(i, j), None, None, length, length, device=str(device))
    index = torch.arange(length, device=device)
    allowed = seen(index[:, None], index[None, :])[None, None]
    if implementation == "sdpa":
        return allowed
    dtype = next(model.parameters()).dtype
    return torch.zeros(allowed.shape, dtype=dtype, device=device).masked_fill_(~allowed, torch.finfo(dtype).min)


_INSTEAD = 'set learner.packing = "single": one sample per row, which any causal model can do'


def choose(model: Any, logprobs: Callable[[Any, Row], torch.Tensor], way: Way, *, share: bool) -> str:
    """Set the model to the first way of attention that computes rows rightly, and name it. "auto" tries runs, or on a GPU
    block masks, and then dense masks. Raises ConfigurationError with what was wrong with the last one."""
    runs.register()
    device = next(model.parameters()).device.type
    asked = {"auto": ("flex" if device == "cuda" else "runs", "dense")}.get(way, (way,))
    plain = model.config._attn_implementation
    names = {"runs": runs.NAME, "flex": "flex_attention", "dense": plain}
    for index, name in enumerate(asked):
        try:
            model.set_attn_implementation(names[name])
            check_rows(model, logprobs, share=share)
            return name
        except (ConfigurationError, ValueError, ImportError) as error:
            model.set_attn_implementation(plain)
            if index == len(asked) - 1:
                raise (
                    error
                    if isinstance(error, ConfigurationError)
                    else ConfigurationError(
                        f"this model has no attention of kind {name}: {error}", 'set learner.attention = "auto"'
                    )
                ) from error
    raise AssertionError("unreachable: there is always one way")


def probe_row(samples: int, *, share: bool) -> Row:
    """The first so many of the samples that a model is tried on, in one row; `share`: what they have in common lies there
    once."""
    found = [all_trained(f"probe-{number}", ids) for number, ids in enumerate(PROBE[:samples])]
    names = {sample.sample_id: 1.0 for sample in found}
    return build_row(found, names, names, shared=None if share else [0] * len(found))


def check_rows(
    model: Any, logprobs: Callable[[Any, Row], torch.Tensor], *, share: bool, dtype: torch.dtype | None = None
) -> None:
    """Compare a model's logprobs on a row of several samples (`share`: that share beginnings) with those of each sample alone.

    `logprobs(model, row)` gives those of the targets, [N]; `dtype`: what its layers compute in, where not in that of the
    weights. Raises ConfigurationError with how far they are apart.
    """
    samples = [all_trained(f"probe-{number}", ids) for number, ids in enumerate(PROBE)]
    names = {sample.sample_id: 1.0 for sample in samples}
    row = probe_row(len(samples), share=share)
    by_id = {sample.sample_id: sample for sample in samples}
    with torch.no_grad():
        try:
            alone = torch.cat([logprobs(model, build_row([by_id[name]], names, names)) for name in row.sample_ids])
            found = logprobs(model, row)
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise ConfigurationError(f"this model cannot compute a row of several samples: {error}", _INSTEAD) from error
    off, limit = difference(found, alone, dtype or model.dtype)
    if not off <= limit:
        what = "shared beginnings" if share else "several samples"
        raise ConfigurationError(
            f"with {what} in a row this model's logprobs are off by {off:.2g} (at most {limit:g})", _INSTEAD
        )


def difference(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """How far logprobs are apart, the largest difference or in half precision the mean, and what of it counts as rounding."""
    apart = (found - expected).abs()
    return float(apart.mean() if dtype in (torch.bfloat16, torch.float16) else apart.max()), TOLERANCE[dtype]
