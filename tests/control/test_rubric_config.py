"""Settings of rubrics: what is refused, and what a digest depends on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from judge_parts import rubric

from whippletree.configuration import convert
from whippletree.control.config import ControlConfig
from whippletree.control.rubrics.config import Criterion, RubricConfig
from whippletree.engines.config import HostedConfig
from whippletree.errors import ConfigurationError

GOOD: dict[str, Any] = {
    "name": "style",
    "judge": {"base_url": "http://127.0.0.1:1/v1", "model": "m"},
    "criteria": [{"name": "clear", "text": "it is clear"}],
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "my score"}, "letters, digits and underscores"),
        ({"criteria": []}, "says nothing of what is good"),
        ({"criteria": [{"name": "a", "text": "x"}, {"name": "a", "text": "y"}]}, "two criteria of one name"),
        ({"criteria": [{"name": "why", "text": "x"}]}, "cannot be called why"),
        ({"criteria": [{"name": "a", "text": " "}]}, "needs a text"),
        ({"criteria": [{"name": "a", "text": "x", "weight": 0}]}, "weight"),
        ({"gives": "ranking"}, "set group_wise = true"),
        ({"judge": {"model": "m"}}, "judge.base_url and judge.model"),
        ({"sees": []}, "sees nothing"),
        ({"votes": 0}, "votes"),
        ({"jugde": {}}, "did you mean judge?"),
    ],
)
def test_a_rubric_that_cannot_be_used_is_refused_with_its_key(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("?", r"\?").replace(".", r"\.")):
        convert(RubricConfig, GOOD | changed, "run.toml")


def test_names_of_rubrics_differ_and_those_of_jobs_see_no_files() -> None:
    one = convert(RubricConfig, GOOD, "run.toml")
    with pytest.raises(ValueError, match="two rubrics are called 'style'"):
        ControlConfig(rubrics=(one, one))
    ControlConfig(rubrics=(one,), launch="kubernetes")
    with pytest.raises(ValueError, match="rubric style wants files, and what a Job left is gone"):
        ControlConfig(rubrics=(msgspec.structs.replace(one, files=("/app/report.md",)),), launch="kubernetes")


def test_a_rubric_is_for_its_sources_or_for_all() -> None:
    config = ControlConfig(rubrics=(rubric("http://x/v1"), rubric("http://x/v1", "other", sources=("a",))))
    assert config.rubrics_of("a") == ("style", "other")
    assert config.rubrics_of("b") == ("style",)


@pytest.mark.parametrize(
    "changed",
    [
        {"criteria": (Criterion(name="good", text="it is better", points=4),)},
        {"instructions": "Be kind."},
        {"template": "{{ form }}"},
        {"sees": ("answer",)},
        {"characters": 7},
        {"group_wise": True},
        {"votes": 2},
        {"temperature": 0.5},
    ],
)
def test_another_question_is_another_digest(changed: dict[str, Any]) -> None:
    plain = rubric("http://127.0.0.1:1/v1")
    assert msgspec.structs.replace(plain, **changed).digest() != plain.digest()


def test_what_the_judge_is_not_told_leaves_the_digest_as_it_is() -> None:
    plain = rubric("http://127.0.0.1:1/v1")
    moved = msgspec.structs.replace(
        plain, at_once=1, tries=9, judge=HostedConfig(base_url="http://127.0.0.1:2/v1", model="judge-1")
    )
    assert moved.digest() == plain.digest()
