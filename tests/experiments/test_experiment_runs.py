"""Each experiment at toy size, from its command to its picture."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from experiments.harness_mix import __main__ as mix
from experiments.running import RunResult, make_runs
from experiments.split import __main__ as split
from whippletree.errors import ConfigurationError

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.timeout(900)]


def run(experiment: ModuleType, tmp_path: Path) -> list[RunResult]:
    argv = ["--toy", "--output", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert experiment.main(argv) == 0
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").glob("*.json")}
    assert experiment.main(argv) == 0  # what is there is not made again
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out/results").glob("*.json")}
    assert (tmp_path / "out/summary.json").is_file()
    return [msgspec.json.decode(path.read_bytes(), type=RunResult) for path in sorted(files)]


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


def test_two_processes_never_make_the_same_runs(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another process makes the runs"):
            make_runs(split.planned(toy=True), split.HERE / "split.toml", tmp_path, tmp_path)


def test_toy_runs_never_write_where_the_documentation_reads() -> None:
    with pytest.raises(SystemExit):
        split.main(["--toy"])
