"""Settings of advantages, shaping, filters, loss weights and packing."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from whippletree.batching.estimators import ESTIMATORS
from whippletree.batching.trees import Packing
from whippletree.batching.weights import WEIGHTS
from whippletree.configuration import Config, Share

Positive = Annotated[int, msgspec.Meta(ge=1)]
AtLeast0 = Annotated[float, msgspec.Meta(ge=0.0)]
Measure = Literal["sampled_tokens", "longest_call", "calls"]


def _finite(config: Config) -> None:
    """Raises ValueError where a number is NaN or infinite; `convert` adds the key of the table."""
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; give a finite number")


def _own(function: str) -> None:
    """Raises ValueError for what cannot be a user's function; `convert` adds the key of the table."""
    module, _, name = function.partition(":")
    if not module or not name or module.startswith("."):
        raise ValueError(f'function is {function!r}; write it as "module:function"')


PER_CALL = "per-call"
"""The estimator that gives each call an advantage of its own (batching/call_advantages.py)."""


class AdvantageConfig(Config):
    """How rewards become advantages."""

    estimator: str = "grpo"
    """"grpo", "dr-grpo" (no division by the standard deviation), "rloo" (leave-one-out), "rloo-scaled" (leave-one-out, scale
    shared by the group), "reinforce++" (baseline and scale of the batch), "reinforce++-baseline" (baseline of the group, scale
    of the batch), "per-call" (each call its own, from rewards of single calls: `batching.calls`), or "module:function" for
    your own."""
    std: Literal["sample", "population"] = "sample"
    """Standard deviations divide by n - 1 (sample) or by n (population)."""
    eps: AtLeast0 = 1e-4
    """Added to the standard deviation that advantages are divided by."""
    min_std: AtLeast0 = 1e-3
    """A smaller standard deviation counts as this much, so that tiny differences are not blown up to full size; 0: off."""
    resolution: AtLeast0 = 1e-6
    """Rewards that differ by no more than this are equal (relative to their size, where that is above 1): it is rounding."""

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown estimator or a number that is not finite; `convert` adds the key."""
        _finite(self)
        complaint = "" if self.estimator == PER_CALL else ESTIMATORS.complaint(self.estimator)
        if complaint:
            raise ValueError(f"estimator {self.estimator!r} is not known: {complaint}")


class CallAdvantageConfig(Config):
    """How rewards of single calls become advantages of single calls."""

    gamma: Share = 1.0
    """Discount per call; 1 counts what comes later in full."""
    scaled: bool = True
    """Divide by the root mean square of the group's advantages, one vote per rollout. Without, they are exactly unbiased."""
    outcome: AtLeast0 = 1.0
    """What the rollout's own reward (after shaping) counts for; it is paid at the last call, beside what that call earned."""


class GaeConfig(Config):
    """Generalised advantage estimation (arXiv:1506.02438)."""

    gamma: Share = 1.0
    """Discount per step (token or call)."""
    lam: Share = 1.0
    """λ: 1 trusts the rewards alone, 0 the critic's next value alone."""
    unit: Literal["token", "call"] = "token"
    """What a step is: each trained token, or each call with one value for all of its tokens."""
    whiten: bool = True
    """Shift and scale the batch's advantages to mean 0 and standard deviation 1 over trained tokens."""


class LengthHook(Config, tag="length", tag_field="kind"):
    """A bonus for the shorter ones of a group's correct rollouts: `most` for the shortest, 0 for the longest, linear between.

    Wrong answers are never paid, and a group whose correct rollouts are equally long is left as it is.
    """

    most: AtLeast0 = 0.1
    """The bonus of the shortest correct rollout."""
    of: Measure = "sampled_tokens"
    """What length is: tokens sampled in the whole rollout, in its longest call, or the number of its calls."""


class EfficiencyHook(Config, tag="efficiency", tag_field="kind"):
    """A bonus for correct rollouts that leave a part of an allowance unused: `most` times that part. Wrong answers are never
    paid, so that giving up early gains nothing."""

    most: AtLeast0 = 0.1
    """The bonus of a correct rollout that used nothing."""
    allowance: Positive = 50
    """What may be used; at and above it there is no bonus."""
    of: Measure = "calls"
    """What is counted: tokens sampled in the whole rollout, in its longest call, or the number of its calls."""


class OverlongHook(Config, tag="overlong", tag_field="kind"):
    """Soft overlong punishment (DAPO, arXiv:2503.14476, Eq. 13): nothing up to `limit - margin`, then falling linearly to
    `-most` at `limit`, and that beyond. Right and wrong answers alike."""

    limit: Positive = 20_480
    """The length from which the whole penalty is due."""
    margin: Positive = 4096
    """The length before the limit over which the penalty grows."""
    most: AtLeast0 = 1.0
    """The whole penalty."""
    of: Measure = "longest_call"
    """What length is: tokens sampled in the whole rollout, in its longest call, or the number of its calls."""

    def __post_init__(self) -> None:
        """Raises ValueError where the margin does not fit; `convert` adds the key."""
        if self.margin > self.limit:
            raise ValueError(f"the margin ({self.margin}) is larger than the limit ({self.limit})")


