"""Sampling draws what it should and reports exact logprobs."""

from __future__ import annotations

import math

import pytest
import torch

from whippletree.engines.embedded.sampling import sample
from whippletree.types import Sampling

ROWS = 4000
GRID = [(index + 0.5) / ROWS for index in range(ROWS)]  # stands for uniform draws, without chance


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities).log().repeat(ROWS, 1)


def frequencies(setting: Sampling, probabilities: list[float]) -> list[float]:
    tokens, _ = sample(logits_of(probabilities), [setting] * ROWS, GRID)
    return [tokens.count(token) / ROWS for token in range(len(probabilities))]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_come_as_often_as_the_distribution_says(temperature: float) -> None:
    probabilities = [0.1, 0.0, 0.6, 0.25, 0.05, 0.0]
    powers = [p ** (1 / temperature) for p in probabilities]
    expected = [power / sum(powers) for power in powers]
    assert frequencies(Sampling(temperature=temperature), probabilities) == pytest.approx(expected, abs=1.5 / ROWS)


def test_top_k_and_top_p_cut_the_tail_and_renormalise() -> None:
    probabilities = [0.1, 0.4, 0.2, 0.3]
    assert frequencies(Sampling(top_k=2), probabilities) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=1.5 / ROWS)
    assert frequencies(Sampling(top_p=0.6), probabilities) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=1.5 / ROWS)
    assert frequencies(Sampling(top_k=3, top_p=0.5), probabilities) == pytest.approx([0, 4 / 7, 0, 3 / 7], abs=1.5 / ROWS)
    assert frequencies(Sampling(top_p=1e-9), probabilities) == [0, 1, 0, 0]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logits = torch.full((1, 7), -math.inf)
    logits[0, [2, 4]] = 0.0
    tokens, logprobs = sample(logits, [Sampling()], [uniform])
    assert tokens[0] in (2, 4)
    assert logprobs[0] == pytest.approx(math.log(0.5))


def test_rows_do_not_see_each_other_and_greedy_mixes_with_sampling() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 50)
    settings = [Sampling(temperature=t, top_k=k) for t, k in ((1.0, 0), (0.0, 0), (0.3, 0), (1.0, 5), (0.0, 3), (2.0, 0))]
    uniforms = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    together = sample(logits.clone(), settings, uniforms)
    for row in range(6):
        tokens, logprobs = sample(logits[row : row + 1].clone(), settings[row : row + 1], uniforms[row : row + 1])
        assert (tokens[0], logprobs[0]) == (together[0][row], pytest.approx(together[1][row], abs=1e-6))
        temperature = settings[row].temperature or 1.0
        full = torch.log_softmax(logits[row] / temperature, 0)
        assert logprobs[0] == pytest.approx(float(full[tokens[0]]), abs=1e-6)
    assert together[0][1] == int(logits[1].argmax())


def test_logits_that_are_not_finite_show_in_the_logprob() -> None:
    logits = torch.zeros(2, 5)
    logits[0, 3] = math.nan
    _, logprobs = sample(logits, [Sampling(), Sampling()], [0.3, 0.3])
    assert math.isnan(logprobs[0])
    assert math.isfinite(logprobs[1])
