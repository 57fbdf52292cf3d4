"""whippletree/loop/learning.py with a learner of two ranks that torchrun starts, over a real engine process and gateway"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from loop_parts import Ending, Turn, World, by_name, playing, write_services

from whippletree.configuration import dump
from whippletree.learner.config import LearnerConfig, RanksConfig
from whippletree.loop.config import LoopSection, RunConfig, SourceSection
from whippletree.loop.layout import Layout
from whippletree.loop.learning import learn
from whippletree.loop.metrics import Log, Summary
from whippletree.loop.models import DirectoryModel
from whippletree.loop.processes import torchrun
from whippletree.loop.sources import TrailTasks
from whippletree.tasks.config import TrailFamily
from whippletree.types import RolloutSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 2
RANKS = RanksConfig(data=2, timeout_seconds=60.0)


def started(world: World, directory: Path, ranks: RanksConfig) -> tuple[RunConfig, Layout]:
    """What `whippletree train` leaves for the learner."""
    config = RunConfig(
        sources=[
            SourceSection(name="trail", tasks=TrailTasks(family=TrailFamily(train=4, heldout=2, depths=(1,), decoys=(1,))))
        ],
        model=DirectoryModel(path=str(world.model)),
        loop=LoopSection(kind="synchronous", steps=STEPS, groups_per_step=2, group_size=2, stall_limit=60.0),
        learner=LearnerConfig(ranks=ranks, packing="rows", token_budget=32),
    )
    layout = Layout(directory)
    directory.mkdir(exist_ok=True)
    layout.config.write_text(dump(config), encoding="utf-8")
    write_services(world, layout)
    return config, layout


def launch(layout: Layout) -> subprocess.Popen[bytes]:
    command = [sys.executable, *torchrun(RANKS), "-m", "whippletree.cli", "learner", "--run-dir", str(layout.directory)]
    with (layout.directory / "learner.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=200)
    finally:
        process.kill()  # its ranks die with it


def members(launcher: int) -> dict[int, int]:
    """Rank → process id, of the ranks that a launcher started."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                names = dict(item.split("=", 1) for item in (path / "environ").read_text().split("\0") if "=" in item)
            except OSError:
                continue
            if int(stat[1]) == launcher and "RANK" in names:
                found[int(names["RANK"])] = int(path.name)
    return found


def summary(layout: Layout) -> Summary:
    return msgspec.json.decode(layout.summary.read_bytes(), type=Summary)


def test_a_run_of_two_ranks_is_that_of_one_process(world: World, tmp_path: Path):
    _, layout = started(world, tmp_path / "two", RANKS)
    with playing(layout.store):
        assert ended(launch(layout)) == 0, (layout.directory / "learner.log").read_text()[-3000:]
    assert summary(layout).complete
    config, alone = started(world, tmp_path / "one", RanksConfig())
    with playing(alone.store):
        learn(config, alone)
    for two, one in zip(Log(layout.directory).steps(), Log(alone.directory).steps(), strict=True):
        assert (two.tokens_trained, two.sample_tokens) == (one.tokens_trained, one.sample_tokens)
        assert two.loss == pytest.approx(one.loss, rel=1e-3, abs=1e-5)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)


def test_a_run_that_lost_a_rank_says_so_and_resumes(world: World, tmp_path: Path):
    _, layout = started(world, tmp_path, RANKS)
    killed: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def killing(spec: RolloutSpec) -> tuple[list[Turn], Ending]:
        if spec.step == 1 and spec.purpose == "train" and not killed:
            killed.append(members(processes[0].pid)[1])
            os.kill(killed[0], 9)
            time.sleep(0.5)
        return by_name(spec)

    with playing(layout.store, killing):
        processes.append(launch(layout))
        assert ended(processes[0]) != 0
        assert killed
        assert not layout.summary.exists()
        processes[0] = launch(layout)
        assert ended(processes[0]) == 0, (layout.directory / "learner.log").read_text()[-3000:]
    assert summary(layout).complete
    assert [line.step for line in Log(tmp_path).steps()] == list(range(STEPS))
