"""A copy of all that updates change, to go back to when one of several must not stand.

Invariants (tests/learner/test_learner_batches.py): parameters and optimisers, the critic's too, are bit for bit as they were.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from whippletree.learner.critic import Critic


class Undo:
    """The state of a policy and its critic, copied now."""

    def __init__(self, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, critic: Critic | None) -> None:
        self._parameters, self._optimizer, self._critic = parameters, optimizer, critic
        values = [parameter.detach() for parameter in parameters]
        self._before = copy.deepcopy((values, optimizer.state_dict(), None if critic is None else critic.state_dict()))

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copy back."""
        values, optimizer, critic = self._before
        for parameter, before in zip(self._parameters, values, strict=True):
            parameter.copy_(before)
        self._optimizer.load_state_dict(optimizer)
        if self._critic is not None and critic is not None:
            self._critic.load_state_dict(critic)
