"""Settings of the losses, one tagged struct per loss, and of what is composed with them.

Invariants (tests/learner/test_losses_registry.py):
- nothing here imports torch: a run file is checked without it;
- combinations that would count something twice, or leave something out in silence, are refused with the reason.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from whippletree.configuration import Config, Share
from whippletree.errors import ConfigurationError

Width = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class PPOLoss(Config, tag="ppo", tag_field="name"):
    """PPO's clipped surrogate, one ratio per token."""

    clip_low: Width = 0.2
    """Lower width of the clip: ratios below 1 - clip_low get no gradient for negative advantages."""
    clip_high: Width = 0.2
    """Upper width of the clip: ratios above 1 + clip_high get no gradient for positive advantages."""


class DualClipLoss(Config, tag="dual-clip", tag_field="name"):
    """PPO's clipped surrogate with a bound for negative advantages."""

    clip_low: Width = 0.2
    """Lower width of the clip."""
    clip_high: Width = 0.2
    """Upper width of the clip."""
    bound: Annotated[float, Meta(gt=1)] = 3.0
    """Ratios above it get no gradient for negative advantages (c in the paper)."""


class GSPOLoss(Config, tag="gspo", tag_field="name"):
    """Group sequence policy optimisation: one length-normalised ratio per sample."""

    clip_low: Width = 3e-4
    """Lower width of the clip. The ratio of a sample moves far less than that of a token."""
    clip_high: Width = 4e-4
    """Upper width of the clip."""


class GSPOTokenLoss(Config, tag="gspo-token", tag_field="name"):
    """GSPO's token variant, for advantages that differ within a sample."""

    clip_low: Width = 3e-4
    """Lower width of the clip."""
    clip_high: Width = 4e-4
    """Upper width of the clip."""


class CISPOLoss(Config, tag="cispo", tag_field="name"):
    """Clipped importance weights: every token keeps its gradient."""

    clip_low: Width = 1.0
    """Weights are at least 1 - clip_low; 1 and above: no lower bound."""
    clip_high: Width = 4.0
    """Weights are at most 1 + clip_high."""


class MaskedImportanceLoss(Config, tag="masked-importance", tag_field="name"):
    """The four-bound masked importance loss of the MiMo-V2.6 report: tokens whose ratio to the sampler is outside its bounds
    are left out. The report's text at hand gives no numbers; the defaults are IcePop's."""

    positive_low: Width = 0.5
    """Least ratio of a token with an advantage of 0 or more."""
    positive_high: Positive = 5.0
    """Largest ratio of a token with an advantage of 0 or more."""
    negative_low: Width = 0.5
    """Least ratio of a token with a negative advantage."""
    negative_high: Positive = 5.0
    """Largest ratio of a token with a negative advantage."""


class ReinforceLoss(Config, tag="reinforce", tag_field="name"):
    """The plain policy gradient."""


class SFTLoss(Config, tag="sft", tag_field="name"):
    """Supervised fine-tuning: negative log-likelihood of the trained tokens."""


class DistillReverseLoss(Config, tag="distill-reverse", tag_field="name"):
    """On-policy distillation by reverse KL, from a teacher's logprobs of the sampled tokens."""

    ratio_cap: Positive = 2.0
    """Importance weights are at most this."""
    advantage_limit: Positive = 10.0
    """log π_teacher - log π counts as at most this in absolute value, nats."""
    reward_share: Width = 0.0
    """How much of the reward's advantage is added to the teacher's; 0 learns from the teacher alone."""


class DistillForwardLoss(Config, tag="distill-forward", tag_field="name"):
    """Distillation by forward KL, from the logprobs of the teacher's K best tokens at each position."""


class CustomLoss(Config, tag="custom", tag_field="name"):
    """Your own loss (docs/learner.md, "How to add a loss")."""

    function: str = ""
    """The function as "module:function": it takes Tokens and the settings as keyword arguments and gives back a LossOutput."""
    settings: dict[str, float | int | str | bool] = {}
    """Keyword arguments of the function."""
    all_rows: bool = True
    """Whether rollouts without advantage are given to it too; false leaves them out, as a pure policy gradient can."""
    entropy: bool = False
    """Whether it needs the entropy of each token's distribution."""


