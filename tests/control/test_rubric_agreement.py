"""How far a judge agrees with the tests: against the definitions, and where the data give no number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.control.rubrics.agreement import agreement, auc, spearman

SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=12)


@given(above=SCORES, below=SCORES)
def test_auc_is_the_chance_that_one_that_passed_is_scored_higher(above: list[float], below: list[float]) -> None:
    wins = sum((one > other) + 0.5 * (one == other) for one in above for other in below)
    assert auc(above, below) == pytest.approx(wins / (len(above) * len(below)))


@given(values=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_rank_correlation_is_within_its_bounds_and_depends_on_order_alone(values: list[tuple[int, int]]) -> None:
    one, other = [float(a) for a, _ in values], [float(b) for _, b in values]
    found = spearman(one, other)
    if len(set(one)) < 2 or len(set(other)) < 2:
        assert found is None
        return
    assert found is not None and -1.0 <= found <= 1.0
    assert spearman([value**3 for value in one], other) == pytest.approx(found)
    assert spearman(one, one) == pytest.approx(1.0)
    assert spearman([-value for value in one], other) == pytest.approx(-found)


def test_what_the_data_do_not_give_is_none() -> None:
    nothing = agreement("style", [], failed=2, passing=1.0)
    assert (nothing.scored, nothing.failed) == (0, 2)
    assert {nothing.mean, nothing.passed_mean, nothing.others_mean, nothing.auc, nothing.spearman} == {None}
    passed = agreement("style", [(0.5, 1.0), (0.75, 1.0)], failed=0, passing=1.0)
    assert (passed.passed_mean, passed.others_mean, passed.auc, passed.spearman) == (0.625, None, None, None)


def test_a_judge_that_agrees_and_one_that_does_not() -> None:
    good = agreement("style", [(0.9, 1.0), (0.8, 1.0), (0.1, 0.0), (0.8, 0.0)], failed=0, passing=1.0)
    assert (good.auc, good.passed_mean) == (0.875, pytest.approx(0.85))
    bad = agreement("style", [(0.1, 1.0), (0.9, 0.0)], failed=0, passing=1.0)
    assert (bad.auc, bad.spearman) == (0.0, pytest.approx(-1.0))
