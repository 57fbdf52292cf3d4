"""What those outside say a rollout earned: in its update, or by events of the attempt before it. Pure.

    events "reward" ─► the last one, unless the update has a reward ─┐
    events "call_reward" ─► the last one of each call ───────────────┴─► VerifierResult

Invariants (tests/gateway/test_rollout_api_rewards.py):
- a reward is finite and was sent, with the update or by the last reward event; there is none by default;
- an event of one of these kinds that cannot be read is refused when it is sent, not when it is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.rollout_api.wire import CallRewardData, RolloutUpdate
from whippletree.types import CallReward, Event, VerifierResult

REWARD = "reward"  # kind of the events that carry one
CALL_REWARD = "call_reward"  # kind of the events that carry what one call earned
ONE_CALL = 'send {"call": 3, "reward": 0.1} or {"turn": 2, "reward": 0.1}'


def check_event(kind: str, data: dict[str, Any]) -> None:
    """Raises RequestError (400) for an event that is to carry a reward and has none."""
    if kind == REWARD:
        _read_reward(data)
    elif kind == CALL_REWARD:
        _read_call_reward(data)


def result_of(update: RolloutUpdate, events: Sequence[Event]) -> VerifierResult | None:
    """What the update and the attempt's events, oldest first, say; None where no reward was sent. Raises RequestError (400)."""
    if update.reward is not None:
        found = _result(update.reward, update.scores)
    else:
        rewards = [event for event in events if event.kind == REWARD]
        if not rewards:
            return None
        found = _read_reward(rewards[-1].data)
    earned = [_read_call_reward(event.data) for event in events if event.kind == CALL_REWARD]
    latest = {(one.of, one.number): one for one in earned}
    return msgspec.structs.replace(found, call_rewards=tuple(latest[key] for key in sorted(latest)))


def _read_reward(data: dict[str, Any]) -> VerifierResult:
    try:
        return _result(msgspec.convert(data.get("reward"), float), msgspec.convert(data.get("scores", {}), dict[str, float]))
    except msgspec.ValidationError as error:
        raise RequestError(f"a reward event has no number: {error}", 'send {"reward": 1.0}') from error


def _read_call_reward(data: dict[str, Any]) -> CallReward:
    try:
        told = msgspec.convert(data, CallRewardData)
    except msgspec.ValidationError as error:
        raise RequestError(f"a call_reward event: {error}", ONE_CALL) from error
    numbers = [(of, number) for of, number in (("call", told.call), ("turn", told.turn)) if number is not None]
    if len(numbers) != 1 or not math.isfinite(told.reward):
        raise RequestError("a call_reward event names one call or one turn, and a finite reward", ONE_CALL)
    of, number = numbers[0]
    return CallReward(of="turn" if of == "turn" else "call", number=number, reward=told.reward)


def _result(reward: float, scores: dict[str, float]) -> VerifierResult:
    if not all(map(math.isfinite, (reward, *scores.values()))):
        raise RequestError("a reward or a score is not finite", "report failed where the verifier failed")
    return VerifierResult(reward=reward, scores=scores or {REWARD: reward})
