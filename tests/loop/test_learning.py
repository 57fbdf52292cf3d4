"""whippletree/loop/learning.py: the learner process's whole life, over a real engine process and gateway"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from loop_parts import Ending, Turn, World, by_name, playing, write_services

from whippletree.errors import ConfigurationError
from whippletree.loop.config import LoopSection, RunConfig, SourceSection
from whippletree.loop.curriculum import CurriculumConfig
from whippletree.loop.layout import Layout
from whippletree.loop.learning import learn, resolve_sources, summarise
from whippletree.loop.metrics import Log, Summary
from whippletree.loop.models import DirectoryModel, TinyModel
from whippletree.loop.sources import DirectoryTasks, TrailTasks, task_directories
from whippletree.store import open_store
from whippletree.tasks.config import TrailFamily
from whippletree.types import RolloutSpec

STEPS = 2
FAMILY = TrailFamily(train=4, heldout=2, depths=(1,), decoys=(1,))


@pytest.fixture(autouse=True)
def sigterm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def configuration(world: World, kind: str = "synchronous") -> RunConfig:
    return RunConfig(
        sources=[SourceSection(name="trail", tasks=TrailTasks(family=FAMILY))],
        model=DirectoryModel(path=str(world.model)),
        loop=LoopSection(kind=kind, steps=STEPS, groups_per_step=2, group_size=2, groups_in_flight=3, stall_limit=20.0),  # type: ignore[arg-type]
    )


def started(world: World, directory: Path) -> Layout:
    """What `whippletree train` leaves for the learner."""
    layout = Layout(directory)
    write_services(world, layout)
    return layout


def read_summary(layout: Layout) -> Summary:
    return msgspec.json.decode(layout.summary.read_bytes(), type=Summary)


@pytest.mark.parametrize("kind", ["synchronous", "collocated", "asynchronous"])
def test_a_run_ends_with_its_summary(world: World, tmp_path: Path, kind: str):
    layout = started(world, tmp_path)
    with playing(layout.store):
        learn(configuration(world, kind), layout)
    found = read_summary(layout)
    assert found.complete
    assert (found.steps, found.loop, found.seed, found.isolation) == (STEPS, kind, 1, "none: nothing runs")
    assert (found.heldout_before, found.heldout_after) == (0.0, 0.0)  # members 00 fail
    assert (found.rollouts, found.failed_rollouts, found.calls) == (12, 0, 24)
    assert found.tokens_trained == STEPS * 4 * 7
    assert found.logprob_max_abs_diff is not None
    assert found.seconds_total > 0
    assert (tmp_path / "metrics.parquet").is_file()
    assert not world.control().status().held


def test_a_run_that_is_told_to_stop_has_no_summary_and_resumes(world: World, tmp_path: Path):
    layout = started(world, tmp_path)
    told: list[str] = []

    def stopping(spec: RolloutSpec) -> tuple[list[Turn], Ending]:
        if spec.step == 1 and spec.purpose == "train" and not told:
            told.append(spec.rollout_id)
            os.kill(os.getpid(), signal.SIGTERM)
        return by_name(spec)

    with playing(layout.store, stopping):
        with pytest.raises(SystemExit) as stopped:
            learn(configuration(world, "collocated"), layout)
        assert stopped.value.code == 0
        assert told
        assert not layout.summary.exists()
        assert not world.control().status().held
        learn(configuration(world, "collocated"), layout)
    assert read_summary(layout).complete
    with open_store(layout.store) as store:
        names = [name for record in store.steps() for name in record.rollout_ids]
        assert len(names) == len(set(names)) == STEPS * 4
        assert all(record.committed for record in store.steps())
    assert [line.step for line in Log(tmp_path).steps()] == list(range(STEPS))


def test_a_summary_of_an_unfinished_run_says_so(world: World, tmp_path: Path):
    layout = started(world, tmp_path)
    with open_store(layout.store) as store:
        found = summarise(configuration(world), layout.read_services(), store, Log(tmp_path), complete=False)
    assert not found.complete
    assert (found.heldout_before, found.heldout_after, found.logprob_max_abs_diff, found.rollouts) == (None, None, None, 0)
    assert found.seconds_total == 0.0


def test_a_run_that_was_never_started_is_refused(world: World, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"services\.json cannot be read"):
        learn(configuration(world), Layout(tmp_path))


def test_sources_are_checked_before_anything_runs(world: World, tmp_path: Path):
    config = configuration(world)
    drawn = [msgspec.structs.replace(config.sources[0], curriculum=CurriculumConfig(low=0.1))]
    assert (
        resolve_sources(msgspec.structs.replace(config, sources=drawn), Layout(tmp_path))[0][0].curriculum
        == drawn[0].curriculum
    )
    sources, heldout = resolve_sources(config, Layout(tmp_path))
    assert ([source.name for source in sources], len(heldout)) == (["trail"], 2)
    beside = msgspec.structs.replace(config.sources[0], name="beside", share=0.0)
    sources, heldout = resolve_sources(msgspec.structs.replace(config, sources=[*config.sources, beside]), Layout(tmp_path))
    assert [source.name for source in sources] == ["trail"]  # the other one is evaluated only
    assert {task.source for task in heldout} == {"trail", "beside"}
    _, held = task_directories(config.sources[0].tasks, "trail", tmp_path)
    evaluated = msgspec.structs.replace(beside, tasks=DirectoryTasks(heldout=str(held[0].parent)))
    sources, heldout = resolve_sources(
        msgspec.structs.replace(config, sources=[config.sources[0], evaluated]), Layout(tmp_path)
    )
    assert (len(sources), {task.source for task in heldout}) == (1, {"trail", "beside"})
    trained = msgspec.structs.replace(evaluated, share=1.0)
    with pytest.raises(ConfigurationError, match="source beside has a share of the training groups, and no training tasks"):
        resolve_sources(msgspec.structs.replace(config, sources=[config.sources[0], trained]), Layout(tmp_path))
    with pytest.raises(ConfigurationError, match="no source has a share"):
        resolve_sources(msgspec.structs.replace(config, sources=[beside]), Layout(tmp_path))
    with pytest.raises(ConfigurationError, match="two sources are named trail"):
        resolve_sources(msgspec.structs.replace(config, sources=config.sources * 2), Layout(tmp_path))
    with pytest.raises(ConfigurationError, match=r"source trail: tasks\.family differs"):
        resolve_sources(msgspec.structs.replace(config, model=TinyModel()), Layout(tmp_path))
