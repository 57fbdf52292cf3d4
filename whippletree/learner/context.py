"""Context parallelism: ranks share the tokens of a row (Ulysses, arXiv:2309.14509).

    tokens of rank p ─► layers ─► query, key, value: T/P tokens, all heads
                                   │ all-to-all
                                   ▼
                         T tokens, heads/P ─► attention by runs over the whole row ─► all-to-all ─► T/P tokens, all heads
    ─► logprobs of the targets that rank p predicts ─► sum over ranks ─► all logprobs, on every rank, before the loss

Every rank of a row computes the same loss from all logprobs; its gradient reaches the parameters through its own tokens, so
the sum of the ranks' gradients is the row's. With fewer key-value heads than ranks, each goes to those whose queries need it.
Sharing attention itself along the row (ring attention) is not done: the number of ranks must divide the number of heads.

Invariants (tests/learner/test_context.py):
- logprobs, gradients and updated weights are those of one process, for trees and rows that the ranks do not divide;
- a model whose heads cannot be shared is refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from whippletree.errors import ConfigurationError
from whippletree.learner import runs
from whippletree.learner.rows import Row
from whippletree.learner.scoring import ScoreOptions, Scores, score_states

NAME = "whippletree_context"


@dataclass(frozen=True)
class Context:
    """The ranks that share a row: their group, this one's place in it, and how many there are."""

    group: dist.ProcessGroup
    index: int
    size: int


class _Exchange(torch.autograd.Function):
    """All-to-all of [P, ...]: piece p goes to rank p, and piece p of the result came from there. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, pieces: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(pieces, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, pieces.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        found = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        dist.all_to_all_single(found, gradients[0].contiguous(), group=ctx.group)
        return found, None


class _Total(torch.autograd.Function):
    """Sum over ranks, of which every rank then computes the same loss: each takes the gradient of its own summand."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = own.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def require_heads(model: Any, size: int) -> None:
    """Raises ConfigurationError where `size` ranks cannot share the model's heads."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    setting = f"learner.ranks.context = {size}"
    if heads % size:
        raise ConfigurationError(f"{setting} does not divide the model's {heads} attention heads", "set one that does")
    if groups % size and size % groups:
        raise ConfigurationError(
            f"{setting} and the model's {groups} key-value heads: neither divides the other", "set one that does"
        )
    if model.config._attn_implementation != runs.NAME:
        raise ConfigurationError(
            f"{setting} needs attention by runs, and this model computes rows with {model.config._attn_implementation}",
            "set learner.ranks.context = 1",
        )


def prepare_context(model: Any, size: int) -> None:
    """Make a model that computes rows by runs share them, in place. Raises ConfigurationError."""
    require_heads(model, size)
    runs.register(NAME, attention)
    model.set_attn_implementation(NAME)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    context: Context,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, heads, T/P, d], key and value [1, groups, T/P, d] → [1, T/P, heads, d]."""
    repeats = max(1, context.size // key.shape[1])
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    shared = [_to_heads(states, context) for states in (query, key, value)]
    found, _ = runs.attention(module, shared[0], shared[1], shared[2], attention_mask, **others)
    return _to_tokens(found, context), None


def _to_heads(states: torch.Tensor, context: Context) -> torch.Tensor:
    """[1, heads, T/P, d] → [1, heads/P, T, d]."""
    _, heads, length, width = states.shape
    pieces = _exchange(states[0].reshape(context.size, heads // context.size, length, width), context)
    return pieces.transpose(0, 1).reshape(1, heads // context.size, context.size * length, width)


def _to_tokens(states: torch.Tensor, context: Context) -> torch.Tensor:
    """[1, T, heads/P, d] → [1, T/P, heads, d]."""
    _, length, heads, width = states.shape
    pieces = _exchange(states[0].reshape(context.size, length // context.size, heads, width), context)
    return pieces.transpose(0, 1).reshape(1, length // context.size, context.size * heads, width)


def _exchange(pieces: torch.Tensor, context: Context) -> torch.Tensor:
    found: torch.Tensor = _Exchange.apply(pieces, context.group)  # type: ignore[no-untyped-call]
    return found


def pad(row: Row, multiple: int) -> Row:
    """The row with tokens behind it that nobody looks at, up to a multiple."""
    length = len(row.token_ids)
    added = torch.arange(-length % multiple)
    if not len(added):
        return row
    more = {
        "token_ids": torch.zeros_like(added),
        "positions": added,
        "exits": torch.full_like(added, length + len(added)),
        "parents": torch.where(added == 0, -1, length + added - 1),
    }
    device = row.token_ids.device
    longer: dict[str, Any] = {name: torch.cat([getattr(row, name), found.to(device)]) for name, found in more.items()}
    return replace(row, **longer)


def score_shared(
    model: Any, row: Row, options: ScoreOptions, context: Context, *, alternatives: torch.Tensor | None = None
) -> Scores:
    """`score_row`, with the row's tokens shared among ranks; the scores are those of all targets, without hidden states."""
    padded = pad(row, context.size)
    length = len(padded.token_ids) // context.size
    start = context.index * length
    mine = slice(start, start + length)
    with torch.autocast(row.token_ids.device.type, dtype=torch.bfloat16, enabled=options.bf16):
        hidden = model.base_model(
            input_ids=padded.token_ids[None, mine],
            position_ids=padded.positions[None, mine],
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=row.token_ids.device),
            use_cache=False,
            runs=runs.runs_of(padded),
            context=context,
        ).last_hidden_state[0]
    before = row.parents[row.targets]
    own = torch.nonzero((before >= start) & (before < start + length))[:, 0]
    states = hidden[before[own] - start].to(model.dtype)
    others = None if alternatives is None else alternatives[own]
    found = score_states(model, states, row.token_ids[row.targets[own]], options, alternatives=others)

    def everywhere(values: torch.Tensor | None) -> torch.Tensor | None:
        if values is None:
            return None
        laid = values.new_zeros(len(row.targets), *values.shape[1:]).index_copy(0, own, values)
        total: torch.Tensor = _Total.apply(laid, context.group)  # type: ignore[no-untyped-call]
        return total

    logprobs = everywhere(found.logprobs)
    assert logprobs is not None  # for mypy: every score has them
    return Scores(logprobs, everywhere(found.entropy), everywhere(found.top_logprobs), states[:0])
