"""What ranks do together inside a forward pass, with the gradient that belongs to it.

| function | forward | backward | where the sum comes from |
|---|---|---|---|
| `exchange` | all-to-all | all-to-all | it is its own transpose |
| `total` | sum | the gradient as it is | every rank then computes the same loss from the sum |
| `copied` | the tensor as it is | sum | every rank uses the same tensor for a part of the work |
| `joined` | pieces side by side | own piece | every rank then computes the same loss from the whole |
| `own_part` | own piece | pieces side by side | each rank uses its piece alone |

Pieces are along the last axis, as `torch.chunk` cuts it: the first are of equal size, the last may be shorter or empty.

Invariants (tests/learner/test_tensor.py, test_context.py): gradients are those of one process; nothing is changed in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def chunk(whole: torch.Tensor, index: int, count: int, axis: int) -> torch.Tensor:
    """Piece `index` of `count` along an axis; empty where there are fewer pieces."""
    size = -(-whole.shape[axis] // count)
    start = min(index * size, whole.shape[axis])
    return whole.narrow(axis, start, min(size, whole.shape[axis] - start))


def gather_chunks(own: torch.Tensor, axis: int, length: int, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """The pieces of every rank of the group, of an axis that is `length` long in all."""
    count = dist.get_world_size(group)
    size = -(-length // count)
    if own.shape[axis] < size:
        own = torch.cat([own, own.new_zeros(*own.shape[:axis], size - own.shape[axis], *own.shape[axis + 1 :])], dim=axis)
    found = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(count)]
    dist.all_gather(found, own.contiguous(), group=group)
    sizes = [max(0, min(size, length - index * size)) for index in range(count)]
    return [piece.narrow(axis, 0, of) for piece, of in zip(found, sizes, strict=True)]


class _Exchange(torch.autograd.Function):
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
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return _sum(own, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(gradients[0], ctx.group), None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, length: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return torch.cat(gather_chunks(own, own.dim() - 1, length, group), dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rank, count = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        return chunk(gradients[0], rank, count, gradients[0].dim() - 1), None, None


class _OwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group, ctx.length = group, whole.shape[-1]
        return chunk(whole, dist.get_rank(group), dist.get_world_size(group), whole.dim() - 1).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = gradients[0]
        return torch.cat(gather_chunks(own, own.dim() - 1, ctx.length, ctx.group), dim=-1), None


def _sum(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    found = own.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=group)
    return found


def exchange(pieces: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All-to-all of [P, ...]: piece p goes to rank p, and piece p of the result came from there."""
    found: torch.Tensor = _Exchange.apply(pieces, group)  # type: ignore[no-untyped-call]
    return found


def total(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The sum over ranks, of which every rank then computes the same loss: each takes the gradient of its own summand."""
    found: torch.Tensor = _Total.apply(own, group)  # type: ignore[no-untyped-call]
    return found


def copied(whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """A tensor that every rank has, for a part of the work on each: its gradient is the sum of the parts'."""
    found: torch.Tensor = _Copied.apply(whole, group)  # type: ignore[no-untyped-call]
    return found


def joined(own: torch.Tensor, length: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Pieces of the last axis side by side, `length` in all, on every rank."""
    found: torch.Tensor = _Joined.apply(own, length, group)  # type: ignore[no-untyped-call]
    return found


def own_part(whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """This rank's piece of the last axis of a tensor that every rank has."""
    found: torch.Tensor = _OwnPart.apply(whole, group)  # type: ignore[no-untyped-call]
    return found
