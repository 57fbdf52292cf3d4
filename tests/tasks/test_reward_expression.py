"""The reward as an expression: what it may hold, what it is worth, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import ConfigurationError, VerifierError
from whippletree.tasks.reward import LENGTH, RewardExpression, reward_of

SCORES = {"correct": 1.0, "style": 0.5, "turns": 4.0, "code-quality": 0.25}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("correct", 1.0),
        ("0.8 * correct + 0.2 * style", 0.9),
        ("-style + 2", 1.5),
        ("(correct - style) / turns", 0.125),
        ("min(correct, style, turns)", 0.5),
        ("max(style, 0)", 0.5),
        ("clip(turns / 2, 0, 1)", 1.0),
        ("correct + 0.1 * clip(1 - turns / 10, 0, 1) if correct >= 1 else 0", 1.06),
        ("correct == 1", 1.0),
        ("0 < style < 0.4", 0.0),
        ("correct != 1 or style > 0.1 and not turns > 9", 1.0),
        ('score("code-quality") * 4', 1.0),
        (" +correct ", 1.0),
    ],
)
def test_what_an_expression_is_worth(text: str, value: float) -> None:
    assert math.isclose(RewardExpression(text).value(SCORES), value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "correct +",
        "correct; style",
        "__import__('os').system('true')",
        "correct.real",
        "scores['correct']",
        "[correct]",
        "lambda: 1",
        "(x := 1)",
        "correct ** 99",
        "correct % 2",
        "~correct",
        "'text'",
        "True",
        "None",
        "1j",
        "...",
        "min()",
        "min(*a)",
        "max(a, key=b)",
        "clip(a, 0)",
        "score(correct)",
        'score("a", "b")',
        "a in b",
        "f'{a}'",
        "{a for a in b}",
        "(" * 300 + "a" + ")" * 300,
        "a" * (LENGTH + 1),
        "+".join(["a"] * 900),
    ],
)
def test_anything_else_is_refused_when_it_is_read(text: str) -> None:
    if text.startswith("a+"):  # long, deep to the left, and allowed
        assert RewardExpression(text).value({"a": 1.0}) == 900.0
        return
    with pytest.raises(ConfigurationError) as refused:
        RewardExpression(text)
    assert refused.value.next_step


def test_names_suggest_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"no score 'corect' \(did you mean correct\?"):
        RewardExpression("corect").value(SCORES)
    with pytest.raises(ConfigurationError, match=r"no score 'zzz' \(the verifier gave: code-quality, correct, style, turns"):
        RewardExpression("zzz").value(SCORES)
    with pytest.raises(ConfigurationError, match=r"clamp\(\).*|did you mean"):
        RewardExpression("clamp(correct, 0, 1)")
    with pytest.raises(ConfigurationError, match=r"did you mean min\?"):
        RewardExpression("minn(correct, 1)")


@pytest.mark.parametrize("text", ["correct / (style - 0.5)", "1e308 * 10 * correct", "1e308 * 10 - 1e308 * 10"])
def test_what_is_not_finite_is_a_verifier_failure(text: str) -> None:
    with pytest.raises(VerifierError, match="guard it"):
        RewardExpression(text).value(SCORES)


def test_a_name_is_needed_even_on_the_branch_that_is_not_taken() -> None:
    with pytest.raises(ConfigurationError, match="'missing'"):
        RewardExpression("correct if correct else missing").value(SCORES)


def test_without_a_rule_the_score_named_reward_counts_or_the_only_one() -> None:
    assert reward_of({"reward": 0.5, "style": 1.0}, None) == 0.5
    assert reward_of({"accuracy": 0.25}, None) == 0.25
    with pytest.raises(VerifierError, match="a, b"):
        reward_of({"a": 1.0, "b": 0.0}, None)
    assert reward_of({"a": 1.0, "b": 0.0}, RewardExpression("a - b")) == 1.0


numbers = st.sampled_from(["a", "b", "0", "1", "2.5"])
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["<", "==", ">="]), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        st.tuples(inner, inner).map(lambda parts: f"max({parts[0]}, {parts[1]})"),
    ),
    max_leaves=12,
)


@given(text=expressions, a=st.floats(-1e6, 1e6), b=st.floats(-1e6, 1e6))
def test_it_agrees_with_python_or_says_that_it_is_no_number(text: str, a: float, b: float) -> None:
    try:
        expected = float(eval(text, {"max": max}, {"a": a, "b": b}))
    except (ZeroDivisionError, OverflowError):
        expected = math.nan
    rule = RewardExpression(text)
    scores = {name: value for name, value in (("a", a), ("b", b)) if name in rule.names} or {"a": a}
    if math.isfinite(expected):
        assert rule.value(scores) == float(f"{expected:.12g}")
    else:
        with pytest.raises(VerifierError):
            rule.value(scores)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=5))
def test_weights_that_add_up_to_one_give_full_scores_one(percents: list[int]):
    shares = [percent / sum(percents) for percent in percents]
    names = [f"s{place}" for place in range(len(shares))]
    rule = RewardExpression(" + ".join(f"{share!r} * {name}" for share, name in zip(shares, names, strict=True)))
    assert rule.value(dict.fromkeys(names, 1.0)) == 1.0
    assert RewardExpression("0.7 * a + 0.2 * b + 0.1 * c").value({"a": 1.0, "b": 1.0, "c": 1.0}) == 1.0
    assert RewardExpression("a / 3").value({"a": 1e-9}) < 3.4e-10
