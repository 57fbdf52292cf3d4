"""whippletree/loop/evaluation.py, over a real store"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_parts import Turn, play

from whippletree.errors import ConflictError
from whippletree.loop.evaluation import Evaluations, Heldout, evaluation_specs, summarise
from whippletree.loop.groups import progress
from whippletree.loop.metrics import Log
from whippletree.loop.watch import Watch
from whippletree.store import SqliteStore, open_store
from whippletree.types import CauseClass, RolloutSpec, Sampling, StepRecord

TASKS = [
    Heldout(source="s", task_id=f"t{n}", task_path=f"/t/{n}", harness="h", labels={"difficulty": f"depth {1 + n % 2}"})
    for n in range(4)
]
TURN = Turn((1, 2), (3,), prefix_break="first")
SAMPLING = Sampling(temperature=0.7, max_tokens=9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path) as opened:
        yield opened


def specs(step: int = 3, samples: int = 1) -> list[RolloutSpec]:
    return evaluation_specs(TASKS, step=step, samples=samples, sampling=SAMPLING, max_attempts=2)


def test_each_task_is_sampled_as_often_as_asked_under_the_runs_sampling():
    found = specs(samples=2)
    assert len({spec.rollout_id for spec in found}) == 8
    assert [spec.task_id for spec in found] == ["t0", "t0", "t1", "t1", "t2", "t2", "t3", "t3"]
    assert len({spec.group_id for spec in found}) == 4
    assert {(spec.purpose, spec.step, spec.max_attempts) for spec in found} == {("eval", 3, 2)}
    assert all(spec.sampling == SAMPLING for spec in found)
    assert found == specs(samples=2)  # so that a restarted evaluation finds its rollouts again
    assert not {spec.rollout_id for spec in found} & {spec.rollout_id for spec in specs(step=4, samples=2)}


def test_tasks_whose_names_run_together_are_kept_apart():
    tasks = [
        Heldout(source="shell", task_id="text-1", task_path="/a", harness="h"),
        Heldout(source="shell-text", task_id="1", task_path="/b", harness="h"),
    ]
    found = evaluation_specs(tasks, step=3, samples=2, sampling=SAMPLING, max_attempts=2)
    assert len({spec.rollout_id for spec in found}) == 4
    assert len({spec.group_id for spec in found}) == 2


def test_failures_are_counted_apart_and_never_as_wrong_answers(store: SqliteStore):
    endings = {"t0": 1.0, "t1": 0.0, "t2": CauseClass.SANDBOX, "t3": 0.5}
    store.create_rollouts(specs()).result()
    play(store, lambda spec: ([TURN] * (1 + int(spec.task_id[1])), endings[spec.task_id]))
    line = summarise(store, store.rollouts(), step=3, policy_version=7, seconds=2.0)
    assert (line.step, line.policy_version, line.seconds) == (3, 7, 2.0)
    assert (line.valid, line.failed) == (3, 1)
    assert line.success == pytest.approx(1 / 3)  # half a reward is no success
    assert line.by_difficulty == {"depth 1": (1, 1), "depth 2": (0, 2)}
    assert line.by_source == {"s": (1, 3)}
    assert line.turns_mean == pytest.approx((1 + 2 + 4) / 3)
    assert line.time == max(rollout.updated for rollout in store.rollouts())


def test_where_everything_failed_there_is_no_rate(store: SqliteStore):
    store.create_rollouts(specs()).result()
    play(store, lambda _: ([TURN], CauseClass.ENGINE))
    line = summarise(store, store.rollouts(), step=3, policy_version=0, seconds=1.0)
    assert (line.valid, line.failed, line.success, line.turns_mean, line.by_difficulty) == (0, 4, None, None, {})


def test_evaluation_rollouts_are_never_trained(store: SqliteStore):
    store.create_rollouts(specs()).result()
    play(store, lambda _: ([TURN], 1.0))
    watch = Watch(store, "train", stall_limit=1.0)
    watch.refresh()
    assert progress(watch.rollouts.values(), []).ready == ()
    names = tuple(spec.rollout_id for spec in specs())
    with pytest.raises(ConflictError, match="training rollouts only"):
        store.plan_step(StepRecord(step=0, rollout_ids=names, policy_version=1)).result()


def begun(store: SqliteStore, directory: Path, *, limit: float = 0.0, step: int = 3) -> Evaluations:
    found = Evaluations(Watch(store, "eval", stall_limit=60.0), Log(directory), limit=limit)
    found.adopt()
    found.begin(specs(step), step=step, policy_version=7)
    return found


def test_what_is_not_over_at_the_limit_is_cancelled_counted_and_said(
    store: SqliteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    found = begun(store, tmp_path, limit=0.3)
    play(store, lambda _: ([TURN], 1.0), limit=1)
    store.claim("controller/host-0", 1).result()  # and one is under way, two wait
    found.finish()
    causes = [rollout.cause for rollout in store.rollouts() if rollout.cause]
    assert [cause.cause for cause in causes] == [CauseClass.CANCELLED] * 3
    assert all("0.3 s, loop.eval_limit" in cause.message for cause in causes)
    (line,) = Log(tmp_path).evals()
    assert (line.valid, line.failed, line.cut, line.success, line.success_of_all) == (1, 0, 3, 1.0, 0.25)
    assert "3 of 4 evaluation rollouts were not over after 0.3 s" in caplog.text


def test_without_a_limit_an_evaluation_waits_for_the_last(store: SqliteStore, tmp_path: Path):
    found = begun(store, tmp_path)
    play(store, lambda _: ([TURN], 0.0))
    found.finish()
    assert {rollout.state for rollout in store.rollouts()} == {"succeeded"}
    assert [line.valid for line in Log(tmp_path).evals()] == [4]


def test_looking_never_waits_and_writes_the_line_when_all_are_over(store: SqliteStore, tmp_path: Path):
    found = begun(store, tmp_path)
    assert found.look()  # they were created
    play(store, lambda _: ([Turn((1, 2), (3,), prefix_break="first", version=7)], 1.0), limit=2)
    assert found.look() and Log(tmp_path).evals() == []
    assert not found.look()
    play(store, lambda _: ([Turn((1, 2), (3,), prefix_break="first", version=8)], 1.0))
    found.look()
    (line,) = Log(tmp_path).evals()
    assert (line.step, line.policy_version, line.versions, line.valid) == (3, 7, (7, 8), 4)
    assert found.pending == ()


def test_one_that_is_late_is_cut_by_looking_too(store: SqliteStore, tmp_path: Path):
    found = begun(store, tmp_path, limit=1e-9)
    found.look()
    assert [line.cut for line in Log(tmp_path).evals()] == [4]


def test_what_a_killed_process_began_is_ended_by_the_next(store: SqliteStore, tmp_path: Path):
    begun(store, tmp_path, step=0)
    again = begun(store, tmp_path, step=3)
    assert again.pending == (0, 3)
    play(store, lambda _: ([TURN], 1.0))
    again.finish()
    assert [(line.step, line.valid) for line in Log(tmp_path).evals()] == [(0, 4), (3, 4)]
    begun(store, tmp_path, step=3)
    assert len(store.rollouts()) == 8  # one that has its line is not begun again
