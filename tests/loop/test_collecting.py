"""whippletree/loop/collecting.py, over a real store"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from loop_parts import by_name, play, playing, write_attempt
from run_parts import configuration

from whippletree.loop.collecting import Collector
from whippletree.loop.curriculum import CurriculumConfig
from whippletree.loop.groups import SourceTasks
from whippletree.loop.watch import Watch
from whippletree.store import SqliteStore, open_store
from whippletree.types import CauseClass, RolloutSpec, StepRecord

TASKS = tuple((f"t{n}", f"/t/{n}") for n in range(4))
SOURCES = [
    SourceTasks(name="a", tasks=TASKS, harness="h", share=2.0),
    SourceTasks(name="b", tasks=TASKS, harness="h"),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path / "store") as opened:
        yield opened


def collector(store: SqliteStore, records: dict[int, StepRecord] | None = None, sources: Any = None, **loop: Any) -> Collector:
    config = configuration("collocated", **({"groups_per_step": 3} | loop))
    return Collector(config, Watch(store, "train", stall_limit=5.0), sources or SOURCES, {} if records is None else records)


def made(store: SqliteStore) -> list[tuple[str, str, str]]:
    """(group, source, task) of every group."""
    return sorted({(r.spec.group_id, r.spec.source, r.spec.task_id) for r in store.rollouts()})


def alike(spec: RolloutSpec) -> Any:
    """Groups of task t0 and t1 have equal rewards, so that the filter drops them."""
    turns, ending = by_name(spec)
    return turns, 1.0 if spec.task_id in ("t0", "t1") else ending


def test_the_same_records_lead_to_the_same_groups(store: SqliteStore, tmp_path: Path):
    collector(store).create(until=6, step=0)
    first = made(store)
    collector(store).create(until=6, step=0)
    assert made(store) == first
    collector(store).create(until=9, step=0)
    with open_store(tmp_path / "other") as other:
        collector(other).create(until=9, step=0)
        assert made(other) == made(store)
    assert Counter(source for _, source, _ in made(store)) == {"a": 6, "b": 3}


def test_a_source_waits_for_its_own_and_holds_no_other_up(store: SqliteStore):
    """Rollouts of b do not end: a's groups go on up to what is in flight, and the batch waits for b."""
    found = collector(store)
    found.create(until=9, step=0)
    claimed = store.claim("controller/host-0", 100).result()
    for attempt in claimed:
        if store.rollout(attempt.rollout_id).spec.source == "a":
            write_attempt(store, attempt, *by_name(store.rollout(attempt.rollout_id).spec))
    found.create(until=9, step=0)
    assert len(found.progress().ready) == 6 and len(found.progress().open) == 3
    for attempt in claimed:
        if store.rollout(attempt.rollout_id).spec.source == "b":
            write_attempt(store, attempt, *by_name(store.rollout(attempt.rollout_id).spec))
    mixed = found.collect(0, until=9, ahead=True, oldest_first=False)
    of = {group: source for group, source, _ in made(store)}
    assert Counter(of[name] for name in mixed.groups) == {"a": 2, "b": 1}
    assert mixed.short == {}


def test_a_sources_groups_run_under_its_variants_in_turn_and_a_whole_group_under_one(store: SqliteStore):
    varied = [msgspec.structs.replace(SOURCES[0], variants=("plain", "terse", "renamed")), SOURCES[1]]
    collector(store, sources=varied).create(until=4, step=0)
    collector(store, sources=varied).create(until=9, step=0)  # as after a restart
    of = {(r.spec.source, r.spec.group_id, r.spec.variant) for r in store.rollouts()}
    assert [variant for source, _, variant in sorted(of) if source == "a"] == ["plain", "terse", "renamed"] * 2
    assert {variant for source, _, variant in of if source == "b"} == {""} and len(of) == 9


@pytest.mark.parametrize("ahead", [False, True])
def test_dropped_groups_are_replaced_until_the_batch_has_its_share(store: SqliteStore, tmp_path: Path, ahead: bool):
    records: dict[int, StepRecord] = {}
    found = collector(store, records, replace_dropped=True, replace_at_most=9)
    dropped = 0
    with playing(tmp_path / "store", alike):
        for step in range(3):
            mixed = found.collect(step, until=(step + 1) * 3, ahead=ahead, oldest_first=False)
            names = {(group, source, task) for group, source, task in made(store) if group in mixed.groups}
            kept = Counter(source for _, source, task in names if task not in ("t0", "t1"))
            assert kept == {"a": 2, "b": 1}
            dropped += len(names) - 3
            rollouts = tuple(r.spec.rollout_id for r in store.rollouts() if r.spec.group_id in mixed.groups)
            records[step] = StepRecord(step=step, rollout_ids=rollouts, policy_version=step + 1)
            assert mixed.short == {}
    assert dropped > 0


def test_a_source_that_only_drops_ends_with_its_name_in_the_batch(store: SqliteStore, tmp_path: Path):
    found = collector(store, replace_dropped=True, replace_at_most=2)

    def hopeless(spec: RolloutSpec) -> Any:
        return by_name(spec)[0], CauseClass.SANDBOX if spec.source == "b" else by_name(spec)[1]

    with playing(tmp_path / "store", hopeless):
        mixed = found.collect(0, until=3, ahead=False, oldest_first=False)
    assert mixed.short["b"].startswith("0 of 1 groups: 2 were dropped by the filters")


def test_a_curriculum_draws_by_what_the_records_say(store: SqliteStore):
    always = CurriculumConfig(low=0.4, high=0.6, outside=0.0)
    sources = [msgspec.structs.replace(SOURCES[0], curriculum=always)]
    found = collector(store, sources=sources)
    found.create(until=30, step=0)
    assert {task for _, _, task in made(store)} == {"t0", "t1", "t2", "t3"}  # drawn by the seed, all unjudged
    play(store, alike)
    found.create(until=60, step=0)
    later = {task for group, _, task in made(store) if int(group[1:]) >= 30}
    assert later == {"t2", "t3"}  # the two that are neither solved nor hopeless
