"""Reading a judge's answer. Pure.

Invariants (tests/control/test_rubric_reply.py):
- an answer gives every attempt every point that was asked for, whole and within its range, or it is unusable and says why;
- the last JSON object of the text counts, whatever stands around it;
- no text makes it raise anything but Unusable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from whippletree.control.rubrics.config import Criterion
from whippletree.types import Struct

LONGEST = 50_000  # characters of an answer that are read, from its end
LONGEST_WHY = 2_000  # characters
_DECODER = json.JSONDecoder()


class Unusable(ValueError):
    """The answer gives no scores; the text says why, in words for the judge."""


class Verdict(Struct):
    """What one answer says of one attempt: its score, the share of its points that each criterion got, and why.

    Example: Verdict(score=0.5, criteria={"clear": 0.5}, why="It rambles.")
    """

    score: float
    criteria: dict[str, float] = {}
    why: str = ""


def read_points(text: str, labels: Sequence[str], criteria: Sequence[Criterion]) -> tuple[Verdict, ...]:
    """What each attempt gets, in the order of the labels. Raises Unusable."""
    told = last_object(text)
    if len(labels) == 1 and not isinstance(told.get(labels[0]), dict):
        told = {labels[0]: told}  # of one attempt, its points alone will do
    if unknown := sorted(name for name, value in told.items() if name not in labels and isinstance(value, dict)):
        raise Unusable(f"there is no attempt {unknown[0][:40]!r}")
    return tuple(_points(told.get(name), name, criteria) for name in labels)


def _points(told: Any, label: str, criteria: Sequence[Criterion]) -> Verdict:
    if not isinstance(told, dict):
        raise Unusable(f"nothing is said of attempt {label}")
    shares: dict[str, float] = {}
    for criterion in criteria:
        points = told.get(criterion.name)
        if points is None:
            raise Unusable(f"attempt {label} has no points for {criterion.name}")
        if isinstance(points, bool) or not isinstance(points, int | float) or points != points // 1:
            raise Unusable(f"attempt {label}: the points for {criterion.name} are no whole number")
        if not 0 <= points <= criterion.points:
            raise Unusable(f"attempt {label}: the points for {criterion.name} are not from 0 to {criterion.points}")
        shares[criterion.name] = points / criterion.points
    weights = {criterion.name: criterion.weight for criterion in criteria}
    score = sum(weights[name] * share for name, share in shares.items()) / sum(weights.values())
    return Verdict(score=score, criteria=shares, why=_why(told))


def read_ranking(text: str, labels: Sequence[str]) -> tuple[Verdict, ...]:
    """The share of the others that each attempt is placed before, in the order of the labels. Raises Unusable."""
    told = last_object(text)
    ranking = told.get("ranking")
    if not isinstance(ranking, list) or not all(isinstance(name, str) for name in ranking):
        raise Unusable('there is no list "ranking"')
    if sorted(ranking) != sorted(labels):
        raise Unusable(f"the ranking does not hold each of {', '.join(labels)} once")
    others = len(labels) - 1
    scores: Mapping[str, float] = {name: (others - place) / others if others else 0.5 for place, name in enumerate(ranking)}
    return tuple(Verdict(score=scores[name], why=_why(told)) for name in labels)


def _why(told: Mapping[str, Any]) -> str:
    why = told.get("why", "")
    return why[:LONGEST_WHY] if isinstance(why, str) else ""


def last_object(text: str) -> dict[str, Any]:
    """The last JSON object in a text that is not within another one. Raises Unusable."""
    text = text[-LONGEST:]
    found: dict[str, Any] | None = None
    place = text.find("{")
    while place >= 0:
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            place = text.find("{", place + 1)
            continue
        found = value if isinstance(value, dict) else found
        place = text.find("{", end)
    if found is None:
        raise Unusable("there is no JSON object in it")
    return found
