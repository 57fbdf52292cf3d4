"""Learners of several real processes on gloo, and what they did."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
from learner_parts import ADVANTAGES, WEIGHTS, make_learner, make_samples

from whippletree.configuration import convert
from whippletree.learner.config import LearnerConfig, RanksConfig
from whippletree.learner.learner import Learner, UpdateStats
from whippletree.learner.ranked import RankedLearner
from whippletree.learner.ranks import join
from whippletree.learner.rows import Row, build_row
from whippletree.learner.sharding import full

WAIT = 90.0  # seconds that a test gives its ranks

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "transformers", "transformers.models.qwen3.modeling_qwen3", "ranks_parts"])


def run_ranks(
    world: int, function: Callable[..., Any], *arguments: Any, gone: Sequence[int] = (), codes: Sequence[int] = ()
) -> list[Any]:
    """What `function(rank, *arguments)` gives on each of `world` processes that found each other; None for those
    `gone`. `codes`: how they end."""
    with tempfile.TemporaryDirectory() as place:
        torch.save(arguments, f"{place}/arguments")  # tensors in a process's arguments are file descriptors
        processes = [
            PROCESSES.Process(target=_child, args=(rank, world, place, function), daemon=True) for rank in range(world)
        ]
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(WAIT)
            alive = [rank for rank, process in enumerate(processes) if process.is_alive()]
        finally:
            for process in [one for one in processes if one.pid is not None]:
                if process.is_alive():
                    process.kill()
                process.join()
        assert not alive, f"ranks {alive} hang"
        ended = [process.exitcode for process in processes]
        raised = [path.read_text() for path in sorted(Path(place).glob("raised-*"))]
        assert ended == list(codes or [0] * world), "\n".join([f"exit codes {ended}", *raised])
        return [
            None if rank in gone else torch.load(Path(place) / f"result-{rank}", weights_only=False) for rank in range(world)
        ]


def _child(rank: int, world: int, place: str, function: Callable[..., Any]) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{place}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=WAIT / 2))
    arguments = torch.load(f"{place}/arguments", weights_only=False)
    try:
        found = function(rank, *arguments)
    except BaseException:
        Path(f"{place}/raised-{rank}").write_text(f"rank {rank}: {traceback.format_exc()}")
        raise
    torch.save(found, f"{place}/result-{rank}")
    dist.barrier()
    dist.destroy_process_group()


def make_ranked(directory: Path, settings: dict[str, Any], *, kind: Any = None) -> Any:
    """This process's learner; `settings["ranks"]` says how many there are."""
    config = convert(LearnerConfig, {"learning_rate": 1e-2, "warmup_steps": 2, **settings}, "run.toml")
    return (kind or RankedLearner)(directory, config, temperature=1.0, ranks=join(config.ranks))


@dataclass
class Made:
    """What a learner did: gradients of each step, weights after the last, and the stats of each update."""

    gradients: list[list[torch.Tensor]] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)
    stats: list[Any] = field(default_factory=list)
    error: str = ""
    scores: Any = None
    logprobs: Any = None


def in_double(learner: Learner) -> None:
    """The policy and its critic in float64, which only the plain way of computing experts knows."""
    learner.model.double()
    if learner.model.config.get_text_config().to_dict().get("num_experts_per_tok"):
        learner.model.set_experts_implementation("eager")
    if learner.critic is not None:
        learner.critic.head.double()
        if learner.critic.model is not None:
            learner.critic.model.double()


class InDouble(Learner):
    """One process in float64."""

    def _spread(self) -> None:
        in_double(self)


class RankedInDouble(RankedLearner):
    """Ranks in float64."""

    def _spread(self) -> None:
        in_double(self)
        super()._spread()


def watched(learner: Learner) -> Made:
    """Note the whole gradients of each step."""
    made = Made()
    learner.optimizer.register_step_pre_hook(
        lambda *_: made.gradients.append([full(p.grad).clone() for p in learner.parameters if p.grad is not None])
    )
    return made


def finish(made: Made, learner: Learner) -> Made:
    """Note the whole weights."""
    made.weights = [full(parameter.detach()).clone() for parameter in learner.parameters]
    return made


def one_process(directory: Path, batches: Sequence[Sequence[Row]], settings: dict[str, Any], *, kind: Any = None) -> Made:
    """The same updates in this process."""
    if kind is None:
        learner = make_learner(directory, **settings)
    else:
        config = convert(LearnerConfig, {"learning_rate": 1e-2, "warmup_steps": 2, **settings}, "run.toml")
        learner = kind(directory, config, temperature=1.0)
    made = watched(learner)
    made.stats = updated(learner, batches)
    return finish(made, learner)


def updated(learner: Learner, batches: Sequence[Sequence[Row]]) -> list[UpdateStats]:
    """Each rows an update of its own, and a batch of its own, unless the settings want several updates of a batch."""
    if learner.config.updates > 1:
        return list(learner.update_batch(batches).updates)
    return [learner.update(rows) for rows in batches]


def many(rank: int, directory: Path, batches: Sequence[Sequence[Row]], settings: dict[str, Any], kind: Any = None) -> Made:
    """The updates with rank 0 in the lead."""
    learner = make_ranked(directory, settings, kind=kind)
    made = watched(learner)
    if rank == 0:
        made.stats = updated(learner, batches)
        learner.close()
    else:
        learner.follow()
    return finish(made, learner)


def single_rows() -> list[Row]:
    """Four rows of a sample each."""
    return [build_row([sample], ADVANTAGES, WEIGHTS) for sample in make_samples()]


def same_update(one: Made, other: Made, *, tolerance: float) -> None:
    """The gradients of each step agree."""
    assert len(one.gradients) == len(other.gradients) > 0
    for mine, theirs in zip(one.gradients, other.gradients, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)
    assert any(float(gradient.abs().max()) > 100 * tolerance for gradient in one.gradients[0])


def same_on_ranks(one: Made, found: Sequence[Made], *, tolerance: float) -> None:
    """Gradients and weights of every rank are those of one process, and rank 0 counts as many rows and tokens."""
    for made in found:
        same_update(one, made, tolerance=tolerance)
        for a, b in zip(one.weights, made.weights, strict=True):
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)
    for a, b in zip(one.stats, found[0].stats, strict=True):
        assert (a.rows, a.tokens, a.compared_tokens) == (b.rows, b.tokens, b.compared_tokens)


def ranks(**sizes: Any) -> dict[str, Any]:
    """A settings table."""
    return msgspec.to_builtins(RanksConfig(timeout_seconds=30.0, **sizes))
