"""Context parallelism: ranks share the tokens of a row (Ulysses, arXiv:2309.14509).

    tokens of rank p ─► layers ─► query, key, value: T/P tokens, all heads
                                   │ all-to-all
                                   ▼
                         T tokens, heads/P ─► attention by runs over the whole row ─► all-to-all ─► T/P tokens, all heads
    ─► logprobs of the targets that rank p predicts ─► sum over ranks ─► all logprobs, on every rank, before the loss

Every rank of a row computes the same loss from all logprobs; its gradient reaches the parameters through its own tokens, so
the sum of the ranks' gradients is the row's. With fewer key-value heads than ranks, each goes to those whose queries need it.
Sharing attention itself along the row (ring attention) is not done: the number of ranks must divide the number of heads that
a rank has, which are fewer where tensor-parallel ranks share the layers (tensor.py).

Invariants (tests/learner/test_context.py):
- logprobs, values, gradients and updated weights are those of one process, for trees and rows that the ranks do not divide;
- a model whose heads cannot be shared is refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from whippletree.errors import ConfigurationError
from whippletree.learner import runs
from whippletree.learner.collectives import exchange, total
from whippletree.learner.rows import Row
from whippletree.learner.scoring import predicting_states

NAME = "whippletree_context"


@dataclass(frozen=True)
class Context:
    """The ranks that share a row: their group, this one's place in it, and how many there are."""

    group: dist.ProcessGroup
    index: int
    size: int


@dataclass(frozen=True)
class Part:
    """The targets that this rank predicts: which ones ([n]; None: all of them), of how many, and the states that predict them,
    [n, H]."""

    states: torch.Tensor
    own: torch.Tensor | None
    count: int
    context: Context | None

    def select(self, column: torch.Tensor) -> torch.Tensor:
        """Of a column of all targets, those of this rank."""
        return column if self.own is None else column[self.own]

    def everywhere(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """From each rank's targets to a column of all targets, on every rank that shares the row."""
        if values is None or self.own is None or self.context is None:
            return values
        laid = values.new_zeros(self.count, *values.shape[1:]).index_copy(0, self.own, values)
        return total(laid, self.context.group)


def require_heads(model: Any, size: int, *, heads_in: int = 1) -> None:
    """Raises ConfigurationError where `size` ranks cannot share the heads that lie in one of `heads_in` equal parts."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    setting, owner = f"learner.ranks.context = {size}", "the model's"
    if heads_in > 1:
        heads, groups, owner = heads // heads_in, groups // heads_in, "one tensor-parallel rank's"
    if heads % size:
        raise ConfigurationError(f"{setting} does not divide {owner} {heads} attention heads", "set one that does")
    if groups % size and size % groups:
        raise ConfigurationError(
            f"{setting} and {owner} {groups} key-value heads: neither divides the other", "set one that does"
        )
    if model.config._attn_implementation != runs.NAME:
        raise ConfigurationError(
            f"{setting} needs attention by runs, and this model computes rows with {model.config._attn_implementation}",
            "set learner.ranks.context = 1",
        )


def prepare_context(model: Any, size: int, *, heads_in: int = 1) -> None:
    """Make a model that computes rows by runs share them, in place. Raises ConfigurationError."""
    require_heads(model, size, heads_in=heads_in)
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
    pieces = exchange(states[0].reshape(context.size, heads // context.size, length, width), context.group)
    return pieces.transpose(0, 1).reshape(1, heads // context.size, context.size * length, width)


def _to_tokens(states: torch.Tensor, context: Context) -> torch.Tensor:
    """[1, T, heads/P, d] → [1, T/P, heads, d]."""
    _, length, heads, width = states.shape
    pieces = exchange(states[0].reshape(context.size, length // context.size, heads, width), context.group)
    return pieces.transpose(0, 1).reshape(1, length // context.size, context.size * heads, width)


def pad(row: Row, multiple: int) -> Row:
    """The row with tokens behind it that nobody looks at, up to a multiple. Nobody recorded where they were routed."""
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
    if row.routing is not None:
        more["routing"] = row.routing.new_full((len(added), *row.routing.shape[1:]), -1)
    device = row.token_ids.device
    longer: dict[str, Any] = {name: torch.cat([getattr(row, name), found.to(device)]) for name, found in more.items()}
    return replace(row, **longer)


def own_tokens(row: Row, context: Context) -> slice:
    """Which tokens of the padded row this rank has."""
    length = -(-len(row.token_ids) // context.size)
    return slice(context.index * length, (context.index + 1) * length)


def own_routing(row: Row, context: Context) -> torch.Tensor | None:
    """The recorded routing of this rank's tokens."""
    return None if row.routing is None else pad(row, context.size).routing[own_tokens(row, context)]  # type: ignore[index]


def own_real_tokens(row: Row, context: Context) -> int:
    """How many of this rank's tokens are the row's, which come first; the others are padding."""
    mine = own_tokens(row, context)
    return max(0, min(int(mine.stop), len(row.token_ids)) - int(mine.start))


def states_of(model: Any, row: Row, context: Context | None, *, bf16: bool) -> Part:
    """The states that predict the row's targets, or those of them whose tokens this rank has."""
    if context is None:
        return Part(predicting_states(model, row, bf16=bf16), None, len(row.targets), None)
    padded, mine = pad(row, context.size), own_tokens(row, context)
    with torch.autocast(row.token_ids.device.type, dtype=torch.bfloat16, enabled=bf16):
        hidden = model.base_model(
            input_ids=padded.token_ids[None, mine],
            position_ids=padded.positions[None, mine],
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=row.token_ids.device),
            use_cache=False,
            runs=runs.runs_of(padded),
            context=context,
        ).last_hidden_state[0]
    before = row.parents[row.targets]
    own = torch.nonzero((before >= mine.start) & (before < mine.stop))[:, 0]
    return Part(hidden[before[own] - mine.start].to(model.dtype), own, len(row.targets), context)
