"""The optimiser updates of a batch's rows, with the numbers that say whether they can be trusted.

    rows ─► columns of targets ─► scores ─► objective ─► gradient, row by row ─► checks ─► one AdamW step a pass
                                                             └── for each update of the batch, one after another ──┘
Invariants (tests/learner/test_learner_update.py):
- an update from packed rows equals the update from one row per sample, to float32 tolerance;
- a non-finite input, loss or gradient stops the update, names rows and tokens, and leaves parameters and optimisers as they
  were;
- a policy too far from its reference stops the update in the same way;
- sampler and learner logprobs are compared on tokens that the current policy version sampled, before the update;
- the updates of one batch are one policy version, and logprobs of "the learner before" are those before the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from whippletree.errors import ConfigurationError, DivergedError, NonFiniteError
from whippletree.learner.columns import given, make_tokens, refuse_diverged, refuse_non_finite, weighted
from whippletree.learner.config import LearnerConfig, NoCritic
from whippletree.learner.critic import Critic
from whippletree.learner.lora import adapter_state, load_adapters, merged_state
from whippletree.learner.losses.base import LossOutput, Tokens
from whippletree.learner.losses.config import DistillForwardLoss, DistillReverseLoss
from whippletree.learner.model import ModelOptions, load_frozen, load_model
from whippletree.learner.moe import Routers, Routing, balance
from whippletree.learner.objective import Objective
from whippletree.learner.rows import Row
from whippletree.learner.schedule import rate_share, set_rate
from whippletree.learner.scoring import ScoreOptions, Scores, best_tokens, score, score_row
from whippletree.learner.stats import BatchStats, Sums, UpdateStats, batch_stats
from whippletree.learner.undo import Undo

__all__ = ["BatchStats", "Learner", "UpdateStats"]

T = TypeVar("T")


class Learner:
    """The policy with its optimiser, and the reference, teacher and critic that the settings ask for. `policy_version` counts
    trained batches from 0, the weights that the run began with. `run_steps`: updates of the whole run, `learner.updates` for
    each batch, for schedules that end with it."""

    def __init__(self, directory: Path, config: LearnerConfig, *, temperature: float, run_steps: int = 0) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self.temperature = temperature
        self.run_steps = run_steps
        config.check(run_steps)
        self.objective = Objective(config)
        self.running = ModelOptions(
            packing=config.packing,
            attention=config.attention,
            bf16=config.precision == "bf16",
            activation_checkpointing=config.activation_checkpointing,
            train_top_layers=config.train_top_layers,
            lora=config.lora,
        )
        self.model = load_model(directory, self.running)
        self.routers = Routers(self.model) if config.moe.wanted else None
        critic = config.critic
        self.critic = None if isinstance(critic, NoCritic) else Critic(critic, self.model, directory, self.running)
        self._spread()
        if self.critic is not None:
            self.critic.start()
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.options = ScoreOptions(temperature, config.needs_entropy, logit_tokens=config.logit_tokens, bf16=self.running.bf16)
        referred = config.kl.coefficient or config.kl.stop_above
        self.reference = self._other(config.kl.reference or str(directory)) if referred else None
        self.teacher = self._other(config.teacher) if config.teacher else None
        self.policy_version = 0

    def _other(self, directory: str) -> Any:
        """A reference or teacher. Raises ConfigurationError where its tokens are not the policy's."""
        model = load_frozen(Path(directory), self.running)
        sizes = [int(found.config.get_text_config().vocab_size) for found in (model, self.model)]
        if sizes[0] != sizes[1]:
            raise ConfigurationError(
                f"the model in {directory} has {sizes[0]} tokens, the policy {sizes[1]}", "give one with the policy's tokenizer"
            )
        return model

    def score(self, token_ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logprobs at temperature 1 of token_ids[1:] under the current weights."""
        return score(self.model, token_ids)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Logprobs of the rows' targets under the current weights, [N] each."""
        return [self._own_logprobs(row) for row in rows]

    @torch.no_grad()
    def values(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """The critic's values of the rows' targets, [N] each. Zeros without a critic."""
        if self.critic is None:
            return [torch.zeros(len(row.targets)) for row in rows]
        return [self._own_values(row) for row in rows]

    def update(self, rows: Sequence[Row]) -> UpdateStats:
        """A batch of one update."""
        return self.update_batch([rows]).whole

    def update_batch(self, updates: Sequence[Sequence[Row]]) -> BatchStats:
        """The updates of one batch, one after another: for each, one AdamW step over all of its rows, `learner.passes` times.
        Together they are one policy version. Raises NonFiniteError or DivergedError, with parameters and optimisers as they
        were before the first.

        An update of no rows (no group had any signal) changes no parameter; a batch without any still is a policy version.
        """
        several = self.config.passes > 1 or len(updates) > 1
        prepared = self._agreed(lambda: [[self._prepare(weighted(row)) for row in rows] for rows in updates])
        if several and self.config.needs_proximal:
            prepared = [self._with_proximal(rows) for rows in prepared]
        before = Undo(self.parameters, self.optimizer, self.critic) if several else None
        try:
            found = [self._update(rows, number) for number, rows in enumerate(prepared)]
        except (NonFiniteError, DivergedError):
            self._zero_grad()
            if before is not None:
                before.restore()
            raise
        self.policy_version += 1
        return batch_stats([(self._everyones(sums), norm) for sums, norm in found], self.config)

    def _update(self, rows: Sequence[Row], number: int) -> tuple[Sums, float]:
        """Update `number` of its batch: what its rows add up to, and its last gradient norm."""
        sums, norm = Sums(rows=sum(bool(row.sample_ids) for row in rows)), 0.0
        for count in range(self.config.passes if rows else 1):
            norm = self._pass(rows, sums, update=number, first=count == 0)
        return sums, norm

    def close(self) -> None:
        """The loop is at its end. One process has nobody to tell."""

    # --- what several ranks do otherwise (learner/ranked.py) ---------------------------------------------------------

    def _spread(self) -> None:
        """Lay the loaded model over ranks."""

    def _agreed(self, function: Callable[[], T]) -> T:
        """The function's value, unless it raises on any rank."""
        return function()

    def _anyone(self, found: bool) -> bool:
        """Whether it is so on any rank."""
        return found

    def _total(self, count: int) -> int:
        """The sum of all ranks' counts, those that share rows counted once."""
        return count

    def _everyones(self, sums: Sums) -> Sums:
        """The sums of all ranks."""
        return sums

    def _policy_scores(self, row: Row, options: ScoreOptions, alternatives: torch.Tensor | None = None) -> Scores:
        return score_row(self.model, row, options, alternatives=alternatives)

    def _values(self, row: Row, scores: Scores | None) -> torch.Tensor | None:
        """The critic's values of the row's targets, of which the policy's scores may be known; None without a critic."""
        if self.critic is None:
            return None
        return self.critic.values(row, self.model, None if scores is None else scores.hidden)

    def _recorded(self, row: Row) -> torch.Tensor | None:
        """The recorded routing of this rank's tokens of the row."""
        return row.routing

    def _balance(self, routing: Routing, row: Row, experts: int) -> torch.Tensor:
        """The balance term of the row."""
        return balance(routing, experts)

    # --- what a checkpoint holds -------------------------------------------------------------------------------------

    def announce_restore(self, checkpoint: Path) -> None:
        """Tell other ranks to restore the checkpoint too."""

    def weights(self) -> dict[str, torch.Tensor] | None:
        """The weights for an export, merged with any adapters; None: as the model has them."""
        return merged_state(self.model) if self.config.lora.rank else None

    def adapters(self) -> dict[str, torch.Tensor]:
        """The adapters alone."""
        return adapter_state(self.model)

    def optimizer_state(self) -> dict[str, Any]:
        """The optimiser's state dict."""
        return self.optimizer.state_dict()

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> tuple[list[str], list[str]]:
        """Take over weights; the names of those that are missing and of those that the model does not have."""
        missing, unexpected = self.model.load_state_dict(tensors, strict=False)
        self.model.tie_weights()
        return missing, unexpected

    def load_adapters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over adapters. Raises ConfigurationError where they are others."""
        load_adapters(self.model, tensors)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over what `optimizer_state` gave."""
        self.optimizer.load_state_dict(state)

    def critic_state(self) -> dict[str, Any] | None:
        """The critic's weights and optimiser; None without a critic."""
        return None if self.critic is None else self.critic.state_dict()

    def load_critic_state(self, state: dict[str, Any]) -> None:
        """Take over what `critic_state` gave."""
        if self.critic is not None:
            self.critic.load_state_dict(state)

    # -----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _prepare(self, row: Row) -> Row:
        """The row with what other models say about it."""
        config = self.config
        found: dict[str, Any] = {}
        if self.routers is not None and config.moe.replay:
            self.routers.check(row)
        if self.reference is not None and row.reference_logprobs is None:
            found["reference_logprobs"] = self._scored_by(self.reference, row)
        if self.teacher is not None and isinstance(config.loss, DistillReverseLoss) and row.teacher_logprobs is None:
            found["teacher_logprobs"] = self._scored_by(self.teacher, row)
        if self.teacher is not None and isinstance(config.loss, DistillForwardLoss) and row.teacher_top_ids is None:
            ids, logprobs = best_tokens(self.teacher, row, self.options, config.teacher_top)
            found |= {"teacher_top_ids": ids, "teacher_top_logprobs": logprobs}
        return replace(row, **found) if found else row

    @torch.no_grad()
    def _with_proximal(self, rows: list[Row]) -> list[Row]:
        """Rows with the learner's own logprobs before the first of several steps."""
        if not self._anyone(any(row.proximal_logprobs is None and len(row.targets) > 0 for row in rows)):
            return rows
        own = [self._own_logprobs(row) for row in rows]  # all of them: ranks compute together
        return [
            replace(row, proximal_logprobs=found) if row.proximal_logprobs is None else row
            for row, found in zip(rows, own, strict=True)
        ]

    def _own_values(self, row: Row) -> torch.Tensor:
        with self._routed(row):
            return self._values(row, None)  # type: ignore[return-value]  # there is a critic

    def _own_logprobs(self, row: Row) -> torch.Tensor:
        with self._routed(row):
            return self._policy_scores(row, replace(self.options, entropy=False)).logprobs

    @contextmanager
    def _routed(self, row: Row) -> Iterator[Routing]:
        """The row's tokens go to the experts on record, where that is wanted."""
        moe = self.config.moe
        routing = Routing(replay=self._recorded(row) if moe.replay else None, keep=moe.aux_loss > 0)
        with nullcontext() if self.routers is None else self.routers.run(routing):
            yield routing

    def _scored_by(self, model: Any, row: Row) -> torch.Tensor:
        return score_row(model, row, replace(self.options, entropy=False)).logprobs

    def _pass(self, rows: Sequence[Row], sums: Sums, *, update: int, first: bool) -> float:
        """Gradients of all rows, the checks, one step. Returns the gradient norm. `update`: number of the update in its
        batch."""
        self._zero_grad()
        mark = sums.mark("reference_kl")
        total = self._total(sum(len(row.token_ids) for row in rows if row.sample_ids))
        for row in rows:
            with self._routed(row) as routing:
                current = (row.versions == self.policy_version) & (update == 0)
                self._accumulate(row, routing, sums, current=current, first=first, total=total)
        if not rows:
            return 0.0
        refuse_diverged(self._mean_since(sums, "reference_kl", mark), self.config.kl.stop_above)
        norm = self._clip(rows)
        self._set_learning_rate(update)
        self.optimizer.step()
        if self.critic is not None:
            self.critic.optimizer.step()
        self._zero_grad()
        return norm

    def _accumulate(self, row: Row, routing: Routing, sums: Sums, *, current: torch.Tensor, first: bool, total: int) -> None:
        """Add a row's gradients. `current` marks targets that these weights sampled; `total`: tokens of the update's rows, for
        terms that are means over them."""
        tokens, output, loss = self._loss_of(row, routing, sums, total=total)
        tokens.logprobs.retain_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = tokens.logprobs.grad
        self._agreed(lambda: None if gradient is None else refuse_non_finite(row, {"gradient of the loss": gradient}))
        sums.add(tokens, output, float(loss.detach()), current=current, first=first)

    def _loss_of(self, row: Row, routing: Routing, sums: Sums, *, total: int) -> tuple[Tokens, LossOutput, torch.Tensor]:
        """A row's targets, the loss of each, and the sum that is differentiated."""
        tokens, output = self._evaluate(row)
        loss = (output.per_token * tokens.weights).sum()
        if not len(row.targets):  # a sum of nothing: it carries the ranks' backward passes through the whole model
            loss = loss + tokens.logprobs.sum() + (0.0 if tokens.values is None else tokens.values.sum())
        if routing.keep and self.routers is not None:
            count = len(row.token_ids) if row.sample_ids else 0
            term = self._balance(routing, row, self.routers.experts)
            sums.add_mean("balance", float(term.detach()), count)
            loss = loss + self.config.moe.aux_loss * count / max(1, total) * term
        return tokens, output, loss

    def _evaluate(self, row: Row) -> tuple[Tokens, LossOutput]:
        """A row's targets, scored with gradient, and their loss. Raises NonFiniteError."""
        columns = self._agreed(lambda: given(row))
        scores = self._policy_scores(row, self.options, row.teacher_top_ids)
        values = self._values(row, scores)
        return self._agreed(lambda: self._judge(row, columns, scores, values))

    def _judge(
        self, row: Row, columns: Mapping[str, torch.Tensor], scores: Scores, values: torch.Tensor | None
    ) -> tuple[Tokens, LossOutput]:
        computed = {
            "logprobs": scores.logprobs,
            "entropy": scores.entropy,
            "student_top_logprobs": scores.top_logprobs,
            "values": values,
        }
        refuse_non_finite(row, {name: found for name, found in computed.items() if found is not None})
        tokens = make_tokens(row, columns, computed, self.config.old_logprobs)
        output = self.objective(tokens)
        refuse_non_finite(row, {"loss": output.per_token})
        return tokens, output

    def _mean_since(self, sums: Sums, name: str, mark: tuple[float, int]) -> float:
        return sums.mean(name, since=mark)

    def _clip(self, rows: Sequence[Row]) -> float:
        """Scale gradients down to the limit, the policy's and the critic's each to its own; the norm of the policy's."""
        norms = [self._clipped(found) for found in self._trained()]
        if not math.isfinite(sum(norms)):
            told = f"gradient norm {sum(norms)} from {self._culprits(rows)}"
            raise NonFiniteError(told, "lower learner.learning_rate or look at the rows")
        return norms[0]

    def _trained(self) -> list[list[torch.nn.Parameter]]:
        return [self.parameters] if self.critic is None else [self.parameters, self.critic.parameters]

    def _clipped(self, parameters: Sequence[torch.nn.Parameter]) -> float:
        return float(torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm or float("inf")))

    def _culprits(self, rows: Sequence[Row]) -> str:
        """The samples of the rows whose own gradient is not finite; of all rows where only their sum is not."""
        bad = [row for row in rows if not self._has_finite_gradient(row)]
        return "samples " + ", ".join(self._names(bad or rows))

    def _names(self, rows: Sequence[Row]) -> list[str]:
        return [name for row in rows for name in row.sample_ids]

    def _has_finite_gradient(self, row: Row) -> bool:
        self._zero_grad()
        with self._routed(row) as routing:
            _, _, loss = self._loss_of(row, routing, Sums(), total=len(row.token_ids))
            loss.backward()  # type: ignore[no-untyped-call]
        return self._all_finite([parameter for found in self._trained() for parameter in found])

    def _all_finite(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        return all(bool(torch.isfinite(found.grad).all()) for found in parameters if found.grad is not None)

    def _set_learning_rate(self, update: int) -> None:
        number = self.policy_version * self.config.updates + update
        share = rate_share(self.config, number, self.run_steps)
        set_rate(self.optimizer, self.config.learning_rate * share)
        if self.critic is not None:
            set_rate(self.critic.optimizer, self.critic.config.learning_rate * share)

    def _zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)
