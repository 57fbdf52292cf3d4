"""The processes that train one model together, and what they agree on.

    rank = (data index · context size + context index) · tensor size + tensor index

Ranks of one data index run the same rows: context ranks share the rows' tokens, tensor ranks the layers' weights.

torchrun starts the processes and tells each its rank. Inside an update all ranks do the same collectives in the same order; a
check that fails on one rank therefore has to fail on all, before the next collective.

Invariants (tests/learner/test_ranks.py, test_ranked_learner.py):
- an error of one rank is raised on every rank, with its text; nobody waits for a rank that gave up;
- a rank that is gone, or silent for longer than the timeout, is an error that says so;
- rows are dealt so that every rank has as many, and none is lost or copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from whippletree import errors
from whippletree.batching.config import CostConfig
from whippletree.batching.ranks import exchange, place
from whippletree.errors import AlignmentError, ConfigurationError, ProcessError, WhippletreeError
from whippletree.learner.config import RanksConfig
from whippletree.learner.rows import Row, empty_row
from whippletree.types import Struct

T = TypeVar("T")

PATIENCE = timedelta(days=365)  # followers wait this long for a command: rank 0 may collect rollouts for hours
LOST = ("gloo", "connection closed", "connection reset", "broken pipe", "timed out", "timeout", "nccl")
"""What a collective's error says when a rank is gone; compared in lower case."""


class Raised(Struct):
    """An error of one rank, for the others.

    Example: Raised(kind="NonFiniteError", cause="logprobs nan at token 3 of sample s2", next_step="read the samples")
    """

    kind: str
    cause: str
    next_step: str


class Ranks:
    """This process among the others. `mesh` has the axes data, context and tensor; `pieces` is how parameters lie on them: the
    axis shard has all ranks that hold the same part of a layer, whatever rows they run, and tensor those that share it."""

    def __init__(self, config: RanksConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.rank = dist.get_rank()
        sizes = (config.data, config.context, config.tensor)
        self.mesh: DeviceMesh = init_device_mesh(device.type, sizes, mesh_dim_names=("data", "context", "tensor"))
        shape = (config.data * config.context, config.tensor)
        self.pieces: DeviceMesh = init_device_mesh(device.type, shape, mesh_dim_names=("shard", "tensor"))
        self.commands = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.talk = dist.new_group(backend="gloo", timeout=timedelta(seconds=config.timeout_seconds))

    @property
    def data_index(self) -> int:
        """Which of the data-parallel ranks this is."""
        return self.rank // self.config.sharing

    @property
    def context_index(self) -> int:
        """Which part of its rows' tokens this rank has."""
        return self.rank // self.config.tensor % self.config.context

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which runs the loop."""
        return self.rank == 0

    def agreed(self, function: Callable[[], T]) -> T:
        """The function's value. An error of any rank's function is raised on every rank, that of the lowest rank."""
        own: WhippletreeError | None = None
        found: T | None = None
        try:
            found = function()
        except WhippletreeError as error:
            own = error
        failed = torch.tensor([own is not None], dtype=torch.int32)
        dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=self.talk)
        if failed.item():
            self._raise_first(own)
        return found  # type: ignore[return-value]  # it returned, or we raised

    def _raise_first(self, own: WhippletreeError | None) -> None:
        told = None if own is None else Raised(kind=type(own).__name__, cause=own.cause, next_step=own.next_step)
        rank, first = next((rank, one) for rank, one in enumerate(self.gather(told)) if one is not None)
        if rank == self.rank and own is not None:
            raise own
        raise getattr(errors, first.kind)(first.cause, first.next_step)

    def gather(self, one: T) -> list[T]:
        """One value of each rank, by rank, on every rank."""
        found: list[Any] = [None] * self.config.world
        dist.all_gather_object(found, one, group=self.talk)
        return found

    def require_same(self, count: int) -> None:
        """Raises AlignmentError on every rank unless all have as many rows."""
        counts = self.gather(count)
        if len(set(counts)) > 1:
            raise AlignmentError(f"ranks have {counts} rows", "give every rank as many, with empty rows where there are none")

    def send(self, commands: Sequence[Any] | None) -> Any:
        """Rank 0 gives each rank one command; each rank, rank 0 too, gets its own. Blocks until rank 0 says something."""
        own: list[Any] = [None]
        dist.scatter_object_list(own, None if commands is None else list(commands), src=0, group=self.commands)
        return own[0]

    def leave(self) -> None:
        """The last thing that a process does with the others."""
        dist.destroy_process_group()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Raises ProcessError where the body fails because a rank is gone or silent."""
        try:
            yield
        except RuntimeError as error:  # gloo raises nothing more special
            if not any(word in str(error).lower() for word in LOST):
                raise
            raise ProcessError(
                f"rank {self.rank} of the learner lost another one, or waited longer than learner.ranks.timeout_seconds = "
                f"{self.config.timeout_seconds:g}: {str(error).splitlines()[0]}",
                "look for the first error in the learner's log, then `whippletree train --resume`",
            ) from error


def join(config: RanksConfig) -> Ranks:
    """Find the other processes: gloo on CPUs, nccl where every process has a GPU. Raises ConfigurationError where torchrun did
    not start as many as `learner.ranks` asks for."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.distributed.get_node_local_rank(0))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if not dist.is_torchelastic_launched():
            raise ConfigurationError(
                f"learner.ranks asks for {config.world} processes, and this one is alone",
                f"start the learner with `python -m torch.distributed.run --nproc-per-node {config.world}`",
            )
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=config.timeout_seconds))
    if dist.get_world_size() != config.world:
        raise ConfigurationError(
            f"learner.ranks asks for {config.data} x {config.context} x {config.tensor} processes, and {dist.get_world_size()} "
            "were started",
            f"give torchrun --nproc-per-node {config.world}",
        )
    return Ranks(config, device)


def row_cost(row: Row, cost: CostConfig) -> float:
    """linear T + quadratic Σ (2 depth + 1), which is T² for a single sample of T tokens. 0.0 without samples."""
    if not row.sample_ids:
        return 0.0
    return cost.linear * len(row.token_ids) + cost.quadratic * float((2 * row.positions + 1).sum())


def deal_numbers(rows: Sequence[Row], ranks: int, cost: CostConfig = CostConfig()) -> list[list[int | None]]:  # noqa: B008
    """The numbers of each rank's rows: as many each, of even cost, those of like cost in the same micro-batch; None is an empty
    row."""
    costs = np.array([row_cost(row, cost) for row in rows] + [0.0] * (-len(rows) % ranks), dtype=np.float64)
    table = exchange(place(costs, ranks), costs)
    return [[number if number < len(rows) else None for number in column] for column in table.T.tolist()]


def deal(rows: Sequence[Row], ranks: int, cost: CostConfig = CostConfig()) -> list[list[Row]]:  # noqa: B008 - immutable
    """The rows of each rank, with empty ones where there are none, which have the columns that the others bring."""
    empty = empty_row(rows[0] if rows else None)
    return [[empty if number is None else rows[number] for number in column] for column in deal_numbers(rows, ranks, cost)]
