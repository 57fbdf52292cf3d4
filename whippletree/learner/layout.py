"""From a whole model to one that lies over ranks, and the proof that it is still the same model.

    whole model ─► layers shared (tensor.py) ─► heads shared (context.py) ─► pieces (sharding.py)
         └─► logprobs of a small forest ────────── compared ────────── logprobs ◄─┘

Nothing is believed about a plan: the forest is computed before and after. Of parameters that lie whole on all tensor-parallel
ranks, the gradients must then be the same on each; where they are not, the plan forgot that they see a part of the heads alone.

Invariants (tests/learner/test_tensor.py): a model that ranks would compute otherwise is refused when it is loaded.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from whippletree.errors import ConfigurationError
from whippletree.learner import tensor
from whippletree.learner.attention import PROBE, difference, probe_row
from whippletree.learner.config import LearnerConfig
from whippletree.learner.context import Context, prepare_context
from whippletree.learner.model import layers_of
from whippletree.learner.ranks import Ranks
from whippletree.learner.rows import Row
from whippletree.learner.scoring import ScoreOptions, score_row
from whippletree.learner.sharding import Sharded

_ALONE = "set learner.ranks.context and learner.ranks.tensor to 1"
GRADIENT_TOLERANCE = 1e-3
"""Largest difference between tensor-parallel ranks of a gradient's norm, as a share of it, that counts as rounding."""


class Layout:
    """How models lie over these ranks. `context`: with whom this rank shares the tokens of its rows."""

    def __init__(self, ranks: Ranks, config: LearnerConfig, *, bf16: bool) -> None:
        self._ranks = ranks
        self._packing = config.packing
        self._options = ScoreOptions(1.0, bf16=bf16)
        self.context: Context | None = None
        if ranks.config.context > 1:
            group = ranks.mesh.get_group("context")
            self.context = Context(group, ranks.context_index, ranks.config.context)

    def over_ranks(self, model: Any, value: torch.nn.Linear | None) -> Sharded:
        """Lay a model, and a value head on its states, over the ranks, in place. Raises ConfigurationError where they cannot
        share it."""
        sizes = self._ranks.config
        shared = self._packing == "tree"
        row = probe_row(1 if self._packing == "single" else len(PROBE), share=shared).to(self._ranks.device)
        model.to(self._ranks.device)
        if value is not None:
            value.to(self._ranks.device)
        with torch.no_grad():
            expected = score_row(model, row, self._options).logprobs
        heads_in = 1
        if sizes.tensor > 1:
            tensor.spread(model, self._ranks.pieces["tensor"])
            heads_in = sizes.tensor if tensor.shares_heads(model) else 1
        if self.context is not None:
            prepare_context(model, sizes.context, heads_in=heads_in)
        sharded = Sharded(model, layers_of(model)[1], self._ranks.pieces["shard"], self.context, value)
        if sizes.sharing > 1:
            self._check(sharded, row, expected)
            sharded.reshard()
        return sharded

    def _check(self, sharded: Sharded, row: Row, expected: torch.Tensor) -> None:
        sizes = self._ranks.config
        backward = sizes.tensor > 1 and any(parameter.requires_grad for parameter in sharded.model.parameters())
        try:
            with torch.set_grad_enabled(backward), self._ranks.guarded():
                found = sharded.scores(row, self._options).logprobs
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise ConfigurationError(
                f"{type(sharded.model).__name__} cannot be shared by {sizes.context} x {sizes.tensor} ranks (context, tensor): "
                f"{error}",
                _ALONE,
            ) from error
        off, limit = difference(found.detach(), expected, torch.bfloat16 if self._options.bf16 else expected.dtype)

        def judge() -> None:
            if not off <= limit:
                raise ConfigurationError(
                    f"shared by {sizes.context} x {sizes.tensor} ranks (context, tensor) this model's logprobs are off by "
                    f"{off:.2g} (at most {limit:g})",
                    _ALONE,
                )

        self._ranks.agreed(judge)
        if backward:
            with self._ranks.guarded():
                found.sum().backward()  # type: ignore[no-untyped-call]
                self._check_gradients(sharded)
            sharded.zero_grad(set_to_none=True)

    def _check_gradients(self, sharded: Sharded) -> None:
        whole = {
            name: parameter.grad.to_local().double().norm()
            for name, parameter in sharded.model.named_parameters()
            if parameter.grad is not None and parameter.device_mesh.ndim == 1
        }
        least = torch.stack(list(whole.values())) if whole else torch.zeros(0, dtype=torch.float64)
        most = least.clone()
        group = self._ranks.pieces.get_group("tensor")
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        unlike = [name for name, low, high in zip(whole, least.tolist(), most.tolist(), strict=True) if self._apart(low, high)]

        def judge() -> None:
            if unlike:
                raise ConfigurationError(
                    f"the tensor-parallel plan of this model is not for training: the gradient of {unlike[0]} "
                    f"({len(unlike)} parameters in all) differs between ranks",
                    "set learner.ranks.tensor = 1",
                )

        self._ranks.agreed(judge)

    def _apart(self, low: float, high: float) -> bool:
        """Whether a gradient's norms are further apart than rounding makes them."""
        return high - low > GRADIENT_TOLERANCE * high + 1e-12
