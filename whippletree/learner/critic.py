"""The critic: what a value function predicts from each state, with an optimiser of its own.

A state's value is predicted where the policy predicts its token: V of a trained token is that of the state before it. The head
begins at zero, so the first values are 0.

Invariants (tests/learner/test_learner_critic.py):
- a value model's loss reaches no parameter of the policy; a value head's reaches the policy's layers, times its coefficient;
- values of a sample do not depend on the row that it lies in;
- advantages and returns are computed on each sample's own path; a token that samples share is trained in one of them only, so
  it gets one advantage and one return;
- a restored critic makes the same next update, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from whippletree.learner.config import HeadCritic, ModelCritic
from whippletree.learner.model import ModelOptions, load_model
from whippletree.learner.rows import Row, lay_column
from whippletree.learner.scoring import predicting_states


class Critic:
    """A value head on the policy's hidden states, or on those of a model of its own. `start` gives it an optimiser, once its
    modules lie where they train (on several ranks, in pieces)."""

    def __init__(self, config: HeadCritic | ModelCritic, policy: Any, directory: Path, options: ModelOptions) -> None:
        self.config = config
        self.bf16 = options.bf16
        self.model: Any = None
        if isinstance(config, ModelCritic):
            self.model = load_model(Path(config.path) if config.path else directory, options.whole())
            self.model.get_output_embeddings().requires_grad_(self.model.config.get_text_config().tie_word_embeddings)
        self.head = torch.nn.Linear(int(policy.config.get_text_config().hidden_size), 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.parameters: list[torch.nn.Parameter] = []
        self.optimizer: torch.optim.AdamW

    def start(self) -> None:
        """Begin with what trains, and an optimiser of it."""
        inside = [] if self.model is None else [found for found in self.model.parameters() if found.requires_grad]
        self.parameters = [*self.head.parameters(), *inside]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=self.config.learning_rate, weight_decay=0.0)

    def values(self, row: Row, policy: Any, policy_hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Values of a row's targets, [N]. `policy_hidden`: the policy's states there, [N, H], where they are known."""
        hidden = policy_hidden
        if self.model is not None or hidden is None:
            hidden = predicting_states(policy if self.model is None else self.model, row, bf16=self.bf16)
        values: torch.Tensor = self.head(hidden)[:, 0]
        return values

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser, for a checkpoint."""
        model = None if self.model is None else self.model.state_dict()
        return {"head": self.head.state_dict(), "model": model, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        self.head.load_state_dict(state["head"])
        if self.model is not None:
            self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def with_returns(
    rows: Sequence[Row],
    values: Sequence[torch.Tensor],
    advantages: Mapping[str, npt.NDArray[Any]],
    returns: Mapping[str, npt.NDArray[Any]],
) -> list[Row]:
    """Rows with a critic's advantages, returns and old values. `values` are the rows' columns ([N], of `Learner.values`); the
    other two are columns of samples, by sample_id, with one number per target, as an estimator makes them from
    `by_sample(row, values)`."""
    return [
        replace(row, advantages=lay_column(row, advantages), returns=lay_column(row, returns), old_values=column)
        for row, column in zip(rows, values, strict=True)
    ]
