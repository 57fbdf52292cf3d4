from __future__ import annotations

import sys
import types
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.batching import SampleTokens, loss_weights
from whippletree.batching.config import WeightsConfig
from whippletree.batching.weights import WEIGHTS, LossWeights
from whippletree.configuration import convert
from whippletree.errors import AlignmentError, ConfigurationError

MODES = tuple(WEIGHTS.shipped)
AVERAGES = ("rollout-mean", "token-mean", "sequence-mean")
FIGURE_5 = {"A1": 50, "A2": 100, "B1": 30, "B2": 30, "B3": 30, "C1": 40}


def samples(lengths: dict[str, int]) -> list[SampleTokens]:
    """The first letter of a sample's name is its rollout."""
    return [SampleTokens(sample_id=name, rollout_id=name[0], trained_tokens=tokens) for name, tokens in lengths.items()]


def exact(weights: LossWeights) -> dict[str, Fraction]:
    """Weights as the fractions that they are."""
    return {name: 1 / Fraction(divisor) if divisor else Fraction(0) for name, divisor in weights.divisors.items()}


def exact_total(weights: LossWeights, batch: list[SampleTokens]) -> Fraction:
    return sum((exact(weights)[sample.sample_id] * sample.trained_tokens for sample in batch), Fraction(0))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", dict.fromkeys(FIGURE_5, Fraction(1, 50 + 100 + 30 + 30 + 30 + 40))),
        ("sequence-mean", {name: Fraction(1, 6) / tokens for name, tokens in FIGURE_5.items()}),
        ("rollout-mean", {name: Fraction(1, 3) / {"A": 150, "B": 90, "C": 40}[name[0]] for name in FIGURE_5}),
        ("constant", dict.fromkeys(FIGURE_5, Fraction(1, 3 * 200))),
    ],
)
def test_figure_5(mode: str, expected: dict[str, Fraction]) -> None:
    result = loss_weights(samples(FIGURE_5), mode, constant_tokens=200)
    assert exact(result) == expected
    assert result.per_token == {name: float(weight) for name, weight in expected.items()}
    assert (result.rollouts, result.samples, result.empty_samples) == (3, 6, 0)


@given(sums=st.lists(st.integers(-1000, 1000), min_size=6, max_size=6))
def test_figure_5_as_losses(sums: list[int]) -> None:
    """The three losses as the figure writes them, from each sample's sum of token losses."""
    a1, a2, b1, b2, b3, c1 = map(Fraction, sums)
    expected = {
        "token-mean": (a1 + a2 + b1 + b2 + b3 + c1) / (50 + 100 + 30 + 30 + 30 + 40),
        "sequence-mean": (a1 / 50 + a2 / 100 + b1 / 30 + b2 / 30 + b3 / 30 + c1 / 40) / 6,
        "rollout-mean": ((a1 + a2) / (50 + 100) + (b1 + b2 + b3) / (30 + 30 + 30) + c1 / 40) / 3,
    }
    for mode, loss in expected.items():
        weights = exact(loss_weights(samples(FIGURE_5), mode))
        assert sum(weights[name] * total for name, total in zip(FIGURE_5, sums, strict=True)) == loss


def test_rollout_mean_is_the_default() -> None:
    assert loss_weights(samples(FIGURE_5)) == loss_weights(samples(FIGURE_5), "rollout-mean")


splits = st.dictionaries(st.sampled_from("ABCDEFG"), st.lists(st.integers(0, 500), min_size=1, max_size=5), max_size=6)


def named(rollouts: dict[str, list[int]]) -> list[SampleTokens]:
    return samples({f"{name}{number}": tokens for name, parts in rollouts.items() for number, tokens in enumerate(parts)})


@given(rollouts=splits, mode=st.sampled_from(AVERAGES))
def test_weights_sum_to_exactly_one_however_rollouts_split(rollouts: dict[str, list[int]], mode: str) -> None:
    weights = loss_weights(named(rollouts), mode)
    full = any(map(sum, rollouts.values()))
    assert exact_total(weights, named(rollouts)) == (1 if full else 0)
    assert weights.total == (pytest.approx(1.0, abs=1e-12) if full else 0.0)


