"""[batching] of the run file, in the loops: a real store, engine process and gateway; only the agent is made up"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from loop_parts import HELDOUT, World, by_name, opened_run, play, playing

from whippletree.batching import BatchingConfig
from whippletree.batching.config import AdvantageConfig, EfficiencyHook, FunctionHook, PassRateFilter
from whippletree.errors import ConfigurationError
from whippletree.loop import synchronous
from whippletree.loop.config import LoopSection, RunConfig, SourceSection
from whippletree.loop.layout import Layout
from whippletree.loop.learning import learn
from whippletree.loop.metrics import Log
from whippletree.loop.sources import TrailTasks
from whippletree.loop.watch import Watch
from whippletree.store import open_store
from whippletree.types import RolloutSpec


def configuration(batching: BatchingConfig) -> RunConfig:
    return RunConfig(
        sources=[SourceSection(name="s", tasks=TrailTasks())],
        loop=LoopSection(
            kind="synchronous", steps=1, groups_per_step=2, group_size=2, groups_in_flight=2, eval_every=0, stall_limit=20.0
        ),
        batching=batching,
    )


def test_what_the_run_file_asks_for_is_done_and_recorded(world: World, tmp_path: Path):
    batching = BatchingConfig(
        advantages=AdvantageConfig(estimator="rloo"),
        shaping=(EfficiencyHook(most=0.5, allowance=8),),
        filters=(PassRateFilter(),),
    )
    config = configuration(batching)
    with playing(tmp_path / "store"), opened_run(world, tmp_path, config, heldout=HELDOUT) as run:
        run.restore()
        synchronous.train(run)
    (line,) = Log(tmp_path).steps()
    assert line.reward_mean == 0.5
    assert line.groups_by_source == {"s": 2}
    assert line.shaping == {"efficiency": pytest.approx(0.5 * 0.75 / 2)}  # two calls of eight, and half of them succeeded
    assert (line.groups_dropped, line.samples_left_out) == ({}, {})
    with open_store(tmp_path / "store") as store:
        trained = [rollout for rollout in store.rollouts() if rollout.spec.purpose == "train"]
        for rollout in trained:
            events = [event for event in store.events(rollout.spec.rollout_id) if event.kind == "shaping"]
            assert len(events) == (1 if rollout.reward else 0)
    assert len(trained) == 4
    assert Log(tmp_path).to_parquet().exists()


def test_a_batch_says_why_it_has_not_a_sources_share(world: World, tmp_path: Path):
    """Whatever waits is played whenever the loop looks, so that no group is under way when it counts the dropped ones."""

    def solved(spec: RolloutSpec) -> Any:
        return by_name(spec)[0], 1.0

    def refresh(watch: Watch) -> bool:
        play(watch.store, solved)
        return real(watch)

    real = Watch.refresh
    config = configuration(BatchingConfig())
    loop = msgspec.structs.replace(config.loop, replace_dropped=True, replace_at_most=2)
    config = msgspec.structs.replace(config, loop=loop)
    with opened_run(world, tmp_path, config) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watch, "refresh", refresh)
        run.restore()
        synchronous.train(run)
    (line,) = Log(tmp_path).steps()
    assert line.groups_by_source == {}
    assert line.groups_dropped == {"zero-advantage: equal_rewards": 4}
    assert line.alarms[0].startswith("source s has 0 of 2 groups: 4 were dropped by the filters")
    assert (line.samples, line.tokens_trained) == (8, 0)


def test_a_function_that_is_not_there_stops_the_learner_before_anything_runs(tmp_path: Path):
    config = configuration(BatchingConfig(shaping=(FunctionHook(function="no_such_module:f"),)))
    with pytest.raises(ConfigurationError, match=r"shaping hook 'no_such_module:f'"):
        learn(config, Layout(tmp_path))
    assert list(tmp_path.iterdir()) == []
