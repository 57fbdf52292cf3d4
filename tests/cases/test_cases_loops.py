"""Cases of evaluation and of stale rollouts, on a real store"""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_parts import Turn, play

from whippletree.learner.config import LearnerConfig
from whippletree.loop.batch import build_batch
from whippletree.loop.evaluation import Evaluations, Heldout, evaluation_specs
from whippletree.loop.metrics import Log
from whippletree.loop.watch import Watch
from whippletree.store import open_store
from whippletree.types import CauseClass, RolloutSpec, Sampling


def test_C14_failed_evaluation_rollouts_do_not_raise_the_score(tmp_path: Path):
    endings = {"t0": 1.0, "t1": 0.0, "t2": CauseClass.SANDBOX, "t3": CauseClass.AGENT_TIMEOUT}
    tasks = [Heldout(source="s", task_id=name, task_path=f"/t/{name}", harness="h") for name in endings]
    with open_store(tmp_path / "store") as store:
        evaluations = Evaluations(Watch(store, "eval", stall_limit=60.0), Log(tmp_path), limit=0.0)
        specs = evaluation_specs(tasks, step=0, samples=1, sampling=Sampling(), max_attempts=1)
        evaluations.begin(specs, step=0, policy_version=0)
        play(store, lambda spec: ([Turn((1, 2), (3,), prefix_break="first")], endings[spec.task_id]))
        evaluations.finish()
    (line,) = Log(tmp_path).evals()
    assert (line.success, line.success_of_all) == (0.5, 0.25)
    assert (line.valid, line.failed, line.cut) == (2, 2, 0)


@pytest.mark.parametrize("stale", [3, 0])
def test_C19_only_the_stale_rollout_is_left_out_and_its_reward_still_counts(tmp_path: Path, stale: int):
    versions = [10, 10, 10, 10]
    versions[stale] = 4
    specs = [
        RolloutSpec(rollout_id=f"r{n}", group_id="g", source="s", task_id="t", task_path="/t", harness="h") for n in range(4)
    ]
    with open_store(tmp_path) as store:
        store.create_rollouts(specs).result()
        play(
            store,
            lambda spec: (
                [Turn((1, 2), (3, 4, 5), prefix_break="first", version=versions[int(spec.rollout_id[1:])])],
                float(int(spec.rollout_id[1:]) % 2),
            ),
        )
        found = build_batch(store, store.rollouts(), LearnerConfig(), policy_version=11, max_staleness=4)
        fresh = build_batch(store, store.rollouts(), LearnerConfig(), policy_version=11)
    trained = {name.split(".")[0] for row in found.rows for name in row.sample_ids}
    assert trained == {f"r{n}" for n in range(4) if n != stale}
    assert found.metrics()["samples_left_out"] == {"stale": 1}
    assert found.metrics()["tokens_left_out"] == {"stale": 3}  # wasted
    assert found.judged.advantages.values == fresh.judged.advantages.values  # its vote counts
    assert found.judged.weights.per_token == fresh.judged.weights.per_token
    assert {int(version) for row in found.rows for version in row.versions} == {10}  # each token's, for the loss