class ClipHook(Config, tag="clip", tag_field="kind"):
    """Rewards outside of the bounds are put on the bound."""

    low: float = -1.0
    """The least reward."""
    high: float = 1.0
    """The largest reward."""

    def __post_init__(self) -> None:
        """Raises ValueError for bounds in the wrong order or that are not finite; `convert` adds the key."""
        _finite(self)
        if not self.low <= self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")


class FunctionHook(Config, tag="function", tag_field="kind"):
    """Your own function, called with (rewards, facts, settings); it returns the new rewards, in the same order."""

    function: str = ""
    """ "module:function"; required."""
    settings: dict[str, Any] = {}
    """Handed to it, within this table."""

    def __post_init__(self) -> None:
        """Raises ValueError for a name that is not "module:function"; `convert` adds the key."""
        _own(self.function)


HookConfig = LengthHook | EfficiencyHook | OverlongHook | ClipHook | FunctionHook


class PassRateFilter(Config, tag="pass-rate", tag_field="kind"):
    """Keeps groups whose share of passed rollouts is within a band. Rollouts without a reward do not count, and passing is
    judged on the outcome, before any shaping."""

    low: Share = 0.01
    """The least share; the default drops groups in which none passed."""
    high: Share = 0.99
    """The largest share; the default drops groups in which all passed."""

    def __post_init__(self) -> None:
        """Raises ValueError for an empty band; `convert` adds the key."""
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")


class ZeroAdvantageFilter(Config, tag="zero-advantage", tag_field="kind"):
    """Drops groups whose advantages are all exactly 0: their gradient is."""


class VotersFilter(Config, tag="voters", tag_field="kind"):
    """Drops groups that lost too many rollouts."""

    least: Positive = 2
    """Rollouts with a usable reward that a group needs."""


class FunctionFilter(Config, tag="function", tag_field="kind"):
    """Your own function, called with (group, settings); it returns why the group is dropped, or "" to keep it."""

    function: str = ""
    """ "module:function"; required."""
    settings: dict[str, Any] = {}
    """Handed to it, within this table."""

    def __post_init__(self) -> None:
        """Raises ValueError for a name that is not "module:function"; `convert` adds the key."""
        _own(self.function)


FilterConfig = PassRateFilter | ZeroAdvantageFilter | VotersFilter | FunctionFilter


class WeightsConfig(Config):
    """How much one trained token counts for in the loss."""

    mode: str = "rollout-mean"
    """"rollout-mean" (Agent Lightning v1.0, Eq. 16), "token-mean" (Eq. 14), "sequence-mean" (Eq. 15), "constant" (Dr. GRPO,
    arXiv:2503.20783), or "module:function" for your own."""
    constant_tokens: Positive = 4096
    """Constant: the number of tokens that each rollout's sum is divided by, whatever its length; for example the most tokens
    that a rollout may sample."""

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown mode; `convert` adds the key."""
        complaint = WEIGHTS.complaint(self.mode)
        if complaint:
            raise ValueError(f"mode {self.mode!r} is not known: {complaint}")


class CostConfig(Config):
    """What a sample costs to train: linear × tokens + quadratic × tokens². Only ratios matter. Behind s tokens that another has
    laid already, one of n costs linear × (n - s) + quadratic × (n² - s²)."""

    linear: AtLeast0 = 1.0
    """Cost of a token by itself (projections, feed-forward, logits)."""
    quadratic: AtLeast0 = 2e-5
    """Cost of a pair of tokens (attention within a sample). About 1 / (12 × hidden size) where a token costs 1; 2e-5: 4,096."""

    def __post_init__(self) -> None:
        """Raises ValueError where nothing would cost anything; `convert` adds the key."""
        _finite(self)
        if not self.linear and not self.quadratic:
            raise ValueError("linear and quadratic are both 0; give at least one of them")


class PackingConfig(Config):
    """How samples become rows, and rows the micro-batches of ranks."""

    packing: Packing = "rows"
    """What samples share is laid once ("tree"), or they lie end to end ("rows"), or each is a row of its own ("single")."""
    token_budget: Positive = 512
    """Tokens of one row; a longer sample gets a row of its own."""
    updates: Positive = 1
    """Optimiser updates that a batch is spread over; a rollout is within one of them."""
    cost: CostConfig = CostConfig()
    """What is balanced over ranks."""


class BatchingConfig(Config):
    """Between finished rollouts and what each of their tokens counts for."""

    passing: float = 1.0
    """A rollout whose outcome (the reward before shaping) is at least this has passed: its answer is correct."""
    advantages: AdvantageConfig = AdvantageConfig()
    """Rewards to advantages."""
    calls: CallAdvantageConfig = CallAdvantageConfig()
    """With the estimator "per-call": rewards of single calls to advantages of single calls."""
    gae: GaeConfig = GaeConfig()
    """With a critic (`learner.critic`): rewards and its values to advantages of single tokens, instead."""
    shaping: tuple[HookConfig, ...] = ()
    """Changes of the rewards before that, in this order."""
    filters: tuple[FilterConfig, ...] = (ZeroAdvantageFilter(),)
    """Which groups are trained; in this order, and a group is counted under the first filter that drops it."""
    weights: WeightsConfig = WeightsConfig()
    """Loss weights."""

    def __post_init__(self) -> None:
        """Raises ValueError where `passing` is not a finite number; `convert` adds the key."""
        _finite(self)
