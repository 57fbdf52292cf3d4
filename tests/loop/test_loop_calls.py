"""Rewards of single calls: whippletree/loop/calls.py, and the real loop with `estimator = "per-call"`"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from loop_parts import Judged, Turn, World, by_name, opened_run, play, playing
from run_parts import configuration, train

from whippletree.batching import BatchingConfig
from whippletree.batching.config import AdvantageConfig, CallAdvantageConfig, EfficiencyHook
from whippletree.errors import ConfigurationError
from whippletree.learner.config import HeadCritic, LearnerConfig
from whippletree.learner.rows import by_sample
from whippletree.loop.batch import Batch, build_batch
from whippletree.loop.calls import acts_of, rewards_of
from whippletree.loop.config import RunConfig
from whippletree.loop.metrics import Log
from whippletree.store import SqliteStore, open_store
from whippletree.traces import Trace, load_trace
from whippletree.types import CallReward, Rollout, RolloutSpec

PER_CALL = BatchingConfig(advantages=AdvantageConfig(estimator="per-call"), calls=CallAdvantageConfig(scaled=False))
THREE = [
    Turn((1, 2, 3), (4, 5), prefix_break="first"),
    Turn((30, 31), (7, 8, 9), prefix_break="compaction"),  # another sample
    Turn((6,), (10,), extends=0),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path) as opened:
        yield opened


def finished(store: SqliteStore, told: dict[str, Any]) -> list[Rollout]:
    specs = [
        RolloutSpec(rollout_id=name, group_id=name[:2], source="s", task_id="t", task_path="/t", harness="h") for name in told
    ]
    store.create_rollouts(specs).result()
    play(store, lambda of: told[of.rollout_id])
    return [store.rollout(name) for name in told]


def earned(*rewards: float, of: str = "call") -> tuple[CallReward, ...]:
    return tuple(CallReward(of=of, number=number, reward=reward) for number, reward in enumerate(rewards))  # type: ignore[arg-type]


def changed(trace: Trace, place: int, **what: Any) -> Trace:
    """The trace with another call in that place."""
    nodes = [msgspec.structs.replace(node, **what) if number == place else node for number, node in enumerate(trace.nodes)]
    return Trace(by_id={node.call_id: node for node in nodes})


def advantages(batch: Batch) -> dict[str, list[float]]:
    """Of each trained token, by sample."""
    return {name: column.tolist() for row in batch.rows for name, column in by_sample(row, row.advantages).items()}


def test_each_token_has_the_advantage_of_the_call_that_sampled_it(store: SqliteStore):
    told = {"g0-a": (THREE, Judged(1.0, earned(0.5, 0.25))), "g0-b": (THREE, Judged(0.0))}
    batch = build_batch(store, finished(store, told), LearnerConfig(), policy_version=0, batching=PER_CALL)
    first, second, third = 1.75, 1.25, 1.0  # what follows from each call on; nothing in the other rollout
    assert advantages(batch) == {
        "g0-a.1": [second] * 3,
        "g0-a.2": [first] * 2 + [third],
        "g0-b.1": [-second] * 3,
        "g0-b.2": [-first] * 2 + [-third],
    }


def test_shaping_changes_the_rollouts_reward_and_so_what_the_last_call_is_paid(store: SqliteStore):
    told = {"g0-a": (THREE, Judged(1.0, earned(0.5))), "g0-b": (THREE, Judged(0.0))}
    config = msgspec.structs.replace(PER_CALL, shaping=(EfficiencyHook(most=0.5, allowance=6),))
    batch = build_batch(store, finished(store, told), LearnerConfig(), policy_version=0, batching=config)
    assert advantages(batch)["g0-a.1"] == [1.25] * 3
    assert advantages(batch)["g0-a.2"] == [1.75] * 2 + [1.25]


def test_a_reward_of_a_call_that_was_never_made_takes_the_vote_and_is_said(store: SqliteStore):
    told = {"g0-a": (THREE, Judged(1.0, earned(0, 0, 0, 0.5))), "g0-b": (THREE, Judged(0.0)), "g0-c": (THREE, Judged(1.0))}
    batch = build_batch(store, finished(store, told), LearnerConfig(), policy_version=0, batching=PER_CALL)
    assert set(batch.judged.advantages.calls) == {"g0-b", "g0-c"}
    assert "g0-a: a reward is for call 3, of which the harness had no reply" in batch.alarms
    assert batch.judged.left_out == {"no_vote": 2}


def test_a_batch_without_any_such_reward_trains_with_the_rollouts_own_and_says_so(store: SqliteStore):
    told = {"g0-a": (THREE, 1.0), "g0-b": (THREE, 0.0)}
    batch = build_batch(store, finished(store, told), LearnerConfig(), policy_version=0, batching=PER_CALL)
    assert {value for column in advantages(batch).values() for value in column} == {1.0, -1.0}
    assert any("no rollout has a reward of a single call" in told for told in batch.alarms)


def test_turns_count_the_main_conversation_alone(store: SqliteStore):
    (rollout,) = finished(store, {"g0-a": (THREE, Judged(1.0))})
    trace = load_trace(store, rollout)
    side = changed(trace, 1, role="side")
    assert [node.call.index for node in acts_of(side)] == [0, 1, 2]
    assert rewards_of(side, earned(0.1, 0.2, of="turn")) == ((0.1, 0.0, 0.2), "")
    assert rewards_of(side, earned(0.1, 0.2)) == ((0.1, 0.2, 0.0), "")
    lost = changed(trace, 0, excluded="undelivered")
    assert rewards_of(lost, earned(0.1, of="turn")) == ((0.1, 0.0), "")
    rewards, wrong = rewards_of(lost, earned(0.1))
    assert rewards == (None, None) and "call 0" in wrong


def per_call_run(kind: str) -> RunConfig:
    return msgspec.structs.replace(configuration(kind, steps=1), batching=PER_CALL)


def paid_by_call(spec: RolloutSpec) -> Any:
    """All fail alike; only what the first call earned tells the members of a group apart."""
    return by_name(spec)[0], Judged(0.0, earned(float(int(spec.rollout_id[-2:]) % 2)))


@pytest.mark.parametrize("kind", ["synchronous", "collocated", "asynchronous"])
def test_the_loops_train_with_them(world: World, tmp_path: Path, kind: str):
    with playing(tmp_path / "store", paid_by_call):
        train(world, tmp_path, per_call_run(kind))
    (line,) = Log(tmp_path).steps()
    assert (line.groups_by_source, line.groups_dropped) == ({"s": 2}, {})
    assert (line.tokens_trained, line.samples_left_out) == (28, {})
    assert line.grad_norm > 0
    assert line.reward_mean == 0.0


def test_only_the_call_that_was_paid_gets_a_gradient(world: World, tmp_path: Path):
    """The second call is worth the same in every rollout: its tokens have an advantage of exactly 0."""
    with opened_run(world, tmp_path, per_call_run("synchronous")) as run:
        run.restore()
        run.create_groups(until=2, step=0)
        play(run.store, paid_by_call)
        run.watch.refresh()
        rollouts = [rollout for rollout in run.store.rollouts() if rollout.spec.purpose == "train"]
        batch = build_batch(run.store, rollouts, run.config.learner, policy_version=0, batching=PER_CALL)
        for name, column in advantages(batch).items():
            sign = 1.0 if int(name.split("-m")[1][:2]) % 2 else -1.0
            np.testing.assert_allclose(column, [sign] * 4 + [0.0] * 3)
        run.update(0, run.ready_groups())
        assert run.log.steps()[0].tokens_trained == 28


def test_groups_that_only_single_calls_tell_apart_are_not_replaced(world: World, tmp_path: Path):
    config = per_call_run("synchronous")
    config = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, replace_dropped=True, replace_at_most=2))
    with playing(tmp_path / "store", paid_by_call):
        train(world, tmp_path, config)
    (line,) = Log(tmp_path).steps()
    assert (line.groups_by_source, line.rollouts) == ({"s": 2}, 4)


def test_a_critic_beside_it_is_refused():
    config = msgspec.structs.replace(per_call_run("synchronous"), learner=LearnerConfig(critic=HeadCritic()))
    with pytest.raises(ConfigurationError, match="per-call"):
        config.check()