@given(rollouts=splits, tokens=st.integers(1, 1000))
def test_constant_weights_sum_to_tokens_over_rollouts_and_constant(rollouts: dict[str, list[int]], tokens: int) -> None:
    weights = loss_weights(named(rollouts), "constant", constant_tokens=tokens)
    sums = [sum(parts) for parts in rollouts.values() if sum(parts)]
    assert exact_total(weights, named(rollouts)) == (Fraction(sum(sums), len(sums) * tokens) if sums else 0)


@given(rollouts=splits, mode=st.sampled_from(MODES))
def test_the_sum_does_not_depend_on_how_many_samples_a_rollout_split_into(rollouts: dict[str, list[int]], mode: str) -> None:
    merged = named({name: [sum(parts)] for name, parts in rollouts.items()})
    assert exact_total(loss_weights(merged, mode), merged) == exact_total(loss_weights(named(rollouts), mode), named(rollouts))


@given(rollouts=splits, mode=st.sampled_from(["rollout-mean", "token-mean", "constant"]))
def test_the_weight_of_a_token_does_not_depend_on_how_its_rollout_split(rollouts: dict[str, list[int]], mode: str) -> None:
    merged = loss_weights(named({name: [sum(parts)] for name, parts in rollouts.items()}), mode)
    split = loss_weights(named(rollouts), mode)
    for name, parts in rollouts.items():
        for number, tokens in enumerate(parts):
            assert split.per_token[f"{name}{number}"] == (merged.per_token[f"{name}0"] if tokens else 0.0)


@given(rollouts=splits, mode=st.sampled_from(["rollout-mean", "constant"]))
def test_rollouts_weigh_the_same_relative_to_each_other_however_many_rows_there_are(
    rollouts: dict[str, list[int]], mode: str
) -> None:
    weights = exact(loss_weights(named(rollouts), mode))
    shares = {
        name: sum(weights[f"{name}{number}"] * tokens for number, tokens in enumerate(parts))
        for name, parts in rollouts.items()
        if sum(parts)
    }
    expected = {name: Fraction(1 if mode == "rollout-mean" else sum(rollouts[name])) for name in shares}
    assert all(shares[a] * expected[b] == shares[b] * expected[a] for a in shares for b in shares)


def test_sequence_mean_does_favour_rollouts_that_split() -> None:
    """Why it is not the default: the same rollout, cut in two, counts twice (Eq. 15)."""
    whole = exact(loss_weights(samples({"A1": 100, "B1": 100}), "sequence-mean"))
    cut = exact(loss_weights(samples({"A1": 50, "A2": 50, "B1": 100}), "sequence-mean"))
    assert whole["A1"] * 100 == Fraction(1, 2)
    assert (cut["A1"] + cut["A2"]) * 50 == Fraction(2, 3)


@pytest.mark.parametrize("mode", MODES)
def test_samples_without_trained_tokens_do_not_count(mode: str) -> None:
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


def test_a_users_own_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_weights")
    module.__dict__.update(root=lambda counts: counts.rollouts * counts.rollout**0.5, zero=lambda counts: 0)
    monkeypatch.setitem(sys.modules, "own_weights", module)
    assert loss_weights(samples({"A1": 4, "B1": 16}), "own_weights:root").per_token == {"A1": 1 / 4, "B1": 1 / 8}
    with pytest.raises(ConfigurationError, match="own_weights:zero' gave the divisor 0"):
        loss_weights(samples({"A1": 4}), "own_weights:zero")


@given(rollouts=splits, mode=st.sampled_from(MODES), updates=st.integers(1, 5))
def test_a_batch_of_several_updates_has_as_many_times_the_weight(
    rollouts: dict[str, list[int]], mode: str, updates: int
) -> None:
    one, several = loss_weights(named(rollouts), mode), loss_weights(named(rollouts), mode, updates=updates)
    assert several.per_token == pytest.approx({name: updates * weight for name, weight in one.per_token.items()})
    assert several.divisors == one.divisors


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'token_mean' is not known \(did you mean token-mean\?"):
        loss_weights([], "token_mean")
    with pytest.raises(ConfigurationError, match=r"run.toml: .*did you mean constant\?"):
        convert(WeightsConfig, {"mode": "konstant"}, "run.toml")
