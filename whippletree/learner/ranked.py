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
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from whippletree.learner import checkpoint, sharding
from whippletree.learner.collectives import total
from whippletree.learner.commands import Command, Gather, Restore, ScoreRows, Stop, UpdateRows
from whippletree.learner.config import LearnerConfig
from whippletree.learner.context import own_real_tokens, own_routing
from whippletree.learner.layout import Layout
from whippletree.learner.learner import Learner
from whippletree.learner.lora import merged_state, require_same_adapters
from whippletree.learner.moe import Routing, balance
from whippletree.learner.ranks import Ranks, deal, deal_numbers
from whippletree.learner.rows import Row, all_trained, build_row, empty_row
from whippletree.learner.scoring import ScoreOptions, Scores
from whippletree.learner.stats import BatchStats, Sums

T = TypeVar("T")


class RankedLearner(Learner):
    """This rank's share of a learner. A loop calls the methods of `Learner` on rank 0; the others call `follow`."""

    def __init__(self, directory: Path, config: LearnerConfig, *, temperature: float, ranks: Ranks, run_steps: int = 0) -> None:
        self.ranks = ranks
        super().__init__(directory, config, temperature=temperature, run_steps=run_steps)

    def _spread(self) -> None:
        lay = Layout(self.ranks, self.config, bf16=self.running.bf16)
        critic, value = self.critic, None
        self.sharded_critic: sharding.Sharded | None = None
        if critic is not None and critic.model is not None:
            self.sharded_critic = lay.over_ranks(critic.model, critic.head)
        elif critic is not None:
            value = critic.head
        self.sharded = lay.over_ranks(self.model, value)
        self.context = lay.context

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
        """`Learner.logprobs`, dealt like the rows of an update."""
        return self._scored("logprobs", rows, self.temperature)

    def values(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """`Learner.values`, dealt like the rows of an update."""
        return super().values(rows) if self.critic is None else self._scored("values", rows, self.temperature)

    def score(self, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """`Learner.score`."""
        (found,) = self._scored("logprobs", [_row_of(token_ids)], 1.0)
        scores: np.ndarray[Any, np.dtype[np.float32]] = found.float().numpy()
        return scores

    def _scored(self, what: Literal["logprobs", "values"], rows: Sequence[Row], temperature: float) -> list[torch.Tensor]:
        if not rows:
            return []
        commands = []
        for numbers in deal_numbers(rows, self.ranks.config.data):
            own = tuple(empty_row() if number is None else rows[number] for number in numbers)
            commands.append(ScoreRows(what, own, tuple(numbers), temperature))
        with self.ranks.guarded():
            return self._run_score(self._tell(commands))

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

    def critic_state(self) -> dict[str, Any] | None:
        """`Learner.critic_state`, whole."""
        if self.critic is None:
            return None
        with self.ranks.guarded():
            found: dict[str, Any] = self._gather(self._tell_all(Gather("critic")))
        return found

    def close(self) -> None:
        """Let the others go."""
        self._tell_all(Stop())

    def _tell(self, commands: Sequence[Command]) -> Any:
        """One command per data-parallel rank; those that share rows get the same."""
        return self.ranks.send([command for command in commands for _ in range(self.ranks.config.sharing)])

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
        found: dict[int, torch.Tensor] = {}
        for number, row in zip(command.numbers, command.rows, strict=True):
            row = row.to(self.ranks.device)  # noqa: PLW2901 - the same row, where it is computed
            with self._routed(row):
                column = self._own_column(command.what, row, options)
            if number is not None:
                found[number] = column.cpu()
        everyones: dict[int, torch.Tensor] = {}
        for other in self.ranks.gather(found):
            everyones |= other  # those that share rows have the same
        return [everyones[number] for number in range(len(everyones))]

    def _own_column(self, what: Literal["logprobs", "values"], row: Row, options: ScoreOptions) -> torch.Tensor:
        column = self._policy_scores(row, options).logprobs if what == "logprobs" else self._values(row, None)
        assert column is not None  # for mypy: values are asked for only where there is a critic
        return column

    def _gather(self, command: Gather) -> Any:
        keep = self.ranks.leads
        match command.what:
            case "weights":
                state = self._whole(self.model, self.model.state_dict())
                return merged_state(self.model, state) if self.config.lora.rank and keep else state
            case "adapters":
                return self._whole(self.model, super().adapters())
            case "optimizer":
                return sharding.full_optimizer_state(self.optimizer, keep=keep)
            case "critic":
                return self._gather_critic(keep)

    def _gather_critic(self, keep: bool) -> dict[str, Any]:
        critic = self.critic
        assert critic is not None  # for mypy: rank 0 has one too
        model = None if critic.model is None else self._whole(critic.model, critic.model.state_dict())
        head = self._whole(critic.head, critic.head.state_dict())
        optimizer = sharding.full_optimizer_state(critic.optimizer, keep=keep)
        return {"head": head, "model": model, "optimizer": optimizer}

    def _whole(self, module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        names = {name: id(parameter) for name, parameter in module.named_parameters(remove_duplicate=False)}
        return sharding.full_state(state, names, keep=self.ranks.leads)

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> tuple[list[str], list[str]]:
        """`Learner.load_weights`, of this rank's pieces."""
        return sharding.load_state(self.model, tensors)

    def load_adapters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`Learner.load_adapters`, of this rank's pieces."""
        require_same_adapters(self.model, tensors)
        sharding.load_state(self.model, tensors)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """`Learner.load_optimizer_state`, of this rank's pieces."""
        sharding.load_optimizer_state(self.optimizer, state)

    def load_critic_state(self, state: dict[str, Any]) -> None:
        """`Learner.load_critic_state`, of this rank's pieces."""
        critic = self.critic
        assert critic is not None  # for mypy: a checkpoint's critic is asked for only where there is one
        sharding.load_state(critic.head, state["head"])
        if critic.model is not None:
            sharding.load_state(critic.model, state["model"])
        sharding.load_optimizer_state(critic.optimizer, state["optimizer"])

    # --- what `Learner` asks for -------------------------------------------------------------------------------------

    def _policy_scores(self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None = None) -> Scores:
        return self.sharded.scores(row, options, alternatives)

    def _values(self, row: Row, scores: Scores | None) -> torch.Tensor | None:
        if self.sharded_critic is not None:
            return self.sharded_critic.values(row, self.options)
        if self.critic is None:
            return None
        return self.sharded.values(row, self.options) if scores is None else scores.values

    def _recorded(self, row: Row) -> torch.Tensor | None:
        return row.routing if self.context is None else own_routing(row, self.context)

    def _balance(self, routing: Routing, row: Row, experts: int) -> torch.Tensor:
        context = self.context
        if context is None:
            return super()._balance(routing, row, experts)
        real = own_real_tokens(row, context)
        return balance(routing, experts, tokens=real, summed=lambda statistics: total(statistics, context.group))

    def _agreed(self, function: Callable[[], T]) -> T:
        return self.ranks.agreed(function)

    def _anyone(self, found: bool) -> bool:
        return any(self.ranks.gather(found))

    def _total(self, count: int) -> int:
        return sum(self.ranks.gather(count)[:: self.ranks.config.sharing])

    def _everyones(self, sums: Sums) -> Sums:
        found = Sums()
        for other in self.ranks.gather(sums)[:: self.ranks.config.sharing]:  # those that share rows have the same
            found.merge(other)
        return found

    def _mean_since(self, sums: Sums, name: str, mark: tuple[float, int]) -> float:
        found, count = sums.mark(name)
        everyones = self.ranks.gather((found - mark[0], count - mark[1]))
        return sum(one for one, _ in everyones) / max(1, sum(number for _, number in everyones))

    def _clipped(self, parameters: Sequence[torch.nn.Parameter]) -> float:
        norm = self._norm(parameters)
        if math.isfinite(norm):
            limit = self.config.max_grad_norm or math.inf
            sharding.scale_gradients(parameters, min(1.0, limit / (norm + 1e-6)))
        return norm

    def _norm(self, parameters: Sequence[torch.nn.Parameter]) -> float:
        """2-norm of all gradients, the same number on every rank."""
        squares = self.ranks.gather(sharding.gradient_square(parameters, self.ranks.config.world))
        return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan

    def _all_finite(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        return math.isfinite(self._norm(parameters))

    def _names(self, rows: Sequence[Row]) -> list[str]:
        """Of the samples of all ranks: a gradient is the sum of one row of each."""
        names = self.ranks.gather(super()._names(rows))
        return list(dict.fromkeys(name for of in names for name in of))


def _row_of(token_ids: Sequence[int]) -> Row:
    """One sample in which every token but the first is a target."""
    return build_row([all_trained("scored", token_ids)], {"scored": 0.0}, {"scored": 1.0})
