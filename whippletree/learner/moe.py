"""Mixtures of experts: the balance term, and training with the routing that the sampler used.

    token ─► router logits ─► softmax ─► k experts: the best ones, or those that the row recorded ─► their weights ─► experts

A router of today's families (`*TopKRouter` of transformers: Mixtral, Qwen2/3-MoE, OLMoE) gives logits, weights and choices of
each token. Where a row brings the sampler's choices [T, layers, k], they replace the router's own; the weights are still the
router's, from its logits of today, so it is trained. A token whose choices are -1 (nobody recorded them) is routed as usual.

The balance term is that of Switch Transformers (arXiv:2101.03961, Eq. 4 to 6), experts · Σ_e f_e · p_e with f_e the share of
choices that went to expert e and p_e its mean probability, averaged over layers as transformers does; a row's term counts with
its share of the update's tokens. Ranks that share a row's tokens add up counts and probabilities before they multiply them.

Invariants (tests/learner/test_moe.py):
- recorded choices are the experts that compute, and the router's weights get a gradient;
- without recorded choices nothing changes, bit for bit;
- the balance term is transformers' own of the same tokens, and that of one process where ranks share them;
- a model whose router is of another kind is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from whippletree.errors import AlignmentError, ConfigurationError
from whippletree.learner.rows import Row

Forward = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass
class Routing:
    """What the routers of a model do in one forward pass. `replay` are the choices to use, [T, layers, k]; `logits` and
    `choices` are what each layer's router had, [T, experts] and [T, k], while `keep` says so."""

    replay: torch.Tensor | None = None
    keep: bool = False
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    choices: dict[int, torch.Tensor] = field(default_factory=dict)


class Routers:
    """The routers of a model, from the bottom up, each with its forward replaced once. Raises ConfigurationError."""

    def __init__(self, model: Any) -> None:
        self.routing = Routing()
        self.found = routers_of(model)
        self.experts = int(self.found[0].weight.shape[0])
        for layer, router in enumerate(self.found):
            router.forward = partial(_route, self, layer, router, router.forward)

    @contextmanager
    def run(self, routing: Routing) -> Iterator[Routing]:
        """Forward passes of the body are routed so. A backward pass that computes layers again belongs into the body."""
        before, self.routing = self.routing, routing
        try:
            yield routing
        finally:
            self.routing = before

    def check(self, row: Row) -> None:
        """Raises AlignmentError where the row's recorded routing is not of this model or of its tokens."""
        replay = row.routing
        if replay is None:
            return
        wanted = (len(self.found), int(self.found[0].top_k))
        if replay.dim() != 3 or tuple(replay.shape[1:]) != wanted:
            raise AlignmentError(
                f"recorded routing of shape {list(replay.shape)} for a model with {wanted[0]} routers of {wanted[1]} choices",
                "record it with the model that is trained",
            )
        if len(replay) != len(row.token_ids):
            raise AlignmentError(
                f"recorded routing of {len(replay)} tokens for a row of {len(row.token_ids)}", "give one per token"
            )
        if int(replay.max()) >= self.experts:
            raise AlignmentError(f"recorded routing names expert {int(replay.max())} of {self.experts}", "look at the engine")


def routers_of(model: Any) -> list[Any]:
    """The model's routers. Raises ConfigurationError where it has none, or some that choose in another way."""
    found = [
        module for name, module in model.named_modules() if name.endswith((".gate", ".router")) and hasattr(module, "top_k")
    ]
    if not found:
        raise ConfigurationError(f"{type(model).__name__} has no experts", "leave [learner.moe] out")
    for router in found:
        own = type(router).__name__
        if own not in KNOWN:
            raise ConfigurationError(
                f"{own} of {type(model).__name__} does not choose by the best of a softmax", "leave [learner.moe] out"
            )
    return found


KNOWN = frozenset({"MixtralTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter", "OlmoeTopKRouter"})


def _route(
    routers: Routers, layer: int, router: Any, forward: Forward, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits, weights, choices = forward(hidden)
    routing = routers.routing
    if routing.replay is not None:
        recorded = routing.replay[:, layer].to(choices.device)
        choices = torch.where(recorded < 0, choices, recorded)
        chosen = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)).gather(-1, choices)
        if getattr(router, "norm_topk_prob", True):  # Mixtral always does
            chosen = chosen / chosen.sum(-1, keepdim=True)
        weights = chosen.to(weights.dtype)
    if routing.keep:
        routing.logits[layer] = logits
        routing.choices[layer] = choices
    return logits, weights, choices


def balance(
    routing: Routing, experts: int, *, tokens: int | None = None, summed: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> torch.Tensor:
    """The balance term of the tokens of one forward pass, a scalar. `tokens`: only the first so many of them count; `summed`:
    adds what other ranks have of the same row, each with the gradient of its own tokens."""
    logits = torch.cat([routing.logits[layer][:tokens] for layer in sorted(routing.logits)])
    choices = torch.cat([routing.choices[layer][:tokens] for layer in sorted(routing.choices)])
    probability = torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32)).sum(0)
    chosen = torch.bincount(choices.reshape(-1), minlength=experts).to(probability)
    statistics = torch.cat([probability, chosen, probability.new_tensor([float(len(choices))])])
    if summed is not None:
        statistics = summed(statistics)
    probability, chosen, count = statistics[:experts], statistics[experts:-1], statistics[-1]
    return experts * (chosen / count * (probability / count)).sum()
