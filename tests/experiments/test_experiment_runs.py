"""Each experiment at toy size, from its command to its picture."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from experiments.harness_mix import __main__ as mix
from experiments.multi_harness import __main__ as multi
from experiments.multi_harness.fold import HARNESSES
from experiments.multi_harness.grid import read_grid
from experiments.running import RunResult, make_runs
from experiments.split import __main__ as split
from whippletree.errors import ConfigurationError

INSTALLED = os.environ.get("WHIPPLETREE_HARNESSES", "")

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(900)]


def run(experiment: ModuleType, tmp_path: Path, *more: str) -> list[RunResult]:
    argv = ["--toy", "--output", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), *more]
    assert experiment.main(argv) == 0
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").glob("*.json")}
    assert experiment.main(argv) == 0  # what is there is not made again
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").glob("*.json")}
    assert (tmp_path / "out/summary.json").is_file()
    return [msgspec.json.decode(path.read_bytes(), type=RunResult) for path in sorted(files) if path.name != multi.GRID]


def test_split_at_toy_size(tmp_path: Path) -> None:
    found = run(split, tmp_path)
    assert [result.variant for result in found] == ["rollout-mean", "token-mean"]
    for result in found:
        assert [step.step for step in result.steps] == [0, 1] and result.failed_rollouts == 0
        assert all(step.tokens > 0 and step.samples_per_rollout >= 1 for step in result.steps)
    assert all(step.weight_spread == 1 for step in found[1].steps)
    assert (tmp_path / "out/split.png").read_bytes()[:4] == b"\x89PNG"


def test_harness_mix_at_toy_size(tmp_path: Path) -> None:
    (result,) = run(mix, tmp_path)
    assert result.variant == "three" and result.failed_rollouts == 0
    assert set(result.evals[-1].by_source) == set(mix.HARNESSES)
    assert all(judged == 2 for _, judged in result.evals[-1].by_source.values())
    assert (tmp_path / "out/harness-mix.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.harness
@pytest.mark.skipif(not INSTALLED, reason="set WHIPPLETREE_HARNESSES to where `make env-harnesses` put the agents")
def test_multi_harness_at_toy_size(tmp_path: Path) -> None:
    (result,) = run(multi, tmp_path, "--harnesses", INSTALLED)
    assert result.variant == "three" and result.failed_rollouts == 0
    assert {name: judged for name, (_, judged) in result.evals[-1].by_source.items()} == dict.fromkeys(HARNESSES, 2)
    assert set(result.evals[-1].misnamed) == set(HARNESSES)
    (step,) = result.steps
    assert 0 < step.distinct < step.tokens and 0 < step.computed < step.fed
    grid = read_grid(tmp_path / "out/results" / multi.GRID)
    assert grid is not None and (grid.models, grid.harnesses) == (("before", "three"), HARNESSES)
    assert all(block.valid == 2 for block in grid.blocks)
    for name in ("multi-harness.png", "multi-harness-grid.png"):
        assert (tmp_path / "out" / name).read_bytes()[:4] == b"\x89PNG"


def test_two_processes_never_make_the_same_runs(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another process makes the runs"):
            make_runs(split.planned(toy=True), split.HERE / "split.toml", tmp_path, tmp_path)


def test_toy_runs_never_write_where_the_documentation_reads() -> None:
    with pytest.raises(SystemExit):
        split.main(["--toy"])
