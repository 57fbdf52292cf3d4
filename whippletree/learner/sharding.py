"""A model laid over ranks: FSDP2 keeps every parameter in pieces, whole only while its layer computes. Where tensor-parallel
ranks share its layers (tensor.py), a piece is a piece of what that rank has of the parameter.

    whole [R, C] ─► tensor axis of the mesh, by the plan ─► shard axis, along the first dimension ─► this rank's piece

The gradient of a parameter is the sum of the ranks' gradients, not their mean: the weights of a row's tokens are those of the
whole update already, so the sum over all rows, wherever they ran, is the gradient of one process.

Invariants (tests/learner/test_ranked_learner.py, test_tensor.py):
- gradients and updated weights are those of one process;
- full tensors have the names, shapes and values of the model on one process, and can be laid over any mesh, also where pieces
  are uneven.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from whippletree.learner.collectives import chunk, gather_chunks
from whippletree.learner.context import Context, states_of
from whippletree.learner.rows import Row
from whippletree.learner.scoring import ScoreOptions, Scores, score_states
from whippletree.learner.tensor import cut, joined_pieces


class Sharded(torch.nn.Module):
    """The root that ranks call: a row in, its scores out. `context`: the ranks that share the row's tokens; `value`: a value
    head on the states that predict its targets."""

    def __init__(
        self, model: Any, layers: Iterable[Any], mesh: DeviceMesh, context: Context | None, value: torch.nn.Linear | None
    ) -> None:
        super().__init__()
        self.model = model
        self.value = value
        self._context = context
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self, mesh=mesh)
        for module in self._in_pieces():
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows sums alone

    def _in_pieces(self) -> Iterator[FSDPModule]:
        return (module for module in self.modules() if isinstance(module, FSDPModule))

    def reshard(self) -> None:
        """Back to pieces, whatever a forward pass without a backward pass left whole: `parameters` are the pieces again."""
        for module in self._in_pieces():
            module.reshard()

    def forward(
        self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None, scored: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """Logprobs, entropy and top logprobs (None unless `scored`) and values: a tuple, because FSDP looks for tensors
        there."""
        part = states_of(self.model, row, self._context, bf16=options.bf16)
        values = None if self.value is None else part.everywhere(self.value(part.states)[:, 0])
        if not scored:
            return None, None, None, values
        others = None if alternatives is None else part.select(alternatives)
        ids = part.select(row.token_ids[row.targets])
        found = score_states(self.model, part.states, ids, options, alternatives=others)
        spoken = (part.everywhere(one) for one in (found.logprobs, found.entropy, found.top_logprobs))
        return *spoken, values

    def scores(self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None = None) -> Scores:
        """What the model says about the row's targets."""
        logprobs, entropy, top, values = self(row, options, alternatives, True)
        return Scores(logprobs, entropy, top, logprobs.new_zeros(0), values)

    def values(self, row: Row, options: ScoreOptions) -> torch.Tensor:
        """The value head's values of the row's targets, [N]."""
        values: torch.Tensor = self(row, options, None, False)[-1]
        return values


@torch.no_grad()
def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor, on every rank."""
    if not isinstance(tensor, DTensor):
        return tensor
    mesh, placements = tensor.device_mesh, tensor.placements
    shape, inner = torch.empty(tensor.shape, device="meta"), mesh.ndim - 1
    if inner:
        shape = cut(shape, placements[1], mesh.get_local_rank(1), mesh.size(1))
    found = torch.cat(gather_chunks(tensor.to_local(), 0, shape.shape[0], mesh.get_group(0)))
    if inner:
        axis = getattr(placements[1], "dim", 0)
        found = joined_pieces(found, placements[1], tensor.shape[axis], mesh.get_group(1))
    return found


def pieces(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor that every rank has, laid as `like` is. (DTensor's own way of laying one lays the pieces of uneven pieces
    otherwise than FSDP does.)"""
    whole = whole.to(device=like.device, dtype=like.dtype)
    if not isinstance(like, DTensor):
        return whole
    mesh, local = like.device_mesh, whole
    if mesh.ndim > 1:
        local = cut(local, like.placements[1], mesh.get_local_rank(1), mesh.size(1))
    local = chunk(local, mesh.get_local_rank(0), mesh.size(0), 0).clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(
        local, mesh, like.placements, run_check=False, shape=like.shape, stride=whole.contiguous().stride()
    )


@torch.no_grad()
def full_state(state: Mapping[str, torch.Tensor], names: Mapping[str, int], *, keep: bool) -> dict[str, torch.Tensor]:
    """Whole tensors of a state dict, where this rank is to `keep` them: nothing elsewhere. `names`: name → identity of what it
    names; what has two names is gathered once."""
    gathered: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for number, (name, tensor) in enumerate(state.items()):
        key = names.get(name, -number - 1)
        if key not in gathered:
            whole = full(tensor)
            gathered[key] = whole.cpu() if keep else torch.empty(0)
        if keep:
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


def full_optimizer_state(optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    """The optimiser's state dict, as one process has it, where this rank is to `keep` it: nothing elsewhere."""
    state = optimizer.state_dict()
    moments: dict[int, dict[str, Any]] = {}
    for number, of in state["state"].items():
        for name, value in of.items():
            whole = full(value) if isinstance(value, torch.Tensor) else value
            if keep:
                moments.setdefault(number, {})[name] = whole.cpu() if isinstance(whole, torch.Tensor) else whole
    return {**state, "state": moments} if keep else {}


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
def gradient_square(parameters: Iterable[torch.nn.Parameter], world: int) -> float:
    """This rank's share of the squared 2-norm of all gradients, in float64: over all `world` ranks the shares add up to it.
    What several ranks have alike is divided among them."""
    square = 0.0
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        different = 1
        if isinstance(gradient, DTensor):
            sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
            different = math.prod(size for placement, size in sizes if not placement.is_replicate())
            gradient = gradient.to_local()
        square += float(gradient.double().pow(2).sum()) * different / world
    return square


@torch.no_grad()
def scale_gradients(parameters: Iterable[torch.nn.Parameter], factor: float) -> None:
    """Multiply every gradient, on every rank by the same factor."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
