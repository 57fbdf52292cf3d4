"""A model laid over ranks with FSDP2: every parameter in pieces, whole only while its layer computes.

The gradient of a parameter is the sum of the ranks' gradients, not their mean: the weights of a row's tokens are those of the
whole update already, so the sum over all rows, wherever they ran, is the gradient of one process.

Invariants (tests/learner/test_ranked_learner.py):
- gradients and updated weights are those of one process;
- full tensors have the names, shapes and values of the model on one process, and can be laid over any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from whippletree.learner.context import Context, score_shared
from whippletree.learner.rows import Row
from whippletree.learner.scoring import ScoreOptions, Scores, score_row


class Sharded(torch.nn.Module):
    """The root that ranks call: a row in, its scores out. `context`: the ranks that share the row's tokens."""

    def __init__(self, model: Any, layers: Iterable[Any], mesh: DeviceMesh, context: Context | None) -> None:
        super().__init__()
        self.model = model
        self._context = context
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self, mesh=mesh)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo knows sums alone

    def forward(self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The fields of `Scores`, as a tuple: FSDP looks for tensors there."""
        if self._context is None:
            found = score_row(self.model, row, options, alternatives=alternatives)
        else:
            found = score_shared(self.model, row, options, self._context, alternatives=alternatives)
        return found.logprobs, found.entropy, found.top_logprobs, found.hidden

    def scores(self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None) -> Scores:
        """The same, named."""
        return Scores(*self(row, options, alternatives))


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def pieces(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor that every rank has, laid as `like` is."""
    whole = whole.to(device=like.device, dtype=like.dtype)
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def full_state(state: Mapping[str, torch.Tensor], names: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Whole tensors of a state dict. `names`: name → identity of what it names; what has two names is gathered once."""
    gathered: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        key = names.get(name, -len(found) - 1)
        if key not in gathered:
            gathered[key] = full(tensor).cpu()
        found[name] = gathered[key]
    return found


@torch.no_grad()
def load_state(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Lay whole tensors into a model; the names of those missing, and of those that it does not have."""
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name in own:
            own[name].copy_(pieces(tensor, own[name]))
    return [name for name in own if name not in tensors], [name for name in tensors if name not in own]


def full_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state dict, as one process has it."""
    state = optimizer.state_dict()
    moments = {
        number: {name: full(value) if isinstance(value, torch.Tensor) else value for name, value in of.items()}
        for number, of in state["state"].items()
    }
    return {**state, "state": moments}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Lay a state dict of one process, or of any number of ranks, over these."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {
            name: pieces(value, parameters[number]) if value.shape == parameters[number].shape else value
            for name, value in of.items()
        }
        for number, of in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


@torch.no_grad()
def gradient_norm(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """2-norm of the gradients of all parameters, of all their pieces, summed in float64."""
    plain = torch.zeros((), dtype=torch.float64)
    laid: dict[DeviceMesh, torch.Tensor] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if not isinstance(gradient, DTensor):
            plain = plain + gradient.double().pow(2).sum().cpu()
            continue
        own = gradient.to_local().double().pow(2).sum()
        laid[gradient.device_mesh] = laid.get(gradient.device_mesh, torch.zeros_like(own)) + own
    for mesh, total in laid.items():
        dist.all_reduce(total, group=mesh.get_group())
        plain = plain + total.cpu()
    return plain.sqrt()


@torch.no_grad()
def scale_gradients(parameters: Iterable[torch.nn.Parameter], factor: float) -> None:
    """Multiply every gradient, on every rank by the same factor."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
