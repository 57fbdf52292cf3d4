"""Attention over a forest without a mask of the whole row: run by run.

A run is a stretch of a row in which every token follows the one before it on its path. Its tokens see the path before the run
and, causally, the run itself, so each run is one attention over exactly the keys that it needs: nothing is computed that nobody
sees, and samples that lie end to end cost what they cost alone.

    index    0 1 2 3 | 4 | 5 6       runs [0,4) [4,5) [5,7); the path before run [4,5) is 0 1

It is registered with transformers as the attention NAME, which behaves as "sdpa" where no runs are given.

Invariants (tests/learner/test_runs.py): every token is in one run; the path before a run is that of its first token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from whippletree.learner.rows import Row

NAME = "whippletree_runs"


@dataclass(frozen=True)
class Run:
    """Tokens [start, end) of a row; `before` are the indices of the path before them, shape [P]."""

    start: int
    end: int
    before: torch.Tensor


@dataclass(frozen=True)
class Runs:
    """The runs of a row, and the masks that its layers share."""

    runs: tuple[Run, ...]
    _masks: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, path: int, length: int, window: int, device: torch.device) -> torch.Tensor:
        """Of a run of `length` behind `path` tokens, bool [length, path + length]; `window` of 0 is none."""
        key = (path, length, window)
        if key not in self._masks:
            behind = torch.arange(path, path + length, device=device)[:, None] - torch.arange(path + length, device=device)
            allowed = behind >= 0
            self._masks[key] = allowed & (behind < window) if window else allowed
        return self._masks[key]


def runs_of(row: Row) -> Runs:
    """Split a row into runs."""
    parents = row.parents.cpu()
    length = len(parents)
    starts = [0, *(torch.nonzero(parents[1:] != torch.arange(length - 1))[:, 0] + 1).tolist()]
    runs: list[Run] = []
    paths: dict[int, torch.Tensor] = {-1: torch.zeros(0, dtype=torch.long)}
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        parent = int(parents[start])
        if parent not in paths:
            holder = next(run for run in reversed(runs) if run.start <= parent)
            paths[parent] = torch.cat([holder.before.cpu(), torch.arange(holder.start, parent + 1)])
        runs.append(Run(start=start, end=end, before=paths[parent].to(row.parents.device)))
    return Runs(runs=tuple(runs))


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    runs: Runs | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, heads, T, d], key and value [1, groups, T, d] → [1, T, heads, d].

    Raises ValueError for what it does not compute: the model's check then chooses another way.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if runs is None and softcap is not None:
        mask = None if attention_mask is None else attention_mask[0, 0]
        return _one((query, key, value), mask, scale, softcap).transpose(1, 2).contiguous(), None
    if runs is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others
        )
        return found
    unknown = [name for name in ("s_aux", "position_bias") if others.get(name) is not None]
    if unknown or dropout:
        raise ValueError(f"attention by runs knows no {', '.join(unknown) or 'dropout'}")
    window = sliding_window or 0
    parts = []
    for run in runs.runs:
        before = run.before[max(0, len(run.before) - window + 1) :] if window else run.before
        q, k, v = (states[:, :, run.start : run.end] for states in (query, key, value))
        if len(before):
            k = torch.cat([key.index_select(2, before), k], dim=2)
            v = torch.cat([value.index_select(2, before), v], dim=2)
        length = run.end - run.start
        whole = not len(before) and not (window and length > window)
        mask = None if whole else runs.mask(len(before), length, window, query.device)
        parts.append(_one((q, k, v), mask, scale, softcap))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _one(
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor], mask: torch.Tensor | None, scale: float, softcap: float | None
) -> torch.Tensor:
    """One run of query, key and value: causal where there is no mask."""
    q, k, v = states
    if softcap is None:
        grouped = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.tanh(q @ k.transpose(-1, -2) * scale / softcap) * softcap
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril() if mask is None else mask
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1) @ v


def register(name: str = NAME, function: Callable[..., tuple[torch.Tensor, None]] = attention) -> None:
    """Make an attention known to transformers under a name; a plain forward gets the masks of "sdpa"."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)