LossConfig = (
    PPOLoss
    | DualClipLoss
    | GSPOLoss
    | GSPOTokenLoss
    | CISPOLoss
    | MaskedImportanceLoss
    | ReinforceLoss
    | SFTLoss
    | DistillReverseLoss
    | DistillForwardLoss
    | CustomLoss
)


class CorrectionConfig(Config):
    """Corrections between the policy that sampled (μ, the engine's logprobs) and the trainer's before the update (π_old)."""

    truncate: Literal["off", "token", "sequence"] = "off"
    """Multiply each token's loss by min(π_old/μ, cap), of the token or of its whole sample (truncated importance sampling)."""
    cap: Width = 2.0
    """Largest factor of `truncate`; 0: none."""
    mask: Literal["off", "token", "sequence", "geometric"] = "off"
    """Leave out tokens, or samples by the product or the geometric mean of their tokens, whose π_old/μ is outside the
    bounds."""
    mask_low: Width = 0.5
    """Least π_old/μ that is kept; 0: none. For `geometric`, 0.99 is a usual one."""
    mask_high: Width = 2.0
    """Largest π_old/μ that is kept; 0: none. For `geometric`, 1.01 is a usual one."""
    max_masked_share: Share = 0.5
    """An update that leaves out more than this share of its samples, or tokens, says so in the metrics' `alarms`."""


class KLConfig(Config):
    """KL divergence from a reference policy."""

    coefficient: Width = 0.0
    """Weight of the KL term; 0 neither computes nor loads a reference, unless `stop_above` wants one."""
    estimator: Literal["k1", "k2", "k3"] = "k2"
    """k1 = -x, k2 = x²/2, k3 = exp(x) - 1 - x with x = log π_ref - log π. In the loss, k2 has the gradient of KL(π‖π_ref) for
    samples of π; k3's is another divergence's, and k1's is zero on average."""
    where: Literal["loss", "reward"] = "loss"
    """In the loss, or taken off the advantages of each token and those before it in its sample."""
    reference: str = ""
    """Directory of the reference model; empty: the weights that the run began with."""
    stop_above: Width = 0.0
    """The run stops before an update when the mean k3 to the reference is above this, nats per token; 0: never."""


RATIO_TO_SAMPLER = (MaskedImportanceLoss,)
"""Losses whose own ratio is to the sampler, whatever `learner.old_logprobs` says."""
NO_RATIO = (ReinforceLoss, CustomLoss)
"""Policy gradients without a ratio of their own, or with one that is the user's business."""
IMITATION = (SFTLoss, DistillForwardLoss)
"""Losses of text, which no policy of ours need have sampled."""


def needs_all_rows(config: LossConfig) -> bool:
    """Whether a token has a gradient even where its advantage is zero."""
    if isinstance(config, CustomLoss):
        return config.all_rows
    return isinstance(config, (*IMITATION, DistillReverseLoss))


def check_correction(loss: LossConfig, correction: CorrectionConfig, old_logprobs: str) -> None:
    """Raises ConfigurationError for a correction that makes no sense with the loss."""
    name = str(type(loss).__struct_config__.tag)
    truncates, masks = correction.truncate != "off", correction.mask != "off"
    if isinstance(loss, IMITATION) and (truncates or masks):
        raise ConfigurationError(f"learner.correction does not apply to {name}, which looks at no sampler", "switch it off")
    to_sampler = isinstance(loss, RATIO_TO_SAMPLER)
    if truncates and not isinstance(loss, NO_RATIO) and (to_sampler or old_logprobs == "sampler"):
        raise ConfigurationError(
            f"learner.correction.truncate: the ratio of {name} is to the sampler's logprobs already, π_old/μ would count twice",
            'set learner.correction.truncate = "off"' + ("" if to_sampler else ', or learner.old_logprobs = "learner"'),
        )
    if 0 < correction.mask_high < correction.mask_low:
        raise ConfigurationError(
            f"learner.correction: mask_low = {correction.mask_low} is above mask_high = {correction.mask_high}", "swap them"
        )
