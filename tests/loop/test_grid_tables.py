"""whippletree/loop/grid/tables.py: blocks, differences, CSV."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest
from grid_parts import cell, tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.loop.grid.cells import Cell
from whippletree.loop.grid.statistics import Resampling
from whippletree.loop.grid.tables import ALL, Block, Difference, Results, summarise, to_csv

HOW = Resampling(resamples=100)


def fold(cells: list[Cell], count: int = 3, *, harnesses=("h",), models=("m",), samples: int = 1, more=()) -> Results:
    return summarise(
        "g",
        cells,
        [*tasks(count), *more],
        models=models,
        harnesses=harnesses,
        samples=samples,
        pass_at=(1, samples),
        how=HOW,
    )


@settings(max_examples=40)
@given(st.lists(st.sampled_from([True, False, None, "queuing", "absent"]), min_size=1, max_size=12))
def test_every_cell_is_in_one_of_the_counts(states):
    cells = [
        cell(f"t{number}", None, state="queuing", cause="") if state == "queuing" else cell(f"t{number}", state)
        for number, state in enumerate(states)
        if state != "absent"
    ]
    block = fold(cells, len(states)).block("m", "h")
    assert (block.cells, block.passed) == (len(states), states.count(True))
    assert (block.valid, block.invalid) == (states.count(True) + states.count(False), states.count(None))
    assert block.valid + block.invalid + block.missing == block.cells
    assert block.rate_of_all == states.count(True) / len(states)
    if block.valid:
        assert block.rate.value == pytest.approx(states.count(True) / block.valid)
        assert block.rate_of_all <= block.rate.value + 1e-12
    else:
        assert block.rate is None and block.sampled_per_solved is None


def test_a_task_has_one_vote_however_many_of_its_samples_are_valid():
    cells = [cell("t0", True, sample=0), cell("t0", None, sample=1), cell("t1", False, sample=0), cell("t1", False, sample=1)]
    block = fold(cells, 2, samples=2).block("m", "h")
    assert block.rate.value == 0.5
    assert block.pass_at[2].value == 0.0 and block.pass_at[2].tasks == 1  # t0 has one valid cell, too few for two
    assert block.causes == {"sandbox": 1}


def test_costs_count_failed_tries_too():
    used = {"sampled_tokens": 10, "prompt_tokens": 100, "cached_tokens": 60, "tool_calls": 2, "turns": 3}
    cells = [cell("t0", True, **used), cell("t1", False, **used), cell("t2", None, **used)]
    block = fold(cells).block("m", "h")
    assert block.sampled_per_solved.value == 20
    assert block.computed_per_solved.value == 2 * (100 - 60 + 10)
    assert block.tool_calls_per_solved.value == 4
    assert block.turns == 3.0


def test_differences_pair_what_both_sides_have():
    first = [cell(f"t{n}", passed, harness="a") for n, passed in enumerate([True, True, False, None])]
    second = [cell(f"t{n}", passed, harness="b") for n, passed in enumerate([False, True, None, True])]
    (gap,) = fold([*first, *second], 4, harnesses=("a", "b")).differences
    assert (gap.kind, gap.within, gap.first, gap.second) == ("harnesses", "m", "b", "a")
    assert gap.estimate.tasks == 2
    assert gap.estimate.value == -0.5


def test_models_are_compared_in_each_harness_and_harnesses_with_each_model():
    cells = [cell(f"t{n}", n > 0, harness=h, model=m) for n in range(3) for h in "ab" for m in "xyz"]
    found = fold(cells, harnesses=tuple("ab"), models=tuple("xyz"))
    kinds = [gap.kind for gap in found.differences]
    assert kinds.count("models") == 2 * 3 and kinds.count("harnesses") == 3
    assert all(gap.estimate.value == 0.0 for gap in found.differences)


def test_several_sources_have_blocks_of_their_own_beside_all():
    cells = [cell("t0", True), cell("t0", False, source="other")]
    found = fold(cells, 1, more=tasks(1, "other"))
    assert [block.source for block in found.blocks] == [ALL, "s", "other"]
    assert [block.rate.value for block in found.blocks] == [0.5, 1.0, 0.0]
    assert fold(cells, 1).sources == ("s",)


def test_the_csv_has_a_line_for_each_and_the_numbers_of_their_structs():
    cells = [cell(f"t{n}", n > 0, harness=h, breaks={"template": 2}) for n in range(3) for h in "ab"]
    found = fold(cells, harnesses=("a", "b", "never"), samples=2)
    rows = list(csv.DictReader(io.StringIO(to_csv(found.blocks, Block))))
    assert [row["harness"] for row in rows] == ["a", "b", "never"]
    assert float(rows[0]["rate"]) == pytest.approx(2 / 3) and float(rows[0]["rate_low"]) <= float(rows[0]["rate_high"])
    assert rows[0]["breaks"] == "template=6" and rows[2]["rate"] == ""
    assert "pass_at_2_tasks" in rows[0]
    gaps = list(csv.DictReader(io.StringIO(to_csv(found.differences, Difference))))
    assert len(gaps) == 3 and gaps[1]["estimate"] == ""
    assert to_csv([], Difference).splitlines() == [",".join(Difference.__struct_fields__)]


def test_results_survive_json_also_without_bounds():
    cells = [cell(f"t{n}", n == 0, sampled_tokens=5) for n in range(9)]
    found = fold(cells, 9)
    assert found.block("m", "h").sampled_per_solved.high is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=Results) == found
