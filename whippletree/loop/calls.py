"""Rewards of single calls: from what a rollout's record names to its calls in order, and from their advantages to tokens.

    record: turn 2 earned 0.1 ─► the rollout's acts, one reward each ─► batching.calls ─► each act's advantage ─► its tokens

An act is a call whose reply the harness had: what an agent did. Calls that failed, were not delivered or were made again are
none.

Invariants (tests/loop/test_loop_calls.py):
- acts are in order of the calls; turns count those of the main conversation, calls are counted as they are recorded;
- a reward of a call that is no act of the rollout takes its vote away and is said; no other call gets it;
- a trained token has the advantage of the call that sampled it, in whichever row it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from whippletree.learner.rows import Row, lay_column
from whippletree.protocols import Store
from whippletree.traces import Node, Trace
from whippletree.types import CallReward, Rollout

NO_ACT = frozenset({"no payload", "error", "nothing sampled", "undelivered", "superseded"})
"""Why a call is not trained that no agent has acted on."""


def acts_of(trace: Trace) -> list[Node]:
    """The calls whose reply the harness had, in order."""
    return [node for node in trace.nodes if node.excluded not in NO_ACT]


def call_rewards_of(store: Store, rollout: Rollout) -> tuple[CallReward, ...]:
    """What the record of a rollout's last attempt says of single calls."""
    for attempt in store.attempts(rollout.spec.rollout_id):
        if attempt.attempt == rollout.attempt and attempt.result is not None:
            return attempt.result.call_rewards
    return ()


def rewards_of(trace: Trace, told: Sequence[CallReward]) -> tuple[tuple[float | None, ...], str]:
    """What each act earned, 0.0 where nothing was said, and what is wrong with the record ("": nothing; else all are None)."""
    acts = acts_of(trace)
    turns = [place for place, node in enumerate(acts) if node.role == "main"]
    places = {
        "call": {node.call.index: place for place, node in enumerate(acts)},
        "turn": dict(enumerate(turns)),
    }
    rewards: list[float | None] = [0.0] * len(acts)
    for one in told:
        place = places[one.of].get(one.number)
        if place is None:
            wrong = f"a reward is for {one.of} {one.number}, of which the harness had no reply"
            return (None,) * len(acts), wrong
        rewards[place] = (rewards[place] or 0.0) + one.reward
    return tuple(rewards), ""


def with_call_advantages(
    rows: Sequence[Row],
    values: Mapping[str, Sequence[float]],
    *,
    acts: Mapping[str, npt.NDArray[np.int32]],
    rollout_of: Mapping[str, str],
) -> list[Row]:
    """Rows whose targets have the advantages of their calls. `values`: of each act, by rollout_id; `acts`: number of the act
    that sampled each trained token, by sample_id; `rollout_of`: rollout_id by sample_id."""
    found = []
    for row in rows:
        columns = {name: np.asarray(values[rollout_of[name]], np.float64)[acts[name]] for name in row.sample_ids}
        found.append(replace(row, advantages=lay_column(row, columns)))
    return found
