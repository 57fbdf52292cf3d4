"""Tensor parallelism: ranks share the weights of a layer, by the plan that the model brings with it (transformers' `tp_plan`).

    x on every rank ─► colwise: own rows of W ─► own part of the features ─► rowwise: own columns of W ─► sum over ranks

| style of the plan | a rank holds | forward | backward |
|---|---|---|---|
| colwise | rows of a linear layer | own features | sum of the input's gradients |
| colwise_gather_output, colwise_rep | rows | own features, side by side | the same |
| rowwise | columns | sum over ranks; the bias once | as it is |
| rowwise_split_input | columns | own part of the input, sum over ranks | the parts' gradients, side by side |
| embedding_rowwise | rows of an embedding | those that it holds, sum over ranks | as it is |
| moe_tp_experts with packed_colwise, rowwise | a part of every expert | sum over ranks | sum of the inputs' gradients |
| replicated_with_grad_allreduce | all, used for own heads | as it is | sum over ranks |

What the plan does not name lies whole on every rank, which computes it from the same input: its gradient is the same
everywhere. Adapters (lora.py) follow their layer: behind "colwise" B is in pieces, behind "rowwise" A is.

Invariants (tests/learner/test_tensor.py):
- logprobs, gradients and updated weights are those of one process, for every style;
- a model without a plan, with a style that is not in the table, or with heads that do not divide is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn import functional

from whippletree.errors import ConfigurationError
from whippletree.learner.collectives import chunk, copied, gather_chunks, joined, own_part, total

COLWISE = frozenset({"colwise", "colwise_gather_output", "colwise_rep"})
ROWWISE = frozenset({"rowwise", "rowwise_split_input"})
PARAMETERS: dict[str, Callable[[int], Placement]] = {
    "colwise": lambda axes: Shard(axes - 2),
    "rowwise": lambda axes: Shard(axes - 1),
    "packed_colwise": lambda axes: _StridedShard(axes - 2, split_factor=2),
}
"""Where the plan names a matrix, or a stack of them, itself: which axis is in pieces, by the number of axes. A packed one has
two halves (gate and up), each of which is cut."""
OTHERS = frozenset({"embedding_rowwise", "moe_tp_experts", "replicated_with_grad_allreduce"})
_ALONE = "set learner.ranks.tensor = 1"


def require_plan(model: Any, size: int) -> None:
    """Raises ConfigurationError where `size` ranks cannot share the model's layers by its own plan."""
    plan: dict[str, str] = dict(getattr(model, "tp_plan", None) or {})
    setting = f"learner.ranks.tensor = {size}"
    if not any(style in COLWISE | ROWWISE for name, style in plan.items() if name != "lm_head"):
        raise ConfigurationError(f"{setting}: {type(model).__name__} has no tensor-parallel plan in transformers", _ALONE)
    unknown = sorted({style for style in plan.values() if style not in COLWISE | ROWWISE | OTHERS | set(PARAMETERS)})
    if unknown:
        raise ConfigurationError(f"{setting}: {type(model).__name__}'s plan has {unknown}, which are not supported", _ALONE)
    if not shares_heads(model):
        return
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    for count, what in ((heads, "attention heads"), (groups, "key-value heads")):
        if count % size:
            raise ConfigurationError(
                f"{setting} does not divide the model's {count} {what}", "set learner.ranks.tensor to one that does"
            )


def shares_heads(model: Any) -> bool:
    """Whether the plan gives each rank some of the attention's heads, and not all to all."""
    plan: dict[str, str] = dict(getattr(model, "tp_plan", None) or {})
    return any(name.endswith((".k_proj", ".qkv_proj")) and style == "colwise" for name, style in plan.items())


def spread(model: Any, mesh: DeviceMesh) -> None:
    """Lay a model that every rank has whole over the ranks of the mesh (one axis), in place. Raises ConfigurationError."""
    require_plan(model, mesh.size())
    plan: dict[str, str] = dict(model.tp_plan)
    laid = _Laid(mesh)
    for name, module in list(model.named_modules()):
        for own, _ in list(module.named_parameters(recurse=False)):
            style = plan.get(_general(f"{name}.{own}"))
            if style is not None:
                axes = module.get_parameter(own).dim()
                _refuse_unless(style in PARAMETERS and axes > 1, f"{name}.{own}", style)
                laid.cut(module, own, PARAMETERS[style](axes))
        style = plan.get(_general(name))
        if style is not None:
            for part in _parts(module, style):
                _apply(part, name, style, laid)
    laid.refuse_strays(model)


