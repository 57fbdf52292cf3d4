"""whippletree/loop/metrics.py and layout.py"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError
from whippletree.loop.layout import Layout, Services
from whippletree.loop.metrics import EvalMetrics, Log, StepMetrics, finite, mean, success_rate
from whippletree.types import Rollout, RolloutSpec


def step(number: int, reward: float | None = 0.5) -> StepMetrics:
    return StepMetrics(
        step=number, policy_version=number + 1, time=1.0, rollouts=4, failed=0, reward_mean=reward, calls=8, turns_mean=2.0,
        tokens_trained=40, samples=4, groups_without_signal=0, staleness_mean=0.0, staleness_max=0, loss=0.1, grad_norm=1.0,
        clip_fraction=0.0, ratio_max=1.0, logprob_max_abs_diff=1e-6, logprob_correlation=1.0, weight_check_diff=None,
        row_fill=0.9, seconds_collect=1.0, seconds_update=1.0, seconds_publish=0.1, prefix_breaks={"template": 2},
        learner={"ratio": 1.01},
    )  # fmt: skip


def test_the_last_line_of_a_step_counts(tmp_path: Path):
    log = Log(tmp_path)
    for line in (step(0, 0.1), step(1), step(0, 0.9)):
        log.append("metrics", line)
    assert [(line.step, line.reward_mean) for line in log.steps()] == [(0, 0.9), (1, 0.5)]


def test_a_torn_line_of_a_killed_process_costs_only_itself(tmp_path: Path):
    log = Log(tmp_path)
    log.append("metrics", step(0))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "pol')
    log.append("metrics", step(2))
    assert [line.step for line in log.steps()] == [0, 2]


def test_metrics_are_readable_as_parquet(tmp_path: Path):
    import pyarrow.parquet

    log = Log(tmp_path)
    log.append("metrics", step(0))
    log.append("metrics", step(1, None))
    table = pyarrow.parquet.read_table(log.to_parquet())
    assert table.column("step").to_pylist() == [0, 1]
    assert table.column("reward_mean").to_pylist() == [0.5, None]
    assert table.column("learner").to_pylist() == ['{"ratio":1.01}'] * 2


def test_a_rate_over_nothing_is_null_not_zero():
    spec = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
    failed = Rollout(spec=spec, state="failed", created=0.0, updated=0.0)
    right = Rollout(spec=spec, state="succeeded", created=0.0, updated=0.0, reward=1.0)
    assert success_rate([failed]) is None
    assert success_rate([failed, right]) == 1.0
    assert mean([]) is None
    assert finite(math.nan) is None
    assert finite(0.5) == 0.5


def test_evaluation_lines_round_trip(tmp_path: Path):
    line = EvalMetrics(
        step=0,
        policy_version=0,
        time=1.0,
        valid=4,
        failed=1,
        success=0.25,
        turns_mean=2.0,
        by_difficulty={"d": (1, 4)},
        seconds=2.0,
    )
    Log(tmp_path).append("eval", line)
    assert Log(tmp_path).evals() == [line]


def test_services_round_trip_and_a_missing_file_says_what_to_do(tmp_path: Path):
    layout = Layout(tmp_path)
    with pytest.raises(ConfigurationError, match="whippletree train"):
        layout.read_services()
    services = Services(gateway_url="http://a:1", engine_url="http://a:2", model_directory="/m", isolation="none", started=1.0)
    layout.write_services(services)
    assert layout.read_services() == services
    layout.services_file.write_bytes(b"{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        layout.read_services()


def test_every_path_of_a_run_is_below_its_directory(tmp_path: Path):
    layout = Layout(tmp_path)
    paths = [getattr(layout, name) for name, kind in vars(Layout).items() if isinstance(kind, property)]
    paths += [layout.log("engine"), layout.ready("engine")]
    assert len(set(paths)) == len(paths) >= 10
    assert all(tmp_path in path.parents for path in paths)


def test_a_line_is_on_disk_once_it_is_appended_and_the_last_one_of_a_step_is_read_by_others(tmp_path: Path):
    writer, reader = Log(tmp_path), Log(tmp_path)
    for reward in (0.1, 0.7):
        writer.append("metrics", step(0, reward))
        assert [line.reward_mean for line in reader.steps()] == [reward]


def test_the_newest_weights_are_found_by_number(tmp_path: Path):
    layout = Layout(tmp_path)
    assert layout.newest_weights() is None
    for version in (2, 10, 9):
        (layout.weights / f"version-{version:06d}").mkdir(parents=True)
    assert layout.newest_weights() == (layout.weights / "version-000010", 10)
