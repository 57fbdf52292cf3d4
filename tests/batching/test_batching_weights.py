from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import SampleTokens, loss_weights
from whippletree.batching.weights import Mode
from whippletree.errors import AlignmentError

MODES: tuple[Mode, ...] = ("rollout-mean", "token-mean", "sequence-mean")
FIGURE_5 = {"A1": 50, "A2": 100, "B1": 30, "B2": 30, "B3": 30, "C1": 40}


def samples(lengths: dict[str, int]) -> list[SampleTokens]:
    """The first letter of a sample's name is its rollout."""
    return [SampleTokens(sample_id=name, rollout_id=name[0], trained_tokens=tokens) for name, tokens in lengths.items()]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", dict.fromkeys(FIGURE_5, Fraction(1, 50 + 100 + 30 + 30 + 30 + 40))),
        ("sequence-mean", {name: Fraction(1, 6) / tokens for name, tokens in FIGURE_5.items()}),
        (
            "rollout-mean",
            {name: Fraction(1, 3) / {"A": 150, "B": 90, "C": 40}[name[0]] for name in FIGURE_5},
        ),
    ],
)
def test_figure_5(mode: Mode, expected: dict[str, Fraction]) -> None:
    result = loss_weights(samples(FIGURE_5), mode)
    assert result.per_token == {name: float(weight) for name, weight in expected.items()}
    assert (result.rollouts, result.samples, result.empty_samples) == (3, 6, 0)


def test_rollout_mean_is_the_default() -> None:
    assert loss_weights(samples(FIGURE_5)) == loss_weights(samples(FIGURE_5), "rollout-mean")


splits = st.dictionaries(st.sampled_from("ABCDEFG"), st.lists(st.integers(0, 500), min_size=1, max_size=5), max_size=6)


def named(rollouts: dict[str, list[int]]) -> list[SampleTokens]:
    return samples({f"{name}{number}": tokens for name, parts in rollouts.items() for number, tokens in enumerate(parts)})


@given(rollouts=splits, mode=st.sampled_from(MODES))
def test_weights_sum_to_one_however_rollouts_split(rollouts: dict[str, list[int]], mode: Mode) -> None:
    total = loss_weights(named(rollouts), mode).total
    assert total == (pytest.approx(1.0, abs=1e-12) if any(map(sum, rollouts.values())) else 0.0)


@given(rollouts=splits, mode=st.sampled_from(MODES[:2]))
def test_the_weight_of_a_token_does_not_depend_on_how_its_rollout_split(rollouts: dict[str, list[int]], mode: Mode) -> None:
    merged = loss_weights(named({name: [sum(parts)] for name, parts in rollouts.items()}), mode)
    split = loss_weights(named(rollouts), mode)
    for name, parts in rollouts.items():
        for number, tokens in enumerate(parts):
            assert split.per_token[f"{name}{number}"] == (merged.per_token[f"{name}0"] if tokens else 0.0)


def test_sequence_mean_does_favour_rollouts_that_split() -> None:
    """Why it is not the default: the same rollout, cut in two, counts twice (Eq. 15)."""
    whole = loss_weights(samples({"A1": 100, "B1": 100}), "sequence-mean")
    cut = loss_weights(samples({"A1": 50, "A2": 50, "B1": 100}), "sequence-mean")
    assert whole.per_token["A1"] * 100 == 1 / 2
    assert (cut.per_token["A1"] + cut.per_token["A2"]) * 50 == pytest.approx(2 / 3)


@pytest.mark.parametrize("mode", MODES)
def test_samples_without_trained_tokens_do_not_count(mode: Mode) -> None:
    without = loss_weights(samples({"A1": 10, "B1": 5}), mode)
    result = loss_weights(samples({"A1": 10, "A2": 0, "B1": 5, "C1": 0}), mode)
    assert result.per_token == {**without.per_token, "A2": 0.0, "C1": 0.0}
    assert (result.rollouts, result.samples, result.empty_samples) == (2, 2, 2)


def test_a_sample_listed_twice_or_with_a_negative_count_is_refused() -> None:
    twice = samples({"A1": 1})
    with pytest.raises(AlignmentError, match="A1 is listed twice"):
        loss_weights([*twice, *twice])
    with pytest.raises(AlignmentError, match="-1 trained tokens"):
        loss_weights(samples({"A1": -1}))
