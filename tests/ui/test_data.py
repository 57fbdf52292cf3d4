"""whippletree/ui/data.py"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_run import START, Story, new_run, play, record, train_spec

from whippletree.errors import ConfigurationError, StoreError
from whippletree.loop.layout import Layout
from whippletree.store import open_store
from whippletree.types import CallTimes
from whippletree.ui.data import breakdown, covered, read_run


def times(received: float, submitted: float, finished: float) -> CallTimes:
    return CallTimes(received=received, submitted=submitted, first_token=submitted and submitted + 0.01, finished=finished)


def told(*spans: CallTimes, reward: float | None = 1.0) -> Story:
    return Story(commands=["ls"] * len(spans), outputs=["ok"] * len(spans), reward=reward, times=list(spans))


def test_the_breakdown_sums_phases_and_calls_of_every_attempt(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(
            store,
            [train_spec("a"), train_spec("b")],
            [
                told(times(START, START + 0.25, START + 0.5), times(START + 0.5, START + 0.5, START + 0.625)),
                told(times(1, 1.125, 1.25)),
            ],
            version=0,
        )
        found = breakdown(store, [])
    assert found.held == pytest.approx(0.25 + 0.125)
    assert found.sampling == pytest.approx(0.25 + 0.125 + 0.125)
    agents = (0.3 * 2 + 0.1) + (0.3 * 1 + 0.1)  # as recorded_run.finish writes them
    assert found.harness == pytest.approx(agents - 0.625 - 0.25)
    assert found.sandbox == pytest.approx(2 * (0.05 + 0.02 + 0.01 + 0.04))
    assert found.verifier == pytest.approx(2 * 0.08)


def test_calls_that_overlap_are_taken_from_the_harness_once(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        both = told(times(START, START, START + 0.5), times(START + 0.25, START + 0.25, START + 0.5))
        play(store, [train_spec("a")], [both], version=0)
        found = breakdown(store, [])
    assert found.sampling == pytest.approx(0.75)
    assert found.harness == pytest.approx(0.7 - 0.5)


def test_a_call_that_never_reached_the_engine_was_held_to_its_end(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(store, [train_spec("a")], [told(times(START, 0.0, START + 0.5))], version=0)
        found = breakdown(store, [])
    assert (found.held, found.sampling) == (pytest.approx(0.5), 0.0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda s: (float(s[0]), float(s[0] + s[1])))))
def test_the_union_of_spans_is_their_length_on_a_grid(spans: list[tuple[float, float]]):
    assert covered(spans) == len({second for begin, end in spans for second in range(int(begin), int(end))})


def test_the_learner_part_is_the_sum_of_the_step_lines(recorded: Layout):
    run = read_run(recorded.directory)
    assert len(run.steps) == 4
    assert run.breakdown.learner == pytest.approx(sum(line.seconds_update for line in run.steps))
    assert run.breakdown.publish == pytest.approx(sum(line.seconds_publish for line in run.steps))
    assert run.summary is not None
    assert run.summary.rollouts == 18
    assert "kind =" in run.config_text


def test_a_run_that_has_only_begun_can_be_read(tmp_path: Path):
    new_run(tmp_path / "young")
    run = read_run(tmp_path / "young")
    assert (run.steps, run.evals, run.summary) == ([], [], None)
    assert run.breakdown.wall == run.breakdown.harness == 0.0


def test_a_directory_without_a_run_is_refused_and_left_alone(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="holds no run"):
        read_run(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_damaged_summary_names_the_file(tmp_path: Path):
    layout = record(tmp_path / "run", steps=1, tasks=1)
    layout.summary.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"summary\.json"):
        read_run(layout.directory)
