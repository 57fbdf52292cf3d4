"""whippletree/learner/losses/corrections.py"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from losses_parts import of_logprobs, plain, random_tokens

from whippletree.learner.losses.base import RATIO_LIMIT, Tokens
from whippletree.learner.losses.corrections import correct, mask, truncation


def of_mismatch(gaps: list[float], sequences: list[int]) -> Tokens:
    """Tokens whose log π_old - log μ is given."""
    tokens = of_logprobs([-1.0] * len(gaps), [-1.0 - gap for gap in gaps], [1.0] * len(gaps), sequences=torch.tensor(sequences))
    return replace(tokens, proximal_logprobs=tokens.logprobs)


def product(tokens: Tokens, number: int) -> float:
    return math.prod(math.exp(token.proximal - token.sampler) for token in plain(tokens) if token.sequence == number)


@pytest.mark.parametrize("seed", range(3))
def test_truncation_equals_the_plain_reference(seed: int):
    tokens = random_tokens(seed)
    found, told = truncation(tokens, level="token", cap=1.3)
    ratios = [math.exp(token.proximal - token.sampler) for token in plain(tokens)]
    assert found.tolist() == pytest.approx([min(1.3, ratio) for ratio in ratios], abs=1e-12)
    assert told["truncated"].tolist() == [ratio > 1.3 for ratio in ratios]
    assert told["sampler_ratio"].tolist() == pytest.approx(ratios, abs=1e-12)
    whole, _ = truncation(tokens, level="sequence", cap=1.3)
    assert whole.tolist() == pytest.approx([min(1.3, product(tokens, token.sequence)) for token in plain(tokens)], abs=1e-12)
    uncapped, _ = truncation(tokens, level="token", cap=0.0)
    assert uncapped.tolist() == pytest.approx(ratios, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_masks_equal_the_plain_reference(seed: int):
    tokens = random_tokens(seed)
    low, high = 0.8, 1.25
    each = [math.exp(token.proximal - token.sampler) for token in plain(tokens)]
    kept, told = mask(tokens, level="token", low=low, high=high)
    assert kept.tolist() == [low <= ratio <= high for ratio in each]
    assert told["masked"].tolist() == (~kept).tolist()
    for level in ("sequence", "geometric"):
        kept, told = mask(tokens, level=level, low=low, high=high)  # type: ignore[arg-type]
        numbers = [token.sequence for token in plain(tokens)]
        root = {n: 1 / numbers.count(n) if level == "geometric" else 1.0 for n in set(numbers)}
        expected = {n: low <= product(tokens, n) ** root[n] <= high for n in set(numbers)}
        assert kept.tolist() == [expected[n] for n in numbers]
        assert told["masked_sequences"].tolist() == [not expected[n] for n in sorted(expected)]


def test_each_bound_of_a_mask_can_be_left_open():
    tokens = of_mismatch([-9.0, 0.0, 9.0], [0, 1, 2])
    assert mask(tokens, level="token", low=0.0, high=2.0)[0].tolist() == [True, True, False]
    assert mask(tokens, level="token", low=0.5, high=0.0)[0].tolist() == [False, True, True]


@pytest.mark.parametrize("gap", [0.5, -0.5, 50.0, -50.0])
def test_products_over_long_samples_neither_overflow_nor_become_nan(gap: float):
    tokens = of_mismatch([gap] * 3000, [0] * 3000)
    for level in ("token", "sequence"):
        for cap in (0.0, 2.0, 1e12):
            factors, told = truncation(tokens, level=level, cap=cap)  # type: ignore[arg-type]
            assert torch.isfinite(factors).all()
            assert factors.max().item() <= math.exp(RATIO_LIMIT) * 1.0001
            assert torch.isfinite(told["sampler_ratio"]).all()
    for level in ("token", "sequence", "geometric"):
        kept, _ = mask(tokens, level=level, low=0.9, high=1.1)  # type: ignore[arg-type]
        assert not kept.any()


def test_no_gradient_flows_through_the_correction():
    tokens = random_tokens(1)
    leaf = tokens.logprobs.clone().requires_grad_(True)
    moving = replace(tokens, logprobs=leaf, proximal_logprobs=leaf)
    found = correct(moving, truncate="sequence", cap=2.0, masking="token", mask_low=0.5, mask_high=2.0)
    assert found.factors is not None
    assert not found.factors.requires_grad


def test_agreement_changes_nothing():
    tokens = random_tokens(2)
    tokens = replace(tokens, sampler_logprobs=tokens.proximal_logprobs)
    for level in ("token", "sequence"):
        found = correct(tokens, truncate=level, cap=2.0, masking=level, mask_low=0.99, mask_high=1.01)  # type: ignore[arg-type]
        assert found.factors is not None and found.kept is not None
        assert found.factors.tolist() == [1.0] * 24
        assert found.kept.all()
    off = correct(tokens, truncate="off", cap=2.0, masking="off", mask_low=0.5, mask_high=2.0)
    assert (off.factors, off.kept, off.diagnostics) == (None, None, {})
