"""Reading a judge's answer: what counts, and every way in which it is unusable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.control.rubrics.config import Criterion
from whippletree.control.rubrics.reply import LONGEST, Unusable, last_object, read_points, read_ranking

TWO = (Criterion(name="clear", text="x", points=4, weight=3.0), Criterion(name="short", text="y"))
WHOLE = {"A": {"why": "so", "clear": 2, "short": 1}, "B": {"clear": 4.0, "short": 0}}


def test_points_become_weighted_shares() -> None:
    first, second = read_points(json.dumps(WHOLE), ("A", "B"), TWO)
    assert (first.score, first.criteria, first.why) == ((3 * 0.5 + 1) / 4, {"clear": 0.5, "short": 1.0}, "so")
    assert (second.score, second.criteria, second.why) == (0.75, {"clear": 1.0, "short": 0.0}, "")


@pytest.mark.parametrize(
    "text",
    [
        "```json\n%s\n```",
        '<think>perhaps {"A": 1}? {no</think> Here it is: %s That is all.',
        '{"A": {"clear": 0, "short": 0}, "B": {"clear": 0, "short": 0}} No, rather: %s',
        "{{{ %s }",
    ],
)
def test_the_last_object_of_the_text_counts(text: str) -> None:
    assert read_points(text % json.dumps(WHOLE), ("A", "B"), TWO)[0].score == 0.625


def test_points_alone_will_do_for_one_attempt() -> None:
    assert read_points('{"clear": 4, "short": 1}', ("A",), TWO)[0].score == 1.0


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"A": {"clear": 2, "short": 1}}, "nothing is said of attempt B"),
        (WHOLE | {"B": 3}, "nothing is said of attempt B"),
        (WHOLE | {"C": {"clear": 2, "short": 1}}, "there is no attempt 'C'"),
        (WHOLE | {"B": {"clear": 2}}, "attempt B has no points for short"),
        (WHOLE | {"B": {"clear": 5, "short": 1}}, "are not from 0 to 4"),
        (WHOLE | {"B": {"clear": -1, "short": 1}}, "are not from 0 to 4"),
        (WHOLE | {"B": {"clear": 2.5, "short": 1}}, "no whole number"),
        (WHOLE | {"B": {"clear": True, "short": 1}}, "no whole number"),
        (WHOLE | {"B": {"clear": "2", "short": 1}}, "no whole number"),
        (WHOLE | {"B": {"clear": float("nan"), "short": 1}}, "no whole number"),
        (WHOLE | {"B": {"clear": float("inf"), "short": 1}}, "no whole number"),
        (WHOLE | {"B": {"clear": 10**4000, "short": 1}}, "are not from 0 to 4"),
    ],
)
def test_anything_missing_or_out_of_range_is_unusable(told: dict[str, object], said: str) -> None:
    with pytest.raises(Unusable, match=said):
        read_points(json.dumps(told), ("A", "B"), TWO)


@pytest.mark.parametrize(
    "text", ["", "I would rather not.", "[1, 2]", "{", "{" * LONGEST, '{"A":' * 9_999, '{"a": 1' + "0" * 9_999]
)
def test_a_text_without_an_object_is_unusable(text: str) -> None:
    with pytest.raises(Unusable, match="no JSON object"):
        last_object(text)


@given(text=st.text(max_size=300) | st.text(alphabet='{}[]":,A1 \\', max_size=300))
def test_any_text_is_points_or_unusable(text: str) -> None:
    try:
        found = read_points(text, ("A",), TWO)
    except Unusable:
        return
    assert 0.0 <= found[0].score <= 1.0


def test_a_ranking_is_the_share_of_the_others_that_one_is_placed_before() -> None:
    found = read_ranking('{"why": "so", "ranking": ["C", "A", "B"]}', ("A", "B", "C"))
    assert [verdict.score for verdict in found] == [0.5, 0.0, 1.0]
    assert {verdict.why for verdict in found} == {"so"}


@pytest.mark.parametrize("ranking", [["A"], ["A", "B", "B"], ["A", "B", "C", "D"], [1, 2, 3], "ABC", None, [["A"], "B", "C"]])
def test_a_ranking_that_does_not_hold_each_once_is_unusable(ranking: object) -> None:
    with pytest.raises(Unusable, match="ranking"):
        read_ranking(json.dumps({"ranking": ranking}), ("A", "B", "C"))
