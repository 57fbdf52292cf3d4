"""A learner of several processes. Rank 0 is the learner that a loop sees; the others follow its commands.

    rank 0   update(rows) ─► deal ─► commands ─┐
    rank n   follow() ─────────────────────────┴─► forward, backward ─► sum of gradients ─► one norm ─► the same step on all

A reference and a teacher lie whole on every rank and score that rank's rows alone.

Invariants (tests/learner/test_ranked_learner.py):
- losses, gradients, updated weights and metrics are those of one process with the same rows, also where ranks have uneven or no
  rows;
- a non-finite value on one rank stops every rank with its row named, and changes no parameter;
- a checkpoint is that of one process, and goes on with any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from whippletree.errors import NonFiniteError
from whippletree.learner import checkpoint, sharding
from whippletree.learner.commands import Command, Gather, Restore, ScoreRows, Stop, UpdateRows
from whippletree.learner.config import LearnerConfig
from whippletree.learner.context import Context, prepare_context
from whippletree.learner.learner import Learner
from whippletree.learner.model import layers_of
from whippletree.learner.ranks import Ranks, deal
from whippletree.learner.rows import Row, all_trained, build_row
from whippletree.learner.scoring import ScoreOptions, Scores
from whippletree.learner.stats import BatchStats, Sums

T = TypeVar("T")


class RankedLearner(Learner):
    """This rank's share of a learner. A loop calls the methods of `Learner` on rank 0; the others call `follow`."""

    def __init__(self, directory: Path, config: LearnerConfig, *, temperature: float, ranks: Ranks, run_steps: int = 0) -> None:
        self.ranks = ranks
        super().__init__(directory, config, temperature=temperature, run_steps=run_steps)

    def _spread(self) -> None:
        size, context = self.ranks.config.context, None
        if size > 1:
            prepare_context(self.model, size)
            context = Context(self.ranks.mesh.get_group("context"), self.ranks.context_index, size)
        self.model.to(self.ranks.device)
        self.sharded = sharding.Sharded(self.model, layers_of(self.model)[1], self.ranks.everyone, context)

    def _other(self, directory: str) -> Any:
        return super()._other(directory).to(self.ranks.device)

    # --- what a loop calls, on rank 0 --------------------------------------------------------------------------------

    def update_batch(self, updates: Sequence[Sequence[Row]]) -> BatchStats:
        """`Learner.update_batch` with all rows, wherever they run."""
        dealt = [deal(rows, self.ranks.config.data) for rows in updates]
        of_rank = [tuple(tuple(of[rank]) for of in dealt) for rank in range(self.ranks.config.data)]
        with self.ranks.guarded():
            own = self._tell([UpdateRows(rows, self.policy_version) for rows in of_rank])
            return self.step(own.updates)

    def logprobs(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """`Learner.logprobs`: every rank computes all of them."""
        with self.ranks.guarded():
            return self._run_score(self._tell_all(ScoreRows(tuple(rows), self.temperature)))

    def score(self, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """`Learner.score`."""
        row = _row_of(token_ids)
        with self.ranks.guarded():
            (found,) = self._run_score(self._tell_all(ScoreRows((row,), 1.0)))
        scores: np.ndarray[Any, np.dtype[np.float32]] = found.float().cpu().numpy()
        return scores

    def announce_restore(self, checkpoint: Path) -> None:
        """`Learner.announce_restore`."""
        if self.ranks.leads:
            self._tell_all(Restore(str(checkpoint)))

    def weights(self) -> dict[str, torch.Tensor] | None:
        """`Learner.weights`, whole."""
        with self.ranks.guarded():
            found: dict[str, torch.Tensor] = self._gather(self._tell_all(Gather("weights")))
        return found

    def adapters(self) -> dict[str, torch.Tensor]:
        """`Learner.adapters`, whole."""
        with self.ranks.guarded():
            found: dict[str, torch.Tensor] = self._gather(self._tell_all(Gather("adapters")))
        return found

    def optimizer_state(self) -> dict[str, Any]:
        """`Learner.optimizer_state`, whole."""
        with self.ranks.guarded():
            found: dict[str, Any] = self._gather(self._tell_all(Gather("optimizer")))
        return found

    def close(self) -> None:
        """Let the others go."""
        self._tell_all(Stop())

    def _tell(self, commands: Sequence[Command]) -> Any:
        """One command per data-parallel rank; those that share rows get the same."""
        return self.ranks.send([command for command in commands for _ in range(self.ranks.config.context)])

    def _tell_all(self, command: Command) -> Any:
        return self._tell([command] * self.ranks.config.data)

    # --- what the others do ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Do what rank 0 says until it says stop. Raises what an update raises on every rank, and ProcessError."""
        with self.ranks.guarded():
            while True:
                command: Command = self.ranks.send(None)
                match command:
                    case UpdateRows(updates=updates, policy_version=version):
                        self.policy_version = version
                        self.step(updates)
                    case ScoreRows():
                        self._run_score(command)
                    case Gather():
                        self._gather(command)
                    case Restore(checkpoint=path):
                        checkpoint.restore(self, Path(path))
                    case Stop():
                        return

    # --- what all do together ----------------------------------------------------------------------------------------

    def step(self, updates: Sequence[Sequence[Row]]) -> BatchStats:
        """The updates of a batch from this rank's rows and those that the others give at the same time, as many for each."""
        for rows in updates:
            self.ranks.require_same(len(rows))
        return super().update_batch([[row.to(self.ranks.device) for row in rows] for rows in updates])

    @torch.no_grad()
    def _run_score(self, command: ScoreRows) -> list[torch.Tensor]:
        options = replace(self.options, temperature=command.temperature, entropy=False)
        found = []
        for row in command.rows:
            with self._routed(row):
                found.append(self._policy_scores(row.to(self.ranks.device), options).logprobs)
        return found

    def _gather(self, command: Gather) -> Any:
        match command.what:
            case "weights":
                return self._whole(super().weights() or self.model.state_dict())
            case "adapters":
                return self._whole(super().adapters())
            case "optimizer":
                return sharding.full_optimizer_state(self.optimizer)

    def _whole(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        names = {name: id(parameter) for name, parameter in self.model.named_parameters(remove_duplicate=False)}
        return sharding.full_state(state, names)

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> tuple[list[str], list[str]]:
        """`Learner.load_weights`, of this rank's pieces."""
        return sharding.load_state(self.model, tensors)

    def load_adapters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`Learner.load_adapters`, of this rank's pieces."""
        sharding.load_state(self.model, tensors)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """`Learner.load_optimizer_state`, of this rank's pieces."""
        sharding.load_optimizer_state(self.optimizer, state)

    def _policy_scores(self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None = None) -> Scores:
        return self.sharded.scores(row, options, alternatives)

    def _agreed(self, function: Callable[[], T]) -> T:
        return self.ranks.agreed(function)

    def _total(self, count: int) -> int:
        return sum(self.ranks.gather(count)[:: self.ranks.config.context])

    def _everyones(self, sums: Sums) -> Sums:
        total = Sums()
        for rank, other in enumerate(self.ranks.gather(sums)):
            if rank % self.ranks.config.context == 0:  # those that share rows have the same
                total.merge(other)
        return total

    def _mean_since(self, sums: Sums, name: str, mark: tuple[float, int]) -> float:
        total, count = sums.mark(name)
        found = self.ranks.gather((total - mark[0], count - mark[1]))
        return sum(one for one, _ in found) / max(1, sum(number for _, number in found))

    def _clip(self, rows: Sequence[Row]) -> float:
        limit = self.config.max_grad_norm or math.inf
        norm = float(sharding.gradient_norm(self.parameters))
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"gradient norm {norm} from {self._culprits(rows)}", "lower learner.learning_rate or look at the rows"
            )
        sharding.scale_gradients(self.parameters, min(1.0, limit / (norm + 1e-6)))
        return norm

    def _culprits(self, rows: Sequence[Row]) -> str:
        """The samples of the micro-batches whose gradient is not finite: the sum of one row of every rank."""
        bad = [row for row in rows if not self._has_finite_gradient(row)]
        names = self.ranks.gather([name for row in bad or rows for name in row.sample_ids])
        return "samples " + ", ".join(dict.fromkeys(name for of in names for name in of))

    def _has_finite_gradient(self, row: Row) -> bool:
        self._zero_grad()
        with self._routed(row):
            tokens, output = self._evaluate(row)
            (output.per_token * tokens.weights).sum().backward()  # type: ignore[no-untyped-call]
        return math.isfinite(float(sharding.gradient_norm(self.parameters)))


def _row_of(token_ids: Sequence[int]) -> Row:
    """One sample in which every token but the first is a target."""
    return build_row([all_trained("scored", token_ids)], {"scored": 0.0}, {"scored": 1.0})
