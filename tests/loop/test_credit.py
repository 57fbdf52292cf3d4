"""whippletree/loop/credit.py: a critic in the loop, on real parts"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from loop_parts import Turn, World, by_name, opened_run, play, playing
from run_parts import STEPS, configuration, train

from whippletree.batching import BatchingConfig
from whippletree.batching.config import EfficiencyHook, GaeConfig
from whippletree.learner.config import HeadCritic, LearnerConfig, ModelCritic
from whippletree.learner.critic import Critic
from whippletree.learner.learner import Learner
from whippletree.learner.rows import by_sample
from whippletree.loop.batch import Batch, build_batch
from whippletree.loop.metrics import Log
from whippletree.types import RolloutSpec

PLAIN = BatchingConfig(gae=GaeConfig(whiten=False))


def with_critic(critic: HeadCritic | ModelCritic, kind: str = "synchronous") -> Any:
    config = configuration(kind)
    return msgspec.structs.replace(
        config, batching=PLAIN, learner=msgspec.structs.replace(config.learner, critic=critic, packing="tree")
    )


def batch(world: World, directory: Path, config: Any, script: Any = by_name) -> tuple[Batch, Learner]:
    with opened_run(world, directory, config) as run:
        run.create_groups(until=2, step=0)
        play(run.store, script)
        run.watch.refresh()
        found = build_batch(
            run.store,
            list(run.watch.rollouts.values()),
            config.learner,
            policy_version=0,
            batching=config.batching,
            values=run.learner.values,
        )
        return found, run.learner


def columns(found: Batch, name: str) -> dict[str, Any]:
    return {sample: column for row in found.rows for sample, column in by_sample(row, getattr(row, name)).items()}


def test_returns_are_shaped_rewards_and_advantages_what_the_critic_did_not_expect(world: World, tmp_path: Path):
    config = with_critic(HeadCritic())
    shaping = (EfficiencyHook(most=0.5, allowance=8),)
    config = msgspec.structs.replace(config, batching=msgspec.structs.replace(PLAIN, shaping=shaping))
    found, _ = batch(world, tmp_path, config)
    returns, advantages, old = (columns(found, name) for name in ("returns", "advantages", "old_values"))
    assert len(returns) == 4
    for name, column in returns.items():
        reward = float(int(name.split(".")[0][-2:]) % 2)
        np.testing.assert_allclose(column, reward * (1 + 0.5 * 6 / 8), rtol=1e-6)  # two calls of eight
        np.testing.assert_allclose(advantages[name], column - old[name], atol=1e-6)


def forked(spec: RolloutSpec) -> tuple[list[Turn], float]:
    """Two paths that share their first call."""
    turns = [
        Turn((5, 6, 7), (8, 9), prefix_break="first"),
        Turn((10,), (11, 12), extends=0),
        Turn((13,), (14, 15, 16), extends=0),
    ]
    return turns, 1.0


def test_a_token_that_paths_share_is_estimated_once(world: World, tmp_path: Path):
    config = with_critic(HeadCritic())
    config = msgspec.structs.replace(
        config, batching=BatchingConfig(gae=GaeConfig(gamma=0.5, lam=1.0, unit="call", whiten=False))
    )
    found, learner = batch(world, tmp_path, config, forked)
    returns = {name: column.tolist() for name, column in columns(found, "returns").items() if name.startswith("g00000-m00")}
    lengths = sorted(map(len, returns.values()))
    assert lengths == [3, 4]  # the first path trains the shared call of two tokens, the other one only its own
    assert (
        sorted(value for column in returns.values() for value in column) == [0.5] * 2 + [1.0] * 5
    )  # one call before the end: discounted once
    assert isinstance(learner.critic, Critic)


@pytest.mark.parametrize("critic", [HeadCritic(learning_rate=0.05), ModelCritic(learning_rate=0.01)], ids=["head", "model"])
def test_a_run_with_a_critic_trains_it(world: World, tmp_path: Path, critic: Any):
    with playing(tmp_path / "store"):
        train(world, tmp_path, with_critic(critic, "collocated"))
    lines = Log(tmp_path).steps()
    assert len(lines) == STEPS
    assert lines[0].learner["value_error"] == pytest.approx(0.5)  # the values begin at 0, and half of the rollouts succeed
    assert all(line.grad_norm > 0 and line.samples == 4 for line in lines)
    assert lines[-1].learner["value_error"] < 0.5


def test_without_a_critic_rows_have_neither_returns_nor_values(world: World, tmp_path: Path):
    with opened_run(world, tmp_path, configuration()) as run:
        run.create_groups(until=2, step=0)
        play(run.store, by_name)
        found = build_batch(run.store, run.store.rollouts(), LearnerConfig(), policy_version=0)
    assert all(row.returns is None and row.old_values is None for row in found.rows)
