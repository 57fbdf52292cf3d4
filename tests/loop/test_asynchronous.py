"""whippletree/loop/asynchronous.py: a real store, engine process and gateway; only the agent is made up"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from loop_parts import HELDOUT, World, by_name, opened_run, play, playing
from run_parts import STEPS, configuration, train

from whippletree.loop import asynchronous
from whippletree.loop.metrics import Log
from whippletree.loop.run import Run
from whippletree.store import SqliteStore
from whippletree.types import RolloutSpec


def test_the_asynchronous_loop_never_holds_and_starts_no_more_than_it_may(world: World, tmp_path: Path):
    config = configuration("asynchronous", max_staleness=1)
    created: list[tuple[int, int]] = []
    real = Run.update

    def update(run: Run, step: int, groups: Any) -> None:
        created.append((run.learner.policy_version, run.progress().created))
        real(run, step, groups)

    def refuse(*_: Any) -> None:
        raise AssertionError("sampling was held")

    with pytest.MonkeyPatch.context() as patch, playing(tmp_path / "store"):
        patch.setattr(Run, "update", update)
        patch.setattr(type(world.control()), "hold", refuse)
        train(world, tmp_path, config)
    assert created == [(0, 4), (1, 6), (2, 6)]  # (version + 1 + 1) x 2, and never more than the run needs
    assert [line.staleness_max for line in Log(tmp_path).steps()] == [0, 1, 1]


def test_a_straggler_is_swept_when_it_is_too_old_and_its_group_goes_on(world: World, tmp_path: Path):
    """g00000-m01 was sampled by version 0 and comes three updates later: alone of its group it is left out of the loss."""

    def script(spec: RolloutSpec) -> Any:
        turns, ending = by_name(spec)
        late = spec.rollout_id == "g00000-m01"
        return [msgspec.structs.replace(turn, version=0 if late else 3) for turn in turns], ending

    with opened_run(world, tmp_path, configuration("asynchronous", max_staleness=2, steps=9)) as run:
        run.restore()
        run.learner.policy_version = 3
        run.create_groups(until=2, step=0)
        play(run.store, script)
        run.update(0, run.collect(0, until=2))
        (line,) = run.log.steps()
    assert line.samples_left_out == {"stale": 1}
    assert line.tokens_left_out == {"stale": 7}
    assert line.groups_without_signal == 0  # it has its vote: the others of its group have an advantage
    assert line.tokens_trained == 28 - 7


def test_training_goes_on_beside_an_evaluation_and_the_last_one_is_waited_for(world: World, tmp_path: Path):
    config = configuration("asynchronous", eval_every=1)
    with opened_run(world, tmp_path, config, heldout=HELDOUT) as run, pytest.MonkeyPatch.context() as patch:
        hold_back = [True]
        patch.setattr(SqliteStore, "claim", evaluation_last(hold_back))
        with playing(tmp_path / "store"):
            real = Run.finish_evaluations

            def finish(self: Run) -> None:
                assert self.step == STEPS and self.evaluations.pending == (0, 1, 2, 3)
                hold_back[0] = False
                real(self)

            patch.setattr(Run, "finish_evaluations", finish)
            run.restore()
            asynchronous.train(run)
    assert [(line.step, line.policy_version, line.valid) for line in Log(tmp_path).evals()] == [(n, n, 2) for n in range(4)]


def evaluation_last(hold_back: list[bool]) -> Callable[..., Any]:
    """A claim that keeps the rollouts of evaluations back, unclaimed by the player, while `hold_back` says so."""
    real, kept = SqliteStore.claim, list[Any]()

    def claim(store: SqliteStore, worker: str, limit: int) -> Future[Any]:
        found = real(store, worker, limit).result()
        kept.extend(attempt for attempt in found if attempt.rollout_id.startswith("eval"))
        given = [attempt for attempt in found if not attempt.rollout_id.startswith("eval")]
        if not hold_back[0]:
            given += kept
            kept.clear()
        result: Future[Any] = Future()
        result.set_result(given)
        return result

    return claim
