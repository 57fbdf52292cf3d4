"""From `learner.loss` to a function.

Invariants (tests/learner/test_losses_registry.py):
- every tagged struct of LossConfig has one function, and the struct's fields are the function's keyword arguments;
- a function that cannot be loaded or does not fit is refused before the first row, with what was asked for and what to write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from whippletree.errors import ConfigurationError
from whippletree.learner.losses import config as settings
from whippletree.learner.losses.base import LossOutput, Tokens
from whippletree.learner.losses.gspo import gspo, gspo_token
from whippletree.learner.losses.imitation import distill_forward, distill_reverse, sft
from whippletree.learner.losses.policy import cispo, dual_clip, masked_importance, ppo_clip, reinforce
from whippletree.loading import load_named

Loss = Callable[[Tokens], LossOutput]

FUNCTIONS: dict[type[Any], Callable[..., LossOutput]] = {
    settings.PPOLoss: ppo_clip,
    settings.DualClipLoss: dual_clip,
    settings.GSPOLoss: gspo,
    settings.GSPOTokenLoss: gspo_token,
    settings.CISPOLoss: cispo,
    settings.MaskedImportanceLoss: masked_importance,
    settings.ReinforceLoss: reinforce,
    settings.SFTLoss: sft,
    settings.DistillReverseLoss: distill_reverse,
    settings.DistillForwardLoss: distill_forward,
}


def load_loss(config: settings.LossConfig) -> Loss:
    """The loss with its settings filled in. Raises ConfigurationError."""
    if isinstance(config, settings.CustomLoss):
        return _custom(config)
    return partial(FUNCTIONS[type(config)], **{name: getattr(config, name) for name in config.__struct_fields__})


def _custom(config: settings.CustomLoss) -> Loss:
    told = f"learner.loss.function {config.function!r}"
    function = load_named("learner.loss.function", config.function)
    if not callable(function):
        raise ConfigurationError(f"{told} names no function", 'write "module:function"')
    try:
        inspect.signature(function).bind(None, **config.settings)
    except TypeError as error:
        raise ConfigurationError(
            f"{told} does not take Tokens and the settings {sorted(config.settings)}: {error}", "change learner.loss.settings"
        ) from error

    def checked(tokens: Tokens) -> LossOutput:
        found = function(tokens, **config.settings)
        if not isinstance(found, LossOutput) or found.per_token.shape != tokens.logprobs.shape:
            shape = list(found.per_token.shape) if isinstance(found, LossOutput) else type(found).__name__
            raise ConfigurationError(
                f"{told} gave back {shape}", f"give back a LossOutput with a loss per token, [{len(tokens.logprobs)}]"
            )
        return found

    return checked
