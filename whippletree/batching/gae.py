"""Generalised advantage estimation over a sample's trained tokens, or over its calls (arXiv:1506.02438).

    delta(t) = r(t) + gamma V(t+1) - V(t);   A(t) = delta(t) + gamma lambda A(t+1);   return(t) = A(t) + V(t)

V is 0 behind the last step. A step is a trained token, or a call (whose value is that of its first trained token and whose
advantage all of its trained tokens get). Steps follow each other as they do in the sample; context between them (prompts, tool
results) is no step, so the value that follows a step is that of the next thing the policy did.

Trees: each sample is one root-to-leaf path, with the rollout's reward at its end, and is estimated on its own. A token that
several paths share is trained in one of them only, and gets its advantage there, once.

Invariants (tests/batching/test_batching_gae.py):
- with lambda = 1 an advantage is the discounted return minus the value, with lambda = 0 the one-step error;
- context has advantage and return 0.0 and takes no part: neither its values nor its length change anything;
- a path's estimate does not depend on other paths, and no shared token is estimated twice;
- whitened advantages have mean 0 and standard deviation 1 over trained tokens, whatever is equal stays 0.0, and none is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from whippletree.batching.config import AdvantageConfig, GaeConfig
from whippletree.batching.estimators import Float64, equal, mean, scale
from whippletree.errors import AlignmentError, NonFiniteError

Bool = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]


class Path(msgspec.Struct, kw_only=True, frozen=True):
    """One sample as the critic sees it. Columns have shape [L]. `values`: what the critic expects before each token;
    `trained`: tokens that this sample trains; `calls`: number of the call that sampled the token, rising along the sample
    (anything in context). `reward` comes with the last step; `call_rewards`, by number of the call, with that call's last.

    Example: Path(sample_id="a/0", rollout_id="a", values=..., trained=..., calls=..., reward=1.0)
    """

    sample_id: str
    rollout_id: str
    values: Float64
    trained: Bool
    calls: Int32
    reward: float
    call_rewards: dict[int, float] = {}


class TokenAdvantages(msgspec.Struct, kw_only=True, frozen=True):
    """Advantages and returns (the critic's targets) by sample_id; columns of shape [L], 0.0 where nothing is trained.

    Example: TokenAdvantages(advantages={"a/0": ...}, returns={"a/0": ...})
    """

    advantages: dict[str, Float64]
    returns: dict[str, Float64]


def gae(rewards: Float64, values: Float64, gamma: float, lam: float) -> Float64:
    """Advantages of consecutive steps. Shapes [T], [T] to [T]."""
    found = np.zeros(len(rewards))
    following = next_value = 0.0
    decay = gamma * lam
    for step in range(len(rewards) - 1, -1, -1):
        value = float(values[step])
        following = float(rewards[step]) + gamma * next_value - value + decay * following
        found[step], next_value = following, value
    return found


def path_advantages(
    paths: Sequence[Path],
    config: GaeConfig = GaeConfig(),  # noqa: B008 - immutable
    numerics: AdvantageConfig = AdvantageConfig(),  # noqa: B008 - immutable
) -> TokenAdvantages:
    """Advantages of every trained token of an update, each path on its own; whitened over all of them where asked for.

    Raises AlignmentError when columns differ in length, a sample is listed twice or its calls do not rise, NonFiniteError
    for values or rewards that are NaN or infinite.
    """
    advantages: dict[str, Float64] = {}
    returns: dict[str, Float64] = {}
    for path in paths:
        if path.sample_id in advantages:
            raise AlignmentError(f"sample {path.sample_id} is listed twice", "list each sample once")
        _check(path)
        steps = _steps(path, config)
        rewards, values = _rewards(path, steps), path.values[[places[0] for places in steps]]
        found = gae(rewards, values, config.gamma, config.lam)
        advantages[path.sample_id] = np.zeros(len(path.trained))
        returns[path.sample_id] = np.zeros(len(path.trained))
        for places, advantage, value in zip(steps, found, values, strict=True):
            advantages[path.sample_id][places] = advantage
            returns[path.sample_id][places] = advantage + value
    if config.whiten:
        advantages = whiten(advantages, {path.sample_id: path.trained for path in paths}, numerics)
    return TokenAdvantages(advantages=advantages, returns=returns)


def whiten(columns: Mapping[str, Float64], trained: Mapping[str, Bool], numerics: AdvantageConfig) -> dict[str, Float64]:
    """(A - mean) / d(standard deviation) over all trained tokens; 0.0 elsewhere. Both by sample_id, of shape [L]."""
    tokens = np.concatenate([columns[name][trained[name]] for name in columns]) if columns else np.zeros(0)
    centre = mean(tokens)
    spread = math.sqrt(mean((tokens - centre) ** 2))
    divisor = scale(spread, numerics)
    flat = equal(tokens, numerics)
    return {
        name: np.where(trained[name], 0.0 if flat else (column - centre) / divisor, 0.0) for name, column in columns.items()
    }


def _steps(path: Path, config: GaeConfig) -> list[npt.NDArray[np.intp]]:
    """Places of each step's tokens."""
    trained = np.flatnonzero(path.trained)
    if config.unit == "token":
        return list(trained[:, None])
    starts = np.flatnonzero(np.diff(path.calls[trained], prepend=path.calls[trained][:1] - 1))
    return np.split(trained, starts[1:]) if len(trained) else []


def _rewards(path: Path, steps: Sequence[npt.NDArray[np.intp]]) -> Float64:
    """What each step earned: a call's reward with its last step, the path's with the very last."""
    rewards = np.zeros(len(steps))
    for number, places in enumerate(steps):
        call = int(path.calls[places[-1]])
        last = number + 1 == len(steps) or int(path.calls[steps[number + 1][0]]) != call
        rewards[number] = path.call_rewards.get(call, 0.0) if last else 0.0
    if len(steps):
        rewards[-1] += path.reward
    return rewards


def _check(path: Path) -> None:
    if not len(path.values) == len(path.trained) == len(path.calls):
        lengths = f"{len(path.values)}, {len(path.trained)} and {len(path.calls)}"
        raise AlignmentError(f"sample {path.sample_id} has {lengths} values, marks and calls", "give one of each per token")
    if (np.diff(path.calls[path.trained]) < 0).any():
        raise AlignmentError(f"sample {path.sample_id} trains calls out of order", "number calls along the sample")
    rewards = [path.reward, *path.call_rewards.values()]
    if not (np.isfinite(path.values[path.trained]).all() and np.isfinite(rewards).all()):
        raise NonFiniteError(f"sample {path.sample_id} has a value or reward that is NaN or inf", "look at the critic")
