"""The whole loss of a row: the configured loss, corrected, with the KL, entropy and value terms.

    tokens ─► KL in reward ─► mask ─► loss ─► × truncated ratio ─► + KL + entropy + value ─► Σ weight · loss
Invariants (tests/learner/test_learner_objective.py):
- with nothing but a loss configured, the value is the weighted sum of that loss;
- what the mask leaves out is not computed with by the loss, as if it had never been a target; KL, entropy and value terms keep
  it;
- each term's coefficient multiplies exactly that term.
"""

from __future__ import annotations

import torch

from whippletree.learner.config import HeadCritic, LearnerConfig, NoCritic
from whippletree.learner.losses.base import LossOutput, Tokens
from whippletree.learner.losses.corrections import Correction, correct
from whippletree.learner.losses.registry import load_loss
from whippletree.learner.losses.regularisers import entropy_bonus, kl_in_reward, kl_loss, value_loss


class Objective:
    """A function of the tokens of a row. Raises ConfigurationError where the loss cannot be loaded."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config = config
        self.loss = load_loss(config.loss)

    def __call__(self, tokens: Tokens) -> LossOutput:
        """Loss of each token, before weights, with every term in it."""
        diagnostics: dict[str, torch.Tensor] = {}
        kl = self.config.kl
        if kl.coefficient and kl.where == "reward":
            tokens, penalty = kl_in_reward(tokens, estimator=kl.estimator, coefficient=kl.coefficient)
            diagnostics |= penalty.diagnostics
        policy = self._policy(tokens)
        per_token = policy.per_token
        diagnostics |= policy.diagnostics
        for coefficient, term in self._terms(tokens):
            per_token = per_token + coefficient * term.per_token if coefficient else per_token
            diagnostics |= term.diagnostics
        return LossOutput(per_token, diagnostics)

    def _policy(self, tokens: Tokens) -> LossOutput:
        config = self.config.correction
        found = correct(
            tokens,
            truncate=config.truncate,
            cap=config.cap,
            masking=config.mask,
            mask_low=config.mask_low,
            mask_high=config.mask_high,
        )
        output = self.loss(tokens if found.kept is None else tokens.select(found.kept))
        return LossOutput(_corrected(output.per_token, found), {**output.diagnostics, **found.diagnostics})

    def _terms(self, tokens: Tokens) -> list[tuple[float, LossOutput]]:
        config, found = self.config, []
        watched = config.kl.stop_above and not config.kl.coefficient
        if watched or (config.kl.coefficient and config.kl.where == "loss"):
            found.append((config.kl.coefficient, kl_loss(tokens, estimator=config.kl.estimator)))
        if config.entropy_bonus:
            found.append((config.entropy_bonus, entropy_bonus(tokens)))
        if not isinstance(config.critic, NoCritic):
            weight = config.critic.coefficient if isinstance(config.critic, HeadCritic) else 1.0
            found.append((weight, value_loss(tokens, clip=config.critic.clip)))
        return found


def _corrected(per_token: torch.Tensor, correction: Correction) -> torch.Tensor:
    """The loss of the kept tokens, times their factors, with zeros where tokens were left out."""
    kept, factors = correction.kept, correction.factors
    if factors is not None:
        per_token = per_token * (factors if kept is None else factors[kept])
    if kept is None:
        return per_token
    return per_token.new_zeros(len(kept)).masked_scatter(kept, per_token)
