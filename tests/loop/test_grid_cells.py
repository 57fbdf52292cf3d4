"""whippletree/loop/grid/cells.py: which cells are run, and what their rollouts came to."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from grid_parts import tasks
from recorded_run import START, Story, play, story

from whippletree.loop.grid.cells import (
    latest,
    place_of,
    read_cells,
    read_lines,
    spec_of,
    spread,
    to_create,
    wanted,
    write_lines,
)
from whippletree.store import open_store
from whippletree.types import RolloutSpec, Sampling

ADAPTERS = {"a": "mini-swe-agent", "b": "mini-swe-agent"}
FIXED = {"sampling": Sampling(), "max_attempts": 3}


def planned(count: int = 2, samples: int = 2, known=None, *, retry: bool = False) -> list[RolloutSpec]:
    cells = wanted(tasks(count), ["a", "b"], samples)
    return to_create(cells, known or {}, ADAPTERS, retry_invalid=retry, **FIXED)


def test_the_same_grid_plans_the_same_rollouts_and_more_samples_only_add():
    assert planned() == planned()
    few, more = planned(samples=1), planned(samples=3)
    assert len({spec.rollout_id for spec in more}) == len(more) == 2 * 2 * 3
    assert [spec for spec in more if spec in few] == few == more[: len(few)]


def test_a_rollouts_labels_say_which_cell_it_is():
    for place, task in wanted(tasks(2), ["a", "b"], 2):
        spec = spec_of(place, task, ADAPTERS, name="n", tried=1, **FIXED)
        assert place_of(spec) == (place, 1)
        assert spec.harness == "mini-swe-agent" and spec.source == f"s.{place.harness}" and spec.purpose == "eval"
    assert place_of(RolloutSpec(rollout_id="x", group_id="g", source="s", task_id="t", task_path="/t", harness="h")) is None


def test_cells_whose_names_run_together_are_kept_apart(tmp_path: Path):
    """Harness "mini" with task "text-1", and harness "mini-text" with task "1"; also when one of them was run before."""
    first, second = (msgspec.structs.replace(task, task_id=name) for task, name in zip(tasks(2), ("text-1", "1"), strict=True))
    adapters = {"mini": "mini-swe-agent", "mini-text": "mini-swe-agent"}
    with open_store(tmp_path / "store", instance="test") as store:
        alone = to_create(wanted([first], ["mini"], 1), {}, adapters, retry_invalid=False, **FIXED)
        store.create_rollouts(alone).result()
        cells = wanted([first, second], list(adapters), 2)
        more = to_create(cells, latest(store.rollouts()), adapters, retry_invalid=False, **FIXED)
        store.create_rollouts(more).result()
        found = store.rollouts()
        assert len(found) == 8 and set(latest(found)) == {place for place, _ in cells}
        groups = {(spec.group_id, spec.source, spec.task_id) for spec in more}
        assert len({group for group, _, _ in groups}) == len(groups) == 4


@pytest.mark.parametrize(("count", "limit"), [(10, 3), (3, 10), (7, 0), (1000, 7)])
def test_a_limit_takes_tasks_evenly(count: int, limit: int):
    found = spread(range(count), limit)
    assert len(found) == (min(count, limit) if limit else count)
    gaps = {second - first for first, second in itertools.pairwise(found)}
    assert len(gaps) <= 2 and (not gaps or max(gaps) - min(gaps) <= 1)


def test_cells_are_read_from_the_record(tmp_path: Path):
    specs = planned(count=2, samples=1)
    stories = [
        story(2, solved=True),
        story(2, solved=False),
        Story(commands=[], outputs=[], reward=None),
        story(1, solved=True),
    ]
    with open_store(tmp_path / "store", instance="test") as store:
        play(store, specs, stories, version=0, now=START)
        cells = {cell.rollout_id: cell for cell in read_cells(store, "m", passing=1.0, written={})}
        solved, failed, invalid, _ = (cells[spec.rollout_id] for spec in specs)
        assert (solved.reward, solved.passed, solved.turns, solved.tool_calls) == (1.0, True, 3, 3)
        assert (solved.prompt_tokens, solved.cached_tokens, solved.sampled_tokens) == (12 + 26 + 40, 12 + 24, 18)
        assert solved.computed_tokens == 78 - 36 + 18
        assert solved.agent_seconds == pytest.approx(1.0)
        assert (failed.reward, failed.passed, failed.valid, failed.invalid) == (0.0, False, True, False)
        assert (invalid.reward, invalid.valid, invalid.invalid, invalid.cause, invalid.phase) == (
            None,
            False,
            True,
            "sandbox",
            "boot",
        )
        assert "bwrap" in invalid.message
        again = read_cells(store, "m", passing=0.0, written=cells)
        assert {cell.rollout_id for cell in again if cell.passed} == {cell.rollout_id for cell in again if cell.valid}


def test_only_invalid_cells_are_tried_again_and_the_last_try_counts(tmp_path: Path):
    specs = planned(count=2, samples=1)
    broken = Story(commands=[], outputs=[], reward=None)
    with open_store(tmp_path / "store", instance="test") as store:
        play(store, specs, [story(1, solved=True), story(1, solved=False), broken, broken], version=0)
        known = latest(store.rollouts(purpose="eval"))
        assert planned(samples=1, known=known) == []
        again = planned(samples=1, known=known, retry=True)
        assert [spec.rollout_id for spec in again] == [f"{spec.rollout_id}-r1" for spec in specs[2:]]
        play(store, again, [story(1, solved=True), broken], version=0)
        known = latest(store.rollouts(purpose="eval"))
        cells = {cell.place: cell for cell in read_cells(store, "m", passing=1.0, written={})}
        first, second = (place_of(spec)[0] for spec in again)
        assert (cells[first].passed, cells[first].tries) == (True, 2)
        assert (cells[second].invalid, cells[second].tries) == (True, 2)
        third = planned(samples=1, known=known, retry=True)
        assert [spec.rollout_id for spec in third] == [f"{specs[3].rollout_id}-r2"]


def test_lines_are_read_back_and_a_damaged_file_is_read_anew(tmp_path: Path):
    from grid_parts import cell

    cells = [cell("t0", True), cell("t1", None)]
    path = tmp_path / "cells.jsonl"
    assert read_lines(path) == []
    write_lines(path, cells)
    assert read_lines(path) == cells
    assert all(set(msgspec.json.decode(line)) == set(cells[0].__struct_fields__) for line in path.read_bytes().splitlines())
    path.write_bytes(path.read_bytes()[:-9])
    assert read_lines(path) == []
