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
Places = npt.NDArray[np.intp]


class Path(msgspec.Struct, kw_only=True, frozen=True):
    """One sample as the critic sees it. Columns have shape [L]; context may be left out of them, and then all is trained (the
    learner's columns of targets are such). `values`: what the critic expects before each token;
    `trained`: tokens that this sample trains; `calls`: number of the call that sampled the token, rising along the sample
    (anything in context). `reward` comes with the last step; `call_rewards`, by number of the call, with that call's last (one
    that trains nothing here earns nothing here).

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
    errors = rewards + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    decay, following = gamma * lam, 0.0
    backwards = []
    for error in errors[::-1].tolist():
        following = error + decay * following
        backwards.append(following)
    return np.array(backwards[::-1], dtype=np.float64)


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
        places, step_of = _steps(path, config)
        starts = places[np.searchsorted(step_of, np.arange(step_of[-1] + 1 if len(step_of) else 0))]
        values = path.values[starts]
        found = gae(_rewards(path, starts), values, config.gamma, config.lam)
        advantages[path.sample_id] = np.zeros(len(path.trained))
        returns[path.sample_id] = np.zeros(len(path.trained))
        advantages[path.sample_id][places] = found[step_of]
        returns[path.sample_id][places] = (found + values)[step_of]
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


def _steps(path: Path, config: GaeConfig) -> tuple[Places, Places]:
    """Places of the trained tokens, and the number of the step that each belongs to. Shapes [trained]."""
    places = np.flatnonzero(path.trained)
    if config.unit == "token":
        return places, np.arange(len(places))
    calls = path.calls[places]
    return places, np.cumsum(np.diff(calls, prepend=calls[:1]) != 0)


def _rewards(path: Path, starts: Places) -> Float64:
    """What each step earned: a call's reward with its last step, the path's with the very last. Shape [steps]."""
    calls = path.calls[starts].tolist()
    rewards = np.zeros(len(starts))
    for step, call in enumerate(calls):
        if step + 1 == len(calls) or calls[step + 1] != call:
            rewards[step] = path.call_rewards.get(call, 0.0)
    if len(calls):
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