class _Laid:
    """The parameters that are in pieces by now; what two modules share stays shared."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.group = mesh.get_group()
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self._new: dict[int, torch.nn.Parameter] = {}
        self._old: list[torch.nn.Parameter] = []  # kept, so that no other gets its identity

    def cut(self, module: torch.nn.Module, name: str, placement: Placement) -> None:
        """Keep this rank's piece of a parameter."""
        old = module._parameters.get(name)
        if old is None:
            return
        new = self._new.get(id(old))
        if new is None:
            local = cut(old.detach(), placement, self.rank, self.size).clone(memory_format=torch.contiguous_format)
            whole = DTensor.from_local(
                local, self.mesh, [placement], run_check=False, shape=old.shape, stride=old.contiguous().stride()
            )
            new = torch.nn.Parameter(whole, requires_grad=old.requires_grad)
            self._new[id(old)] = new
            self._old.append(old)
        if tuple(new.placements) != (placement,):  # type: ignore[attr-defined]
            raise ConfigurationError(f"the model's plan cuts {name}, which two layers share, in two ways", _ALONE)
        module._parameters[name] = new

    def refuse_strays(self, model: Any) -> None:
        """Raises ConfigurationError where a layer that the plan does not name shares a parameter that is in pieces."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if id(parameter) in self._new:
                raise ConfigurationError(f"the model's plan cuts what {name} shares, but not {name}", _ALONE)


def cut(whole: torch.Tensor, placement: Placement, index: int, count: int) -> torch.Tensor:
    """Piece `index` of `count` of a tensor, as a placement lays it."""
    if isinstance(placement, _StridedShard):
        groups = whole.chunk(int(placement.split_factor), dim=placement.dim)
        return torch.cat([chunk(group, index, count, placement.dim) for group in groups], dim=placement.dim)
    return chunk(whole, index, count, placement.dim) if isinstance(placement, Shard) else whole


def joined_pieces(own: torch.Tensor, placement: Placement, length: int, group: dist.ProcessGroup) -> torch.Tensor:
    """What `cut` took apart, whole again on every rank; the axis is `length` long in all."""
    if isinstance(placement, _StridedShard):
        count = int(placement.split_factor)
        groups = own.chunk(count, dim=placement.dim)
        found = [piece for one in groups for piece in gather_chunks(one, placement.dim, length // count, group)]
        return torch.cat(found, dim=placement.dim)
    if isinstance(placement, Shard):
        return torch.cat(gather_chunks(own, placement.dim, length, group), dim=placement.dim)
    return own


def _general(name: str) -> str:
    """A plan's name of a module or parameter: the numbers of layers are stars."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _parts(module: torch.nn.Module, style: str) -> Iterator[torch.nn.Module]:
    """The layer itself, or of one with adapters those of its layers that are in pieces like it."""
    base = getattr(module, "base_layer", None)
    if base is None:
        yield module
        return
    yield base
    adapters: Any = module.lora_B if style in COLWISE else module.lora_A
    yield from adapters.values()


def _apply(module: Any, name: str, style: str, laid: _Laid) -> None:
    if style in COLWISE | ROWWISE:
        _refuse_unless(isinstance(module, torch.nn.Linear), name, style)
        laid.cut(module, "weight", Shard(0) if style in COLWISE else Shard(1))
        if style in COLWISE:
            laid.cut(module, "bias", Shard(0))
        module.forward = partial(_colwise if style in COLWISE else _rowwise, module, style, laid.group)
    elif style == "embedding_rowwise":
        _refuse_unless(isinstance(module, torch.nn.Embedding) and module.num_embeddings > laid.size**2, name, style)
        laid.cut(module, "weight", Shard(0))
        size = -(-module.num_embeddings // laid.size)
        held = range(laid.rank * size, min((laid.rank + 1) * size, module.num_embeddings))
        padding = module.padding_idx  # of the whole embedding: that token's row gets no gradient
        module.padding_idx = padding - held.start if padding is not None and padding in held else None
        module.forward = partial(_embedding, module, module.forward, held, laid.group)
    elif style == "moe_tp_experts":
        module.forward = partial(_experts, module, module.forward, laid.group)
    elif style == "replicated_with_grad_allreduce":
        module.forward = partial(_replicated, module, module.forward, laid.group)
    else:
        _refuse_unless(False, name, style)


def _refuse_unless(known: bool, name: str, style: str) -> None:
    if not known:
        raise ConfigurationError(f"the model's plan asks for {style!r} of {name}, which is not supported", _ALONE)


def _local(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _colwise(module: torch.nn.Linear, style: str, group: Any, x: torch.Tensor) -> torch.Tensor:
    found = functional.linear(copied(x, group), _local(module.weight), _local(module.bias))  # type: ignore[arg-type]
    return found if style == "colwise" else joined(found, module.out_features, group)


def _rowwise(module: torch.nn.Linear, style: str, group: Any, x: torch.Tensor) -> torch.Tensor:
    own = own_part(x, group) if style == "rowwise_split_input" else x
    found = total(functional.linear(own, _local(module.weight)), group)  # type: ignore[arg-type]
    return found if module.bias is None else found + module.bias.to(found.dtype)


def _embedding(
    module: torch.nn.Embedding, forward: Callable[..., torch.Tensor], held: range, group: Any, ids: torch.Tensor
) -> torch.Tensor:
    mine = (ids >= held.start) & (ids < held.stop)
    with _in_place_of(module, {"weight": _local(module.weight)}):
        found = forward(torch.where(mine, ids - held.start, 0))
    return total(torch.where(mine[..., None], found, 0.0), group)


def _experts(module: torch.nn.Module, forward: Callable[..., torch.Tensor], group: Any, *inputs: torch.Tensor) -> torch.Tensor:
    hidden, choices, weights = inputs
    own = {name: _local(parameter) for name, parameter in module.named_parameters(recurse=False)}
    with _in_place_of(module, own):
        return total(forward(copied(hidden, group), choices, copied(weights, group)), group)


def _replicated(module: torch.nn.Module, forward: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    own = {name: copied(parameter, group) for name, parameter in module.named_parameters(recurse=False)}
    with _in_place_of(module, own):
        return forward(*args, **kwargs)


@contextmanager
def _in_place_of(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> Iterator[None]:
    """Inside the body the module computes with these tensors instead of its parameters."""
    before = {name: module._parameters[name] for name in tensors}
    module._parameters.update(tensors)  # type: ignore[arg-type]
    try:
        yield
    finally:
        module._parameters.update(before)
